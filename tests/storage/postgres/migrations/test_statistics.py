"""No plan depends on the statistics of the tables: each verb reads few blocks, whatever ANALYZE saw before.

Autovacuum analyzes a table at any moment: while it is empty, while all jobs are active, or before a large
enqueue. Each case makes such statistics, and lets a session plan all verbs. Then the queue fills, and the old
session and a new one run each verb and count the blocks that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.storage.postgres import open_url
from dibs.storage.postgres.network.server import PAGE_PLAN
from dibs.storage.postgres.queries import Queries
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.migrations.test_plan import touched

#: Rows of each kind in the full queue. A plan that reads all of one kind reads at least 2,300 blocks.
MANY = 20_000
MOST_BLOCKS = 1_500
#: It counts the 20,000 active jobs.
MORE_BLOCKS = {"claim under max_active": 2_200}
NOW = 1_700_000_000_000
EXPIRED, ALIVE, OTHER = (f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2, 3))


def jobs(prefix: str, *, at: int, many: int = MANY, priority: int = 0, active: bool = False) -> str:
    """Return the INSERT of jobs that run from `at` on, and of the start of their line or of their claim."""
    fence, lease, key = ("n", f"'{EXPIRED}'", "NULL") if active else ("NULL", "NULL", "'k' || n % 5000")
    claim = f"INSERT INTO claims VALUES (1, '{EXPIRED}', {at}, {priority}, {at}, 0, {at} + {many}, {many});"
    start = f"INSERT INTO marks VALUES (1, {priority}, {at}, 'c', {at}, 0);"
    return f"""
    INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload, key,
                      fence, claimed_at, holder, lease)
    SELECT 1, '{prefix}' || n, 'w', {priority}, {at} + n, n, n, n, 1, '1',
           {key}, {fence}, {fence}, 'x', {lease} FROM generate_series(1, {many}) n;
    {claim if active else start}
    """


def outcomes(prefix: str, expires: int) -> str:
    return f"""
    INSERT INTO ended (q, id, kind, expires_at, fence, first, revision, ended_at, horizon, enqueues,
                       enqueued_at, run_at, attempts, retries, stalls, timeouts)
    SELECT 1, '{prefix}' || n, (ARRAY['completed', 'failed', 'cancelled'])[1 + n % 3], {expires} - n,
           1, 1, 1, 1, '1', 1, 1, 1, 0, 0, 0, 0 FROM generate_series(1, {MANY}) n;
    """


#: By name: the rows that ANALYZE sees; None leaves ANALYZE out.
SEEN: dict[str, str | None] = {
    "never analyzed": None,
    "empty": "",
    "all active": jobs("line", at=NOW - 1000, many=500, active=True),
    "all waiting": jobs("old", at=NOW - 1000, many=500),
    "all scheduled": jobs("old", at=NOW + 10**9, many=500),
}
FILL = f"""
DELETE FROM marks; {jobs("due", at=NOW - 10**6)} {jobs("run", at=NOW - 10**6, many=200, active=True)}
{jobs("held", at=NOW - 2 * 10**6, active=True).replace(EXPIRED, OTHER)}
{jobs("later", at=NOW + 10**7, priority=9)} {jobs("last", at=NOW + 10**8, priority=-9)}
{outcomes("end", NOW)} {outcomes("kept", 2 * NOW)}
INSERT INTO leases VALUES ('{EXPIRED}', 1, 'x', {NOW} - 5), ('{ALIVE}', 1, 'x', {NOW} + 1000000);
INSERT INTO leases SELECT gen_random_uuid(), 1, 'x', {NOW} + n FROM generate_series(1, {MANY}) n;
INSERT INTO request_keys (q, key, status, found, first, revision, expires_at)
SELECT 1, n::text, '', '', 1, 1, {NOW} - n FROM generate_series(1, {MANY}) n;
INSERT INTO key_sets (q, name, n, members, expires_at)
SELECT 1, 's', n, '', {NOW} - n FROM generate_series(1, {MANY}) n;
INSERT INTO clocks (q, key, clock, opens) SELECT 1, 'c' || n, 0, 0 FROM generate_series(1, {MANY}) n;
INSERT INTO freed SELECT 1, 'k' || n FROM generate_series(1, 50) n;
INSERT INTO events SELECT 1, n, {NOW}, 1, '[]' FROM generate_series(1, 100) n;
"""

Call = tuple[str, str, dict[str, Any]]
_CLAIM = {"lease": ALIVE, "limit": 10}
_LISTS: dict[str, list[Any]] = {
    "ids": [], "fences": [], "kinds": [], "results": [], "details": [], "spots": [],
}  # fmt: skip
_STEPS = {"queues": ["q"], "limits": [10], "lasts": [0], "plains": [True]}
#: The calls: a change of the settings of the queue before it, its query, and parameters.
CALLS: dict[str, Call] = {
    "claim": ("", "claim", _CLAIM),
    "claim under max_active": ("max_active = 1000", "claim", _CLAIM),
    "claim under rate": ("rate = (10, 1000, 100)", "claim", _CLAIM),
    "claim under per_key": ("per_key = 1", "claim", _CLAIM),
    "claim under key_rate": ("key_rate = (10, 1000, 1)", "claim", _CLAIM),
    "serve": ("", "serve", {**_CLAIM, **_LISTS, **_STEPS}),
    "settle_and_claim": (
        "",
        "serve",
        {**_CLAIM, **_LISTS, **_STEPS, "lasts": [1], "ids": ["run1"], "fences": [1]},
    ),
    "reap": ("", "reap", {"limit": 10}),
    "drop": ("", "drop", {"queues": ["q"], "lease": ALIVE, "limit": 10}),
    "prune": ("", "prune", {"limit": 10}),
    "watch": ("", "watch", {"queues": ["q"], "kind": "work"}),
    "watch under per_key": ("per_key = 1", "watch", {"queues": ["q"], "kind": "work"}),
    "events": ("", "events", {"since": 10, "limit": 10}),
    "get": ("", "get", {"ids": ["due5", "end5", "none"]}),
}
#: By state, an id before its first ones: a page passes over the ids of other states between its own.
PAGES = {
    None: "kept", "waiting": "", "scheduled": "last", "active": "run", "handed_off": "", "blocked": "",
    "completed": "kept", "failed": "kept",
}  # fmt: skip
for state, after in PAGES.items():
    CALLS[f"page of {state}"] = ("", f"page {state}", {"after": after, "until": "zzz", "limit": 10})


async def blocks_read(connection: Any, queries: Queries, call: Call) -> int:
    """Run a call as EXPLAIN, and return the blocks that it read. Roll back what it wrote."""
    settings, query, params = call
    if settings:
        await connection.execute(f"UPDATE queues SET {settings}".encode())
    if query.startswith("page"):
        await connection.execute(PAGE_PLAN)
    text = pages(queries)[query] if query.startswith("page") else queries[query]
    params = {"queue": "q", "now": NOW, **params}
    found = await connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text, params)
    ((plan,),) = await found.fetchall()
    await connection.rollback()
    return touched(plan[0]["Plan"])


def pages(queries: Queries) -> dict[str, bytes]:
    return {f"page {state}": queries.page(state, ends=True) for state in PAGES}


@pytest.mark.parametrize("seen", SEEN)
async def test_no_verb_reads_the_whole_queue(
    postgres_server: PostgresServer, schema: str, connect: Callable[[], Any], seen: str
) -> None:
    async with open_url(postgres_server.url, schema=schema, clock="manual") as storage:
        await storage.grant(["q"], 1000, "x", now=NOW)
        queries = storage._server.queries
    admin = await connect()
    await admin.set_autocommit(True)
    found = await admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    for (table,) in await found.fetchall():
        await admin.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
    rows = SEEN[seen]
    if rows is not None:
        await admin.execute(f"{rows or ';'} ANALYZE".encode())
    old = await connect()
    for call in CALLS.values():
        await blocks_read(old, queries, call)
    await admin.execute(FILL.encode())
    read = dict.fromkeys(CALLS, 0)
    for session in (old, await connect()):
        for name, call in CALLS.items():
            # The first call of a session also reads the catalog.
            blocks = min([await blocks_read(session, queries, call) for _ in range(2)])
            read[name] = max(read[name], blocks)

    most = {name: MORE_BLOCKS.get(name, MOST_BLOCKS) for name in read}
    assert {} == {name: blocks for name, blocks in read.items() if blocks > most[name]}
