"""No room left, for real: refused, the old state intact, and all well again when there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.file.child import Child
from tests.storage.file.place import names

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
    """A process that may set how large its files may grow."""
    with Child(tmp_path / "jobs") as child:
        assert "opened" == child.answer()
        yield child


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Child]:
    """A process whose directory is on a file system of 256 KiB, which only it can see."""
    if not can_mount():
        pytest.skip("needs root and unshare -m, to mount a small tmpfs")
    mount = f'mount -t tmpfs -o size=256k tmpfs {tmp_path} && exec "$@"'
    with Child(tmp_path / "jobs", "unshare", "-m", "sh", "-c", mount, "sh") as child:
        assert "opened" == child.answer()
        yield child


def fill(child: Child, size: int) -> list[str]:
    """Enqueue until there is no room; the ids that were taken. The refusal is the right one."""
    taken: list[str] = []
    while "done" == (answer := child.ask("enqueue", [f"{len(taken):04}"], size)):
        taken.append(f"{len(taken):04}")

    assert "StorageFull" == answer["error"]
    assert "free some disk space" in answer["says"]
    return taken


def test_a_commit_that_may_not_grow_so_large_is_refused(limited: Child, tmp_path: Path) -> None:
    """EFBIG: nothing of it is there, smaller ones go on, and the same one works once it may."""
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
def test_refused_at_any_byte_of_a_commit_it_has_not_happened(
    limited: Child, tmp_path: Path, size: int
) -> None:
    """A disk that fills up takes some of the bytes first; the header counts 28."""
    assert "done" == limited.ask("enqueue", ["a"])
    limited.ask("largest_file", size)
    assert "StorageFull" == limited.ask("enqueue", ["b"], KIB)["error"]
    limited.ask("largest_file", -1)

    assert ["a"] == limited.ask("ids")
    assert 1 == len(names(tmp_path / "jobs" / "commits"))
    assert "done" == limited.ask("enqueue", ["b"], KIB)


def test_a_checkpoint_that_may_not_grow_so_large_costs_no_commit(limited: Child, tmp_path: Path) -> None:
    """The commits are all there; a checkpoint only makes opening faster, and comes later."""
    for number in range(20):
        assert "done" == limited.ask("enqueue", [f"{number:02}"], 10 * KIB)
    limited.ask("largest_file", 64 * KIB)
    assert "done" == limited.ask("checkpoint")

    assert "checkpoint" not in names(tmp_path / "jobs")
    assert [] == names(tmp_path / "jobs" / "tmp")
    assert "done" == limited.ask("enqueue", ["20"])
    limited.ask("largest_file", -1)
    assert "done" == limited.ask("checkpoint")
    assert [] == names(tmp_path / "jobs" / "commits")
    with Child(tmp_path / "jobs") as fresh:
        assert "opened" == fresh.answer()
        assert [f"{number:02}" for number in range(21)] == fresh.ask("ids")


def test_a_checkpoint_that_fails_is_not_tried_again_at_every_commit(limited: Child, tmp_path: Path) -> None:
    """It costs as much as everything that is kept; where there is no room it is put off."""
    limited.ask("least", 100 * KIB)
    limited.ask("largest_file", 100 * KIB)
    for id in ("a", "b"):
        assert not limited.ask("grown")
        assert "done" == limited.ask("enqueue", [id], 60 * KIB)

    assert not limited.ask("grown")
    assert "checkpoint" not in names(tmp_path / "jobs")
    limited.ask("largest_file", -1)
    for id in ("c", "d"):
        assert "done" == limited.ask("enqueue", [id], 60 * KIB)
    assert "checkpoint" in names(tmp_path / "jobs")


def test_a_full_disk_refuses_and_keeps_what_was_taken(small_disk: Child) -> None:
    """ENOSPC: again and again, and reading goes on all the while."""
    taken = fill(small_disk, 8 * KIB)

    assert len(taken) > 5
    assert taken == small_disk.ask("ids")
    for _ in range(5):
        assert "StorageFull" == small_disk.ask("enqueue", ["more"], 8 * KIB)["error"]
    assert taken == small_disk.ask("ids")


def test_a_full_disk_works_again_when_there_is_room(small_disk: Child) -> None:
    """Room that somebody else took and gave back."""
    small_disk.ask("ballast", 100 * KIB)
    taken = fill(small_disk, 8 * KIB)
    small_disk.ask("ballast", 0)

    assert "done" == small_disk.ask("enqueue", ["more"], 8 * KIB)
    assert [*taken, "more"] == small_disk.ask("ids")
    assert [*taken, "more"] == small_disk.ask("ids_anew")


def test_a_checkpoint_without_room_loses_nothing(small_disk: Child) -> None:
    """It needs room beside the commits it replaces; without it they stay."""
    taken = fill(small_disk, 8 * KIB)
    assert "done" == small_disk.ask("checkpoint")

    assert taken == small_disk.ask("ids")
    assert taken == small_disk.ask("ids_anew")
