"""The replay of commits: those that this version of dibs cannot decode, and damaged ones before torn ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.errors import StorageDamaged
from dibs.storage.file.frames import encode_frame
from tests.storage.file.folder import commit, cut, fill, flip, ids_in, opened, request


async def test_the_error_for_a_commit_that_cannot_be_decoded_names_its_file(tmp_path: Path) -> None:
    await fill(tmp_path, "a", "b")
    commit(tmp_path, 2).write_bytes(encode_frame(2, b"\xc1"))

    with pytest.raises(StorageDamaged, match="cannot decode it") as caught:
        await ids_in(tmp_path)

    assert str(commit(tmp_path, 2)) in str(caught.value)


async def test_a_damaged_commit_before_a_torn_one_is_damage_and_stays(tmp_path: Path) -> None:
    """A power loss tears the last commits, but it flips no byte of a commit of full length."""
    await fill(tmp_path, "a", "b", "c")
    flip(commit(tmp_path, 2))
    cut(commit(tmp_path, 3), 5)

    with pytest.raises(StorageDamaged):
        async with opened(tmp_path) as storage:
            await storage.enqueue("q", [request("d")], now=1000)

    assert commit(tmp_path, 2).exists()
    assert commit(tmp_path, 3).exists()
    with pytest.raises(StorageDamaged):
        await ids_in(tmp_path)
