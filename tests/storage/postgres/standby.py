"""Queries on a primary or its standby, and a wait until the standby has replayed what the primary wrote."""

from __future__ import annotations

from typing import Any

import psycopg

from dibs_conformance.servers import PostgresServer
from dibs_conformance.servers.processes import wait_until

#: A primary and a hot standby that streams from it.
Pair = tuple[PostgresServer, PostgresServer]


def asked_of(server: PostgresServer, query: str) -> Any:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def caught_up(pair: Pair) -> bool:
    primary, standby = pair
    written = asked_of(primary, "SELECT pg_current_wal_insert_lsn()")
    return wait_until(
        lambda: asked_of(standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'") is True, 60
    )
