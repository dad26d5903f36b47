"""Damaged files: a damaged last commit is set aside, any other damage is an error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.errors import StorageDamaged
from tests.storage.file.folder import commit, cut, fill, flip, ids_in, opened, request


@pytest.mark.parametrize("length", [0, 1, 27, 28, 40, -1])
async def test_a_torn_last_commit_is_set_aside_and_earlier_ones_are_kept(tmp_path: Path, length: int) -> None:
    """It is the trace of a power loss, and its step has no effect."""
    await fill(tmp_path, "a", "b", "c")
    last = commit(tmp_path, 3)
    cut(last, length % last.stat().st_size)

    assert ["a", "b"] == await ids_in(tmp_path)
    await fill(tmp_path, "d")

    assert ["a", "b", "d"] == await ids_in(tmp_path)
    assert (tmp_path / "tmp" / f"torn-{last.name}").exists()


async def test_a_reader_leaves_a_torn_last_commit_where_it_is(tmp_path: Path) -> None:
    """Without the lock, another process may already have replaced it by a valid commit."""
    await fill(tmp_path, "a", "b")
    flip(commit(tmp_path, 2))

    assert ["a"] == await ids_in(tmp_path)
    assert commit(tmp_path, 2).exists()


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
async def test_a_damaged_commit_in_the_middle_is_an_error_that_names_it(tmp_path: Path, how: str) -> None:
    """Later commits depend on it, so a replay without it would undo answered calls."""
    await fill(tmp_path, "a", "b", "c")
    middle = commit(tmp_path, 2)
    if how == "cut":
        cut(middle, 40)
    elif how == "flipped":
        flip(middle)
    else:
        middle.unlink()

    for attempt in (ids_in(tmp_path), fill(tmp_path, "d")):
        with pytest.raises(StorageDamaged) as caught:
            await attempt
        assert str(middle) in str(caught.value)
    assert not commit(tmp_path, 4).exists()


async def with_checkpoint(root: Path) -> Path:
    """Create a directory without commits, with a checkpoint of several frames."""
    await fill(root, "a", "b")
    async with opened(root) as storage:
        await storage.enqueue("r", [request("c")])
        storage._write_checkpoint()
    return root / "checkpoint"


async def test_each_truncation_of_a_checkpoint_is_damage(tmp_path: Path) -> None:
    """Also a truncation between two frames, which leaves only complete frames, and an empty file."""
    path = await with_checkpoint(tmp_path)
    for length in range(path.stat().st_size - 1, -1, -1):
        cut(path, length)
        with pytest.raises(StorageDamaged) as caught:
            await ids_in(tmp_path)

        assert str(path) in str(caught.value)


async def test_each_flipped_byte_of_a_checkpoint_is_damage(tmp_path: Path) -> None:
    path = await with_checkpoint(tmp_path)
    whole = path.read_bytes()
    for index in range(0, len(whole), 3):
        path.write_bytes(whole)
        flip(path, index)
        with pytest.raises(StorageDamaged):
            await ids_in(tmp_path)
    path.write_bytes(whole)

    assert ["a", "b"] == await ids_in(tmp_path)


async def test_a_missing_checkpoint_before_later_commits_is_damage(tmp_path: Path) -> None:
    path = await with_checkpoint(tmp_path)
    await fill(tmp_path, "d")
    path.unlink()

    with pytest.raises(StorageDamaged):
        await ids_in(tmp_path)


async def test_a_checkpoint_with_data_after_its_end_is_damage(tmp_path: Path) -> None:
    path = await with_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes() * 2)

    with pytest.raises(StorageDamaged):
        await ids_in(tmp_path)


async def test_commits_that_are_in_the_checkpoint_are_skipped(tmp_path: Path) -> None:
    """A process that is killed between writing a checkpoint and removing the commits leaves such commits."""
    await fill(tmp_path, "a", "b")
    left = commit(tmp_path, 1).read_bytes()
    async with opened(tmp_path) as storage:
        storage._write_checkpoint()
    commit(tmp_path, 1).write_bytes(left)
    commit(tmp_path, 1).chmod(0o600)

    assert ["a", "b"] == await ids_in(tmp_path)
    await fill(tmp_path, "c")
    async with opened(tmp_path) as storage:
        storage._write_checkpoint()

    assert ["a", "b", "c"] == await ids_in(tmp_path)
    assert [] == list((tmp_path / "commits").iterdir())


async def test_a_storage_restored_from_a_copy_draws_no_fence_twice(tmp_path: Path) -> None:
    """Contract 1: numbers are at least the time in us, so the numbers after the copy are not drawn again."""
    await fill(tmp_path / "jobs", "a", now=1000)
    copy = {path: path.read_bytes() for path in (tmp_path / "jobs").rglob("*") if path.is_file()}
    lost = await one_fence(tmp_path / "jobs", now=2000)
    for path in (tmp_path / "jobs" / "commits").iterdir():
        path.unlink()
    for path, content in copy.items():
        path.write_bytes(content)

    assert lost < await one_fence(tmp_path / "jobs", now=2001)


async def one_fence(root: Path, now: int) -> int:
    async with opened(root) as storage:
        lease = (await storage.grant(["q"], 100, "h", now=now)).lease
        run = (await storage.claim("q", lease, 1, now=now)).jobs[0].run
        assert run is not None
        return run.fence
