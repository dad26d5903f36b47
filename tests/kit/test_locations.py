"""The kit creates locations of its own on a server, and removes all of them."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import redis

from dibs.storage import registry
from dibs_conformance.certification import certify
from dibs_conformance.servers import PostgresServer, start_redis
from dibs_conformance.target import Locations


def test_a_redis_is_left_as_it_was() -> None:
    """The kit removes its own keys, and no others."""
    # On the server that all tests share, keys of earlier tests expire meanwhile.
    with start_redis() as server, redis.Redis.from_url(server.url) as client:
        client.set("of-somebody-else", "1")

        certify(server.url, examples=2, seed=1)

        assert [b"of-somebody-else"] == client.keys("*")


@pytest.mark.certify
def test_a_postgres_is_left_as_it_was(postgres_server: PostgresServer) -> None:
    """The kit leaves no schema behind."""
    certify(postgres_server.url, examples=2, seed=1)

    with psycopg.connect(postgres_server.url) as connection:
        found = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'certify%'"
        ).fetchall()
    assert [] == found


def test_a_scheme_without_temporary_urls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage whose URLs cannot name a new location is certified by its function."""
    monkeypatch.setitem(registry.BUILT_IN, "mine", "tests.kit.play:play")

    with pytest.raises(NotImplementedError, match="certify a function open_storage"):
        Locations("mine:here").new()


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("memory:mine", "memory:x"),
        ("file:./jobs/?fsync=1", "file:./jobs/x?fsync=1"),
        ("redis://host/1?prefix=a&poll=2", "redis://host/1?poll=2&prefix=x"),
        ("postgresql://host/db?schema=a", "postgresql://host/db?schema=x"),
    ],
)
def test_a_temporary_url_is_next_to_the_given_one(url: str, own: str) -> None:
    """Each storage implements `temporary_url`; the kit knows no URL scheme."""
    assert own == registry.temporary_url(url, "x")


async def test_a_folder_that_holds_no_jobs_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "of-somebody-else").write_text("kept")

    await registry.remove_storage(f"file:{tmp_path}")

    assert (tmp_path / "of-somebody-else").exists()
