"""Damaged files: incomplete last commits are set aside, any other damage is an error that names the file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dibs.errors import StorageDamaged
from tests.storage.file.folder import commit, commits, cut, fill, flip, ids_in, opened, place, request


@pytest.mark.parametrize("length", [0, 1, 27, 28, 40, -1])
async def test_a_torn_last_commit_is_set_aside_and_earlier_ones_are_kept(tmp_path: Path, length: int) -> None:
    """An incomplete last commit comes from a power loss. Its step has no effect."""
    await fill(tmp_path, "a", "b", "c")
    last = commit(tmp_path, 3)
    cut(last, length % last.stat().st_size)

    assert ["a", "b"] == await ids_in(tmp_path)
    await fill(tmp_path, "d")

    assert ["a", "b", "d"] == await ids_in(tmp_path)
    assert (tmp_path / "tmp" / f"torn-{last.name}").exists()


async def test_a_reader_leaves_a_torn_last_commit_where_it_is(tmp_path: Path) -> None:
    """A reader does not hold the lock, so another process may have replaced the commit by a valid one."""
    await fill(tmp_path, "a", "b")
    cut(commit(tmp_path, 2), 40)

    assert ["a"] == await ids_in(tmp_path)
    assert commit(tmp_path, 2).exists()


async def large_commit(root: Path) -> bytes:
    """Commit an enqueue of several blocks after a small one, and return the file of the large one."""
    await fill(root, "a")
    async with opened(root) as storage:
        await storage.enqueue("q", [request("b", os.urandom(5000))])
    return commit(root, 2).read_bytes()


LOST_BLOCKS = {
    "all": slice(0, None),
    "the first sector": slice(0, 512),
    "a sector in the middle": slice(1024, 1536),
    "the second page": slice(4096, None),
}


@pytest.mark.parametrize("lost", LOST_BLOCKS.values(), ids=LOST_BLOCKS)
async def test_a_last_commit_with_zeros_in_place_of_blocks_is_set_aside(tmp_path: Path, lost: slice) -> None:
    """A file system may store the new size of a file before its blocks: it reads as zeros."""
    content = bytearray(await large_commit(tmp_path))
    content[lost] = bytes(len(content[lost]))
    commit(tmp_path, 2).write_bytes(content)
    await fill(tmp_path, "c")

    assert ["a", "c"] == await ids_in(tmp_path)
    assert bytes(content) == (tmp_path / "tmp" / f"torn-{commit(tmp_path, 2).name}").read_bytes()


@pytest.mark.parametrize("fsync", [False, True])
async def test_each_flipped_byte_of_the_last_commit_is_damage(tmp_path: Path, fsync: bool) -> None:  # noqa: FBT001
    """A power loss does not flip a byte. Setting the commit aside would lose an answered call in silence."""
    await fill(tmp_path, "a", "b")
    last = commit(tmp_path, 2)
    content = last.read_bytes()
    for index in range(len(content)):
        last.write_bytes(content)
        flip(last, index)
        for attempt in (ids_in(tmp_path, fsync=fsync), fill(tmp_path, "c", fsync=fsync)):
            with pytest.raises(StorageDamaged) as caught:
                await attempt
            assert str(last) in str(caught.value)
    last.write_bytes(content)

    assert ["a", "b"] == await ids_in(tmp_path)


@pytest.mark.parametrize("index", [0, 20, 600, 4500, -1])
async def test_a_flipped_byte_of_a_large_last_commit_is_damage(tmp_path: Path, index: int) -> None:
    await large_commit(tmp_path)
    flip(commit(tmp_path, 2), index)

    with pytest.raises(StorageDamaged):
        await fill(tmp_path, "c")


@pytest.mark.parametrize("length", [0, 40, 4096])
async def test_with_fsync_an_incomplete_last_commit_is_damage(tmp_path: Path, length: int) -> None:
    """With fsync, a commit is synced before its rename, so a power loss is not the cause of the damage.

    A process without fsync opens the directory.
    """
    await large_commit(tmp_path)
    cut(commit(tmp_path, 2), length)

    for attempt in (ids_in(tmp_path, fsync=True), fill(tmp_path, "c", fsync=True)):
        with pytest.raises(StorageDamaged, match="once without fsync"):
            await attempt
    await fill(tmp_path, "c")
    assert ["a", "c"] == await ids_in(tmp_path, fsync=True)


@pytest.mark.parametrize("lengths", [(0, 0, 0), (40, 0, 30), (0, 40, 28)])
async def test_several_incomplete_last_commits_are_set_aside(
    tmp_path: Path, lengths: tuple[int, int, int]
) -> None:
    """Without fsync, a power loss may leave all commits of the last seconds empty."""
    await fill(tmp_path, "a", "b", "c", "d")
    for number, length in enumerate(lengths, 2):
        cut(commit(tmp_path, number), length)

    assert ["a"] == await ids_in(tmp_path)
    await fill(tmp_path, "e")

    assert ["a", "e"] == await ids_in(tmp_path)
    assert 3 == len(list((tmp_path / "tmp").glob("torn-*")))


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "device"])
async def test_a_last_commit_that_is_not_a_regular_file_is_damage(tmp_path: Path, kind: str) -> None:
    await fill(tmp_path, "a", "b")
    commit(tmp_path, 2).unlink()
    place(kind, commit(tmp_path, 2))

    for attempt in (ids_in(tmp_path), fill(tmp_path, "c")):
        with pytest.raises(StorageDamaged):
            await attempt


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("removed", ["format", "commits", "commits/*", "checkpoint", "checkpoint commits/*"])
@pytest.mark.parametrize("state", ["new", "commits", "checkpoint"])
async def test_a_folder_without_some_of_its_files_is_not_opened_as_an_empty_storage(
    tmp_path: Path,
    fsync: bool,  # noqa: FBT001
    state: str,
    removed: str,
) -> None:
    if ("checkpoint" in removed and state != "checkpoint") or (state == "new" and removed == "format"):
        pytest.skip("there is no such file, or the folder was new")
    await fill(tmp_path, *([] if state == "new" else "ab"))
    if state == "checkpoint":
        async with opened(tmp_path) as storage:
            await storage.compact()
    for path in [found for name in removed.split() for found in tmp_path.glob(name)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(StorageDamaged, match="missing"):
        await fill(tmp_path, "c", fsync=fsync)
    assert before == sorted(tmp_path.rglob("*"))


async def test_a_missing_folder_for_temporary_files_is_created(tmp_path: Path) -> None:
    """Tools that copy only files leave out empty folders."""
    await fill(tmp_path, "a")
    (tmp_path / "tmp").rmdir()
    await fill(tmp_path, "b")

    assert ["a", "b"] == await ids_in(tmp_path)


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
async def test_a_damaged_commit_in_the_middle_is_an_error_that_names_it(tmp_path: Path, how: str) -> None:
    """Later commits depend on the damaged one, so a replay without it would undo answered calls."""
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
    """This includes an empty file, and a truncation between two frames, which leaves only complete frames."""
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
    assert [3] == commits(tmp_path)


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
