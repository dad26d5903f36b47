"""Storages with planted bugs in watches, which the probes must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from dibs.storage.abilities import OnOutcome, StopWatching
from dibs.storage.redis import RedisStorage
from dibs.storage.registry import open_storage, with_option
from dibs_conformance.sequential import optional_calls
from dibs_conformance.sequential.optional_calls import check_end_watches
from dibs_conformance.servers import RedisServer

Watch = Callable[[RedisStorage, str, str, int, OnOutcome], StopWatching | None]


async def wrong_results(url: str) -> list[str]:
    async with open_storage(url) as storage:
        return (await check_end_watches(storage))[1]


async def test_the_methods_of_redis_are_called(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    for name in ("watch_end",):
        monkeypatch.setattr(RedisStorage, name, noting(getattr(RedisStorage, name), name, called))

    await wrong_results(with_option(redis_server.url, "prefix", uuid4().hex))

    # Three stories begin four watches. The watch of the last one begins only if the message about the end
    # comes after it.
    assert called.count("watch_end") in (4, 5)


def noting(method: Callable[..., Any], name: str, called: list[str]) -> Callable[..., Any]:
    """Return a method that notes its name for each call that does not return False or None."""

    def call(*arguments: Any) -> Any:
        answer = method(*arguments)
        if answer:
            called.append(name)
        return answer

    return call


def never_called(watch: Watch) -> Watch:
    return lambda *_: lambda: None


def called_with_another_outcome(watch: Watch) -> Watch:
    def start(
        storage: RedisStorage, queue: str, id: str, revision: int, on_outcome: OnOutcome
    ) -> StopWatching | None:
        return watch(
            storage,
            queue,
            id,
            revision,
            lambda outcome: on_outcome(outcome and replace(outcome, result=b"other")),
        )

    return start


def not_stopped(watch: Watch) -> Watch:
    def start(
        storage: RedisStorage, queue: str, id: str, revision: int, on_outcome: OnOutcome
    ) -> StopWatching | None:
        return watch(storage, queue, id, revision, on_outcome) and (lambda: None)

    return start


@pytest.mark.parametrize("bug", [never_called, called_with_another_outcome, not_stopped])
async def test_a_bug_of_a_watch_is_found(
    bug: Callable[[Watch], Watch], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional_calls, "WAIT_SECONDS", 0.3)
    monkeypatch.setattr(RedisStorage, "watch_end", bug(RedisStorage.watch_end))
    assert await wrong_results(with_option(redis_server.url, "prefix", uuid4().hex))
