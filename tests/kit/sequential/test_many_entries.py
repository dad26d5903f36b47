"""The kit finds default limits above 100, and a prune that leaves a part of a long log."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.storage.indexed import whole_queue
from dibs.storage.indexed.event_log import EventLog
from dibs.storage.memory import MemoryStorage
from dibs.storage.registry import open_storage
from dibs_conformance.sequential.many_entries import check_default_limits, check_long_log

#: The most log entries that the planted prune removes in one call.
STEP = 1024


@pytest.mark.parametrize("verb", ["list", "export", "events"])
async def test_a_default_limit_above_100_is_found(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(MemoryStorage, verb)

    async def mutant(self: MemoryStorage, *args: Any, limit: int = 1000, **named: Any) -> Any:
        return await original(self, *args, limit=limit, **named)

    monkeypatch.setattr(MemoryStorage, verb, mutant)

    async with open_storage("memory:", "manual") as storage:
        _, [why] = await check_default_limits(storage)

    assert f"{verb} without a limit" in why


async def test_a_prune_of_one_step_of_a_long_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EventLog.excess
    monkeypatch.setattr(EventLog, "excess", lambda self, *args: original(self, *args)[:STEP])

    async with open_storage("memory:", "manual") as storage:
        _, [why] = await check_long_log(storage)

    assert "77 expired events are left" in why


async def test_a_prune_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_queue, "_prune_outcomes", lambda _, limit: limit)

    async with open_storage("memory:", "manual") as storage:
        _, [why] = await check_long_log(storage)

    assert "says `more`" in why


async def test_the_storages_of_dibs_pass(any_new_url: str) -> None:
    async with open_storage(any_new_url, "manual") as storage:
        assert (2, []) == await check_long_log(storage)
