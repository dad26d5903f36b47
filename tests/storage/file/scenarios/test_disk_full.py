"""A full disk and a limit on file sizes: writes are refused, the jobs stay, and writes work again later."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.file.child_process import Child
from tests.storage.file.folder import commits, names

KIB = 1024


def can_mount() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Child]:
    """A process that can limit the size of its files."""
    with Child(tmp_path / "jobs") as child:
        assert "opened" == child.answer()
        yield child


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Child]:
    """A process whose directory is on its own file system of 256 KiB."""
    if not can_mount():
        pytest.skip("needs root and unshare -m, to mount a small tmpfs")
    mount = f'mount -t tmpfs -o size=256k tmpfs {tmp_path} && exec "$@"'
    with Child(tmp_path / "jobs", "unshare", "-m", "sh", "-c", mount, "sh") as child:
        assert "opened" == child.answer()
        yield child


def fill(child: Child, size: int) -> list[str]:
    """Enqueue until the disk is full, check the error, and return the accepted ids."""
    taken: list[str] = []
    while "done" == (answer := child.ask("enqueue", [f"{len(taken):04}"], size)):
        taken.append(f"{len(taken):04}")

    assert "StorageFull" == answer["error"]
    assert "free some disk space" in answer["message"]
    return taken


def test_a_commit_above_the_file_size_limit_is_refused(limited: Child, tmp_path: Path) -> None:
    """EFBIG: the step has no effect, smaller commits work, and so does the same commit without the limit."""
    assert "done" == limited.ask("enqueue", ["a"])
    limited.ask("largest_file", 64 * KIB)
    answer = limited.ask("enqueue", ["b"], 100 * KIB)

    assert "StorageFull" == answer["error"]
    assert ["a"] == limited.ask("ids")
    assert [] == names(tmp_path / "jobs" / "tmp")
    assert "done" == limited.ask("enqueue", ["c"])
    limited.ask("largest_file", -1)
    assert "done" == limited.ask("enqueue", ["b"], 100 * KIB)
    with Child(tmp_path / "jobs") as fresh:
        assert "opened" == fresh.answer()
        assert ["a", "b", "c"] == fresh.ask("ids")


@pytest.mark.parametrize("size", [0, 1, 27, 28, 29, 100, 200])
def test_a_commit_refused_at_any_byte_has_no_effect(limited: Child, tmp_path: Path, size: int) -> None:
    """A disk that fills up writes some of the bytes first. The header has 28 bytes."""
    assert "done" == limited.ask("enqueue", ["a"])
    limited.ask("largest_file", size)
    assert "StorageFull" == limited.ask("enqueue", ["b"], KIB)["error"]
    limited.ask("largest_file", -1)

    assert ["a"] == limited.ask("ids")
    assert [0, 1] == commits(tmp_path / "jobs")
    assert "done" == limited.ask("enqueue", ["b"], KIB)


def test_a_checkpoint_above_the_file_size_limit_loses_no_commit(limited: Child, tmp_path: Path) -> None:
    """The commits stay; a checkpoint only makes opening faster, and is written later."""
    for number in range(20):
        assert "done" == limited.ask("enqueue", [f"{number:02}"], 10 * KIB)
    limited.ask("largest_file", 64 * KIB)
    assert "done" == limited.ask("checkpoint")

    assert "checkpoint" not in names(tmp_path / "jobs")
    assert [] == names(tmp_path / "jobs" / "tmp")
    assert "done" == limited.ask("enqueue", ["20"])
    limited.ask("largest_file", -1)
    assert "done" == limited.ask("checkpoint")
    assert [21] == commits(tmp_path / "jobs")
    with Child(tmp_path / "jobs") as fresh:
        assert "opened" == fresh.answer()
        assert [f"{number:02}" for number in range(21)] == fresh.ask("ids")


def test_a_failed_checkpoint_is_not_repeated_at_every_commit(limited: Child, tmp_path: Path) -> None:
    """A checkpoint writes all jobs, so the next attempt is postponed."""
    limited.ask("least", 100 * KIB)
    limited.ask("largest_file", 100 * KIB)
    for id in ("a", "b"):
        assert not limited.ask("checkpoint_is_due")
        assert "done" == limited.ask("enqueue", [id], 60 * KIB)

    assert not limited.ask("checkpoint_is_due")
    assert "checkpoint" not in names(tmp_path / "jobs")
    limited.ask("largest_file", -1)
    for id in ("c", "d"):
        assert "done" == limited.ask("enqueue", [id], 60 * KIB)
    assert "checkpoint" in names(tmp_path / "jobs")


def test_a_full_disk_refuses_writes_and_keeps_the_jobs(small_disk: Child) -> None:
    """ENOSPC: every write is refused, and reads work."""
    taken = fill(small_disk, 8 * KIB)

    assert len(taken) > 5
    assert taken == small_disk.ask("ids")
    for _ in range(5):
        assert "StorageFull" == small_disk.ask("enqueue", ["more"], 8 * KIB)["error"]
    assert taken == small_disk.ask("ids")


def test_writes_work_again_after_space_is_freed(small_disk: Child) -> None:
    """Another file takes the space, and is removed."""
    small_disk.ask("ballast", 100 * KIB)
    taken = fill(small_disk, 8 * KIB)
    small_disk.ask("ballast", 0)

    assert "done" == small_disk.ask("enqueue", ["more"], 8 * KIB)
    assert [*taken, "more"] == small_disk.ask("ids")
    assert [*taken, "more"] == small_disk.ask("ids_from_disk")


def test_a_checkpoint_on_a_full_disk_loses_no_job(small_disk: Child) -> None:
    """A checkpoint needs space in addition to the commits that it replaces, so the commits stay."""
    taken = fill(small_disk, 8 * KIB)
    assert "done" == small_disk.ask("checkpoint")

    assert taken == small_disk.ask("ids")
    assert taken == small_disk.ask("ids_from_disk")


@pytest.mark.parametrize("size", [100, 8 * KIB])
@pytest.mark.parametrize("by_others", [False, True])
def test_a_full_disk_can_be_emptied_by_workers(
    small_disk: Child,
    size: int,
    by_others: bool,  # noqa: FBT001
) -> None:
    """Grants, claims and ends work, one by one, until the queue is empty. Then a job is accepted."""
    taken = fill(small_disk, size)
    if by_others:
        # Another program takes what is left, so that not even a file of one byte has space.
        small_disk.ask("fill_disk")
    for _ in taken:
        [[id, fence]] = small_disk.ask("claim", 1000, 100_000)
        assert "done" == small_disk.ask("complete", id, fence)

    assert [] == small_disk.ask("ids") == small_disk.ask("ids_from_disk")
    small_disk.ask("ballast", 0)
    assert "done" == small_disk.ask("enqueue", ["again"], size)


@pytest.mark.parametrize("verb", ["cancel", "forget"])
def test_a_full_disk_can_be_emptied_by_one_call(small_disk: Child, verb: str) -> None:
    taken = fill(small_disk, 8 * KIB)
    small_disk.ask("fill_disk")
    assert "StorageFull" == small_disk.ask("enqueue", ["more"])["error"]
    assert "done" == small_disk.ask(verb, taken)
    small_disk.ask("ballast", 0)

    assert [] == small_disk.ask("ids_from_disk")
    assert "done" == small_disk.ask("enqueue", ["again"], 8 * KIB)


def test_a_step_that_does_not_fit_the_reserve_has_no_effect_and_keeps_it(small_disk: Child) -> None:
    taken = fill(small_disk, 8 * KIB)
    small_disk.ask("fill_disk")
    [[id, fence]] = small_disk.ask("claim", 1000, 100_000)
    for _ in range(3):
        assert "StorageFull" == small_disk.ask("complete", id, fence, 250 * KIB)["error"]

    assert "done" == small_disk.ask("complete", id, fence)
    assert taken[1:] == small_disk.ask("ids_from_disk")


def test_the_reserve_follows_the_size_of_the_jobs(limited: Child, tmp_path: Path) -> None:
    reserve = tmp_path / "jobs" / "reserve"
    for number in range(40):
        assert "done" == limited.ask("enqueue", [f"{number:02}"], 20 * KIB)
    assert 800 * KIB < reserve.stat().st_size < 1300 * KIB
    assert 512 * reserve.stat().st_blocks >= reserve.stat().st_size, "it has space for all of its bytes"
    assert "done" == limited.ask("cancel", [f"{number:02}" for number in range(40)])
    assert "done" == limited.ask("checkpoint")

    assert 32 * KIB < reserve.stat().st_size < 100 * KIB
