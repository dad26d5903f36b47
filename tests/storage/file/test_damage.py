"""A torn end is set aside; damage anywhere else is refused with the file named, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.errors import StorageDamaged
from tests.storage.file.place import commit, cut, fill, flip, ids_in, opened, request


@pytest.mark.parametrize("length", [0, 1, 27, 28, 40, -1])
async def test_a_torn_last_commit_is_set_aside_and_the_earlier_ones_are_kept(
    tmp_path: Path, length: int
) -> None:
    """A power loss took it: its step did not happen."""
    await fill(tmp_path, "a", "b", "c")
    last = commit(tmp_path, 3)
    cut(last, length % last.stat().st_size)

    assert ["a", "b"] == await ids_in(tmp_path)
    await fill(tmp_path, "d")

    assert ["a", "b", "d"] == await ids_in(tmp_path)
    assert (tmp_path / "tmp" / f"torn-{last.name}").exists()


async def test_a_torn_last_commit_is_only_passed_over_by_who_reads(tmp_path: Path) -> None:
    """Only under the lock is it sure that nobody has put a good one in its place."""
    await fill(tmp_path, "a", "b")
    flip(commit(tmp_path, 2))

    assert ["a"] == await ids_in(tmp_path)
    assert commit(tmp_path, 2).exists()


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
async def test_a_damaged_commit_in_the_middle_is_refused_by_its_name(tmp_path: Path, how: str) -> None:
    """Others have built on it: going on without it would undo what they were told."""
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


async def checkpointed(root: Path) -> Path:
    """A directory whose commits are all in its checkpoint, of several frames."""
    await fill(root, "a", "b")
    async with opened(root) as storage:
        await storage.enqueue("r", [request("c")])
        storage._checkpoint()
    return root / "checkpoint"


async def test_each_truncation_of_a_checkpoint_is_damage(tmp_path: Path) -> None:
    """Also between two frames, where every frame that is left is whole; and down to nothing."""
    path = await checkpointed(tmp_path)
    for length in range(path.stat().st_size - 1, -1, -1):
        cut(path, length)
        with pytest.raises(StorageDamaged) as caught:
            await ids_in(tmp_path)

        assert str(path) in str(caught.value)


async def test_each_flipped_byte_of_a_checkpoint_is_damage(tmp_path: Path) -> None:
    path = await checkpointed(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole)
        flip(path, place)
        with pytest.raises(StorageDamaged):
            await ids_in(tmp_path)
    path.write_bytes(whole)

    assert ["a", "b"] == await ids_in(tmp_path)


async def test_a_checkpoint_that_is_gone_with_commits_behind_it_is_damage(tmp_path: Path) -> None:
    path = await checkpointed(tmp_path)
    await fill(tmp_path, "d")
    path.unlink()

    with pytest.raises(StorageDamaged):
        await ids_in(tmp_path)


async def test_a_checkpoint_with_something_behind_its_end_is_damage(tmp_path: Path) -> None:
    path = await checkpointed(tmp_path)
    path.write_bytes(path.read_bytes() * 2)

    with pytest.raises(StorageDamaged):
        await ids_in(tmp_path)


async def test_commits_that_a_checkpoint_stands_for_are_passed_over(tmp_path: Path) -> None:
    """A process killed between the checkpoint and the removal of commits leaves them; all is well."""
    await fill(tmp_path, "a", "b")
    left = commit(tmp_path, 1).read_bytes()
    async with opened(tmp_path) as storage:
        storage._checkpoint()
    commit(tmp_path, 1).write_bytes(left)
    commit(tmp_path, 1).chmod(0o600)

    assert ["a", "b"] == await ids_in(tmp_path)
    await fill(tmp_path, "c")
    async with opened(tmp_path) as storage:
        storage._checkpoint()

    assert ["a", "b", "c"] == await ids_in(tmp_path)
    assert [] == list((tmp_path / "commits").iterdir())


async def test_a_storage_restored_from_a_copy_draws_no_fence_twice(tmp_path: Path) -> None:
    """Contract 1: numbers are at least now in us, so what the lost hours drew is not drawn again."""
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
