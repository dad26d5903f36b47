"""Steps inside a function of Postgres: a second connection holds a lock, and lets go once calls wait for it.

A call that has to write to a locked table stands still in the middle of its function, wherever it first
does. With several of them standing, at one table or another, they go on at once. That one waits for a lock
is seen as Postgres's own isolation tester sees it: the server says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from urllib.parse import parse_qs

from dibs.storage.registry import scheme_of
from dibs_conformance.concurrent.actions import Order
from dibs_conformance.concurrent.calls import Call, Look
from dibs_conformance.concurrent.thread_clients import Troupe

#: Seconds after which nobody more is expected to wait.
ENOUGH = 0.5
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE NOT granted AND nspname = %s
"""


def can_hold(target: object) -> bool:
    """Whether the target is a Postgres."""
    return isinstance(target, str) and scheme_of(target) in ("postgresql", "postgres")


class Held:
    """A troupe whose calls are made to stand still in the middle."""

    def __init__(self, troupe: Troupe, connection: Any, schema: str) -> None:
        self._troupe, self._connection, self._schema = troupe, connection, schema
        self._tables = [row[0] for row in connection.execute(TABLES, [schema])]
        #: How many calls stood still.
        self.stood = 0

    def play(self, orders: Sequence[Order], seed: int) -> list[Call]:
        """Let each player do its program, all at once, some of them standing still for a while."""
        if len(orders) == 1:
            return self._troupe.play(orders, seed)
        table = Random(seed).choice(self._tables)
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(f'LOCK TABLE "{self._schema}"."{table}" IN EXCLUSIVE MODE')
            calls = self._troupe.begun(orders)
            self._wait_for(len(orders))
        return calls()

    def _wait_for(self, most: int) -> None:
        """Wait until everybody waits, or for a while."""
        end, waiting = time.monotonic() + ENOUGH, 0
        while waiting < most and time.monotonic() < end:
            [(waiting,)] = self._connection.execute(WAITING, [self._schema])
            time.sleep(0.001)
        self.stood += waiting

    def look(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Look:
        """See everything."""
        return self._troupe.look(queue, ids, now, log=log)


@contextmanager
def held(troupe: Troupe, location: str) -> Iterator[Held]:
    """Hold locks on a place from a connection beside the troupe's."""
    import psycopg  # noqa: PLC0415 - only for a Postgres, whose storage needs it as well

    address, _, query = location.partition("?")
    with psycopg.connect(address, autocommit=True) as connection:
        yield Held(troupe, connection, parse_qs(query)["schema"][0])
