"""Waiting for a storage that is unavailable: the errors that pass by themselves, and the lines about them."""

from __future__ import annotations

import psycopg
import pytest
from redis.exceptions import AuthenticationError, BusyLoadingError

from dibs.errors import ConfigurationError, OutcomeUnknown, StorageBusy
from dibs.storage.postgres.network.errors import DriverErrors
from dibs.storage.redis.network.errors import translate_error
from dibs.worker.supervisor.availability import may_open_later, wait_until_available


@pytest.mark.parametrize(
    "error",
    [
        # The text is that of redis-py for a server that loads its dataset.
        translate_error(BusyLoadingError("Redis is loading the dataset in memory"), "redis://localhost"),
        DriverErrors("postgresql://localhost", "localhost").to_connect_error(
            psycopg.OperationalError("FATAL:  the database system is starting up")
        ),
        StorageBusy("the storage did not answer before the deadline"),
        OutcomeUnknown("a migration was sent"),
    ],
)
def test_a_server_that_starts_is_waited_for(error: Exception) -> None:
    assert may_open_later(error)


@pytest.mark.parametrize(
    "error",
    [
        translate_error(AuthenticationError("WRONGPASS"), "redis://localhost"),
        DriverErrors("postgresql://localhost", "localhost").to_connect_error(
            psycopg.OperationalError("password authentication failed")
        ),
        ConfigurationError("is starting up"),
    ],
    ids=["password of Redis", "password of Postgres", "another error"],
)
def test_an_error_that_somebody_must_correct_is_raised(error: Exception) -> None:
    assert not may_open_later(error)


async def test_an_error_without_text_is_logged_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    errors = [TimeoutError()]

    async def grant() -> str:
        if errors:
            raise errors.pop()
        return "lease"

    assert "lease" == await wait_until_available(grant, "no lease", lambda _: True)
    assert caplog.messages[0].endswith("trying again: TimeoutError")
