"""The examination of a Postgres server: layout, durability, connections, long transactions and vacuums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg

from dibs.model.findings import Finding, Rule
from dibs.storage.diagnosis import layout_findings
from dibs.storage.postgres.migrate import find_stranger, read_layout
from dibs.storage.postgres.network.address import PostgresAddress
from dibs.storage.postgres.network.connections import PostgresConnections
from dibs.storage.postgres.network.errors import DriverErrors
from dibs.storage.postgres.network.server import run_read
from dibs.storage.postgres.queries import Queries, migrations

#: The part of the connections from which on a server counts as nearly full.
FULL_CONNECTIONS: Final = 0.8
#: Seconds after which an idle transaction is a finding: vacuums remove no row that died after its start.
OLD_TRANSACTION: Final = 600

NO_SCHEMA: Final = Rule(
    "postgres-no-schema",
    "warning",
    "No program has opened the storage yet, or the URL names another schema than the workers do.",
    "Compare the URL with that of the workers. The first program that opens it creates the schema.",
    blocks=True,
)
OWNER: Final = Rule(
    "postgres-owner",
    "error",
    "This role could run code with the rights of the programs that open the storage, so they refuse to.",
    "Give the schema and all in it to one role (`ALTER SCHEMA … OWNER TO`, `REVOKE CREATE ON SCHEMA`), or "
    "open the storage with `allow_others=1`.",
    blocks=True,
)
COMMITS: Final = Rule(
    "postgres-synchronous-commit",
    "warning",
    "A crash of the server may lose the newest accepted jobs.",
    "Set `synchronous_commit = on` for this database or role.",
)
FSYNC: Final = Rule(
    "postgres-fsync",
    "error",
    "A crash of the machine may damage all data.",
    "Set `fsync = on` and `full_page_writes = on`.",
)
CONNECTIONS: Final = Rule(
    "postgres-connections",
    "warning",
    "At the limit Postgres refuses connections, and programs raise StorageUnavailable.",
    "Raise `max_connections`, put a pooler in between, or lower max_connections of the apps.",
)
TRANSACTION: Final = Rule(
    "postgres-idle-transaction",
    "warning",
    "Vacuums remove no rows that died since this transaction began, so claims become slower.",
    "End the session, and set `idle_in_transaction_session_timeout`.",
)
AUTOVACUUM: Final = Rule(
    "postgres-autovacuum",
    "warning",
    "Rows of ended jobs stay in the tables, which grow and become slower.",
    "Set `autovacuum = on`.",
)
RULES: Final = (NO_SCHEMA, OWNER, COMMITS, FSYNC, CONNECTIONS, TRANSACTION, AUTOVACUUM)


async def diagnose(address: PostgresAddress, queries: Queries) -> list[Finding]:
    """Return the findings about the server of a storage. Raise StorageError."""
    errors = DriverErrors(address.display_url, address.hosts)
    connections = PostgresConnections(address, errors)
    try:
        async with connections.borrow() as connection:
            try:
                [row] = await run_read(connection, queries["diagnosis"], {})
                stranger = None if address.allow_others else await find_stranger(connection, queries)
                # A table of a stranger may be a view, whose functions run with the rights of the reader.
                layout = 0 if stranger else await read_layout(connection, queries)
            except psycopg.Error as error:
                raise errors.to_storage_error(error, writes=False, alive=not connection.closed) from None
    finally:
        await connections.close()
    names = ("fsync", "pages", "commits", "most", "open", "idle", "autovacuum")
    found = list(_examine(dict(zip(names, row, strict=True))))
    if stranger:
        return [OWNER.finding(stranger), *found]
    if not layout:
        return [NO_SCHEMA.finding(f"the schema {queries.plain!r} has no tables of dibs"), *found]
    return [*layout_findings(layout, migrations()[-1].number), *found]


def _examine(server: Mapping[str, Any]) -> Iterator[Finding]:
    if server["fsync"] == "off" or server["pages"] == "off":
        yield FSYNC.finding(f"fsync is {server['fsync']}, full_page_writes is {server['pages']}")
    if server["commits"] == "off":
        yield COMMITS.finding("synchronous_commit is off")
    if server["open"] > FULL_CONNECTIONS * server["most"]:
        yield CONNECTIONS.finding(f"{server['open']} of {server['most']} connections are open")
    if (server["idle"] or 0) > OLD_TRANSACTION:
        yield TRANSACTION.finding(f"a session has been idle in a transaction for {round(server['idle'])} s")
    if server["autovacuum"] == "off":
        yield AUTOVACUUM.finding("autovacuum is off")
