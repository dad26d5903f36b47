"""The kit finds readers of a log that get an event twice, or miss one, at steps of the same ms."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.storage.memory import MemoryStorage
from dibs.storage.offsets import LAST_EVENT, format_offset, parse_offset
from dibs.storage.registry import open_storage
from dibs_conformance.sequential.log_pages import check_log_pages


@pytest.mark.parametrize("by", [-1, 1])
async def test_a_read_from_one_number_off_is_found(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug repeats the first entry of a read, or leaves one entry out."""
    original = MemoryStorage.events

    async def mutant(self: MemoryStorage, queue: str, *, after: str | None = None, **named: Any) -> Any:
        if after:
            number, index = parse_offset(after)
            after = format_offset(number + by, index) if index == LAST_EVENT else after
        return await original(self, queue, after=after, **named)

    monkeypatch.setattr(MemoryStorage, "events", mutant)

    async with open_storage("memory:", "manual") as storage:
        _, wrong = await check_log_pages(storage)

    assert wrong


async def test_the_storages_of_dibs_pass(any_new_url: str) -> None:
    async with open_storage(any_new_url, "manual") as storage:
        assert (15, []) == await check_log_pages(storage)
