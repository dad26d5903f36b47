"""Clients whose calls interleave inside Postgres functions.

A second connection locks a table until the calls wait for that lock.

A call that writes to the locked table stops in the middle of its function, at its first write to the table.
When several calls wait, the lock is released and all continue at the same time. pg_locks shows which calls
wait, as in the isolation tester of Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from urllib.parse import parse_qs

from dibs.storage.registry import parse_scheme
from dibs_conformance.concurrent.thread_clients import ThreadClients
from dibs_conformance.verbs.actions import ClientCall, Program, Snapshot

#: Seconds to wait until all calls are blocked.
MAX_WAIT = 0.5
LIST_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
COUNT_WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE NOT granted AND nspname = %s
"""


def is_postgres(target: object) -> bool:
    """Return whether the target is a Postgres URL."""
    return isinstance(target, str) and parse_scheme(target) in ("postgresql", "postgres")


class LockedClients:
    """Thread clients whose calls are stopped at a table lock for a short time."""

    def __init__(self, clients: ThreadClients, connection: Any, schema: str) -> None:
        self._clients, self._connection, self._schema = clients, connection, schema
        self._tables = [row[0] for row in connection.execute(LIST_TABLES, [schema])]
        #: Number of calls that waited for the lock.
        self.blocked_calls = 0

    def run_round(self, programs: Sequence[Program], seed: int) -> list[ClientCall]:
        """Run one program per client. A random table is locked until the calls wait for it."""
        if len(programs) == 1:
            return self._clients.run_round(programs, seed)
        table = Random(seed).choice(self._tables)
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(f'LOCK TABLE "{self._schema}"."{table}" IN EXCLUSIVE MODE')
            calls = self._clients.start(programs)
            self._wait_for_blocked(len(programs))
        return calls()

    def _wait_for_blocked(self, limit: int) -> None:
        """Wait until `limit` calls wait for the lock, for at most `MAX_WAIT` seconds."""
        end, waiting = time.monotonic() + MAX_WAIT, 0
        while waiting < limit and time.monotonic() < end:
            [(waiting,)] = self._connection.execute(COUNT_WAITING, [self._schema])
            time.sleep(0.001)
        self.blocked_calls += waiting

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        """Read the storage while all clients are idle."""
        return self._clients.snapshot(queue, ids, now, log=log)


@contextmanager
def locked_clients(clients: ThreadClients, location: str) -> Iterator[LockedClients]:
    """Open a second connection to the location, for the locks."""
    import psycopg  # noqa: PLC0415 - needed for Postgres only, whose storage requires psycopg, too

    address, _, query = location.partition("?")
    with psycopg.connect(address, autocommit=True) as connection:
        yield LockedClients(clients, connection, parse_qs(query)["schema"][0])
