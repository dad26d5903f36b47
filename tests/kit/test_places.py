"""The kit makes places of its own on a server, and leaves none behind."""

from __future__ import annotations

import psycopg
import pytest
import redis

from dibs_conformance.door import certify
from dibs_conformance.servers import PostgresServer, RedisServer
from dibs_conformance.target import Places


def test_a_redis_is_left_as_it_was(redis_server: RedisServer) -> None:
    """What was there is not touched, what the kit made is gone."""
    client = redis.Redis.from_url(redis_server.url)
    client.set("of-somebody-else", "1")
    before = set(client.keys("*"))

    certify(redis_server.url, examples=2, seed=1)

    assert before == set(client.keys("*"))


@pytest.mark.certify
def test_a_postgres_is_left_as_it_was(postgres_server: PostgresServer) -> None:
    """No schema of the kit's stays."""
    certify(postgres_server.url, examples=2, seed=1)

    with psycopg.connect(postgres_server.url) as connection:
        found = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'certify%'"
        ).fetchall()
    assert [] == found


def test_a_scheme_without_places_is_told() -> None:
    """A storage whose URL has no room for a place is certified by its function."""
    with pytest.raises(NotImplementedError, match="certify\\(open_storage\\)"):
        Places("sqlite:here").new()
