"""Waiting for a storage that is unavailable: the errors that pass by themselves, and the lines about them."""

from __future__ import annotations

import pytest
from redis.exceptions import BusyLoadingError

from dibs.errors import ConfigurationError, StorageUnavailable
from dibs.storage.redis.network.errors import translate_error
from dibs.worker.supervisor.availability import is_starting, wait_until_available


def test_a_loading_redis_is_starting() -> None:
    """The text is that of redis-py for a server that loads its dataset."""
    error = translate_error(BusyLoadingError("Redis is loading the dataset in memory"), "redis://localhost")

    assert isinstance(error, StorageUnavailable)
    assert is_starting(error)


def test_a_starting_postgres_is_starting() -> None:
    text = "cannot reach postgresql://localhost: FATAL:  the database system is starting up"

    assert is_starting(StorageUnavailable(text))


@pytest.mark.parametrize(
    "error",
    [
        StorageUnavailable("cannot reach redis://localhost: Connection refused"),
        ConfigurationError("is starting up"),
    ],
    ids=["no server", "another error"],
)
def test_other_errors_are_raised(error: Exception) -> None:
    assert not is_starting(error)


async def test_an_error_without_text_is_logged_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    errors = [TimeoutError()]

    async def grant() -> str:
        if errors:
            raise errors.pop()
        return "lease"

    assert "lease" == await wait_until_available(grant, "no lease", lambda _: True)
    assert caplog.messages[0].endswith("trying again: TimeoutError")
