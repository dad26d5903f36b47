"""Numbers of a copy of a folder: the original has drawn later ones, which the copy does not know."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dibs.storage.file import open_url
from dibs_conformance.sequential.client_clock import shifted_clock
from tests.storage.failovers import SKEWS, check_after_loss, enqueue, play_rounds


@pytest.mark.parametrize("skew", SKEWS)
async def test_a_restored_copy_repeats_no_number(tmp_path: Path, skew: int) -> None:
    folder, backup = tmp_path / "jobs", tmp_path / "backup"
    async with open_url(f"file:{folder}") as storage:
        kept = await play_rounds(storage, 3)
        shutil.copytree(folder, backup)
        lost = await play_rounds(storage)
    shutil.rmtree(folder)
    backup.rename(folder)
    with shifted_clock(1000 * skew):
        async with open_url(f"file:{folder}") as storage:
            await check_after_loss(storage, kept, lost)


async def test_a_copy_jumps_once(tmp_path: Path) -> None:
    original, copy = tmp_path / "jobs", tmp_path / "copy"
    async with open_url(f"file:{original}") as storage:
        (first,) = await enqueue(storage, "a")
    shutil.copytree(original, copy)
    async with open_url(f"file:{copy}") as storage, open_url(f"file:{copy}") as other:
        (second,) = await enqueue(storage, "b")
        (third,) = await enqueue(other, "c")
    async with open_url(f"file:{copy}") as storage:
        (fourth,) = await enqueue(storage, "d")
    hour = 3_600_000_000

    assert [1, 1, 1] == [(number - first) // hour for number in (second, third, fourth)]
    assert second < third < fourth
