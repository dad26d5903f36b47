"""The kit finds a list of queues that lacks a queue with jobs."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.model.job import FAIL_SUFFIX
from dibs.storage.memory import MemoryStorage
from dibs.storage.registry import open_storage
from dibs_conformance.sequential import queue_names
from dibs_conformance.sequential.queue_names import check_queue_names


async def test_a_list_without_fail_queues_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryStorage.queues

    async def mutant(self: MemoryStorage) -> Any:
        return tuple(info for info in await original(self) if not info.name.endswith(FAIL_SUFFIX))

    monkeypatch.setattr(MemoryStorage, "queues", mutant)
    monkeypatch.setattr(queue_names, "LAG", 0.0)

    async with open_storage("memory:", "manual") as storage:
        _, wrong = await check_queue_names(storage)

    assert ["by a failed finish", "by a failed settlement"] == [
        why.rpartition(" got a job ")[2] for why in wrong
    ]


async def test_the_storages_of_dibs_pass(any_new_url: str) -> None:
    async with open_storage(any_new_url, "manual") as storage:
        checked, wrong = await check_queue_names(storage)

    assert [] == wrong
    assert checked in {4, 6}
