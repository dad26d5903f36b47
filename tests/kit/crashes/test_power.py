"""What a power loss may leave of a disk; and that a forgotten fsync shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dibs_conformance.concurrent.calls import Call
from dibs_conformance.concurrent.disk_model import Deed, Disk, Recorder
from dibs_conformance.crashes.power_loss import LAW, QUEUE, Losing, Moment, recorded
from dibs_conformance.crashes.scenes import Way
from dibs_conformance.crashes.survivor import Witness
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.concurrent.test_levels import SHARED


def left(*deeds: Deed) -> list[dict[str, bytes]]:
    disk = Disk()
    for deed in deeds:
        disk.do(deed)
    return list(disk.after_power_loss())


WRITTEN = (Deed("create", "a"), Deed("write", "a", data=b"12"))


def test_what_was_not_synced_may_be_there_in_any_way() -> None:
    disks = left(*WRITTEN)

    assert 5 == len(disks)
    assert all(disk in disks for disk in ({}, {"a": b"12"}, {"a": b"1"}, {"a": b"\0\0"}, {"a": b""}))


def test_what_was_synced_is_there_whole_once_its_name_is() -> None:
    assert [{}, {"a": b"12"}] == left(*WRITTEN, Deed("sync", "a"))
    assert [{"a": b"12"}] == left(*WRITTEN, Deed("sync", "a"), Deed("sync", ""))


def test_a_name_that_moved_is_in_one_place_or_the_other() -> None:
    synced = (*WRITTEN, Deed("sync", "a"), Deed("sync", ""))

    assert [{"a": b"12"}, {"b": b"12"}] == left(*synced, Deed("rename", "a", "b"))
    assert [{"b": b"12"}] == left(*synced, Deed("rename", "a", "b"), Deed("sync", ""))


def test_a_removed_name_may_come_back() -> None:
    synced = (*WRITTEN, Deed("sync", "a"), Deed("sync", ""))

    assert [{"a": b"12"}, {}] == left(*synced, Deed("unlink", "a"))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Call], list[Deed]]:
    """What the file storage does to its disk when it promises to survive power loss."""
    return recorded(f"file:{tmp_path_factory.mktemp('recorded')}/jobs?fsync=1")


def failure(folder: Path, calls: Sequence[Call], deeds: Sequence[Deed], seconds: float) -> str | None:
    locations = Locations(f"file:{folder}?fsync=1")
    plan = LevelPlan(locations=locations, claims=SHARED, seed=1, budget=seconds)
    way: Way[Moment] = Way(*LAW, Witness.__new__(Witness), QUEUE, 1, fewest=1)
    losing = Losing(plan, way, list(calls), list(deeds))
    try:
        way.try_all(losing.moments(), losing.lose, time.monotonic() + seconds)
        assert way.histories
        return None if way.failure is None else way.failure.why
    finally:
        locations.remove_all()


def test_the_file_storage_keeps_what_it_answered(tmp_path: Path, told: tuple[list[Call], list[Deed]]) -> None:
    assert failure(tmp_path, *told, seconds=3) is None


@pytest.mark.parametrize(
    "forgotten",
    [
        lambda deed: deed.kind == "sync" and deed.path == "commits",
        lambda deed: deed.kind == "sync" and deed.path.startswith("tmp/0"),
        lambda deed: deed.kind == "sync" and deed.path == "tmp/checkpoint",
    ],
    ids=["of the folder", "of a commit", "of a checkpoint"],
)
def test_a_forgotten_fsync_is_caught(
    tmp_path: Path, told: tuple[list[Call], list[Deed]], forgotten: Callable[[Deed], bool]
) -> None:
    calls, deeds = told
    kept = [deed for deed in deeds if not forgotten(deed)]

    assert len(kept) < len(deeds)
    assert failure(tmp_path, calls, kept, seconds=60) is not None


def test_a_recorder_is_for_what_is_below_its_folder(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "here")

    assert "a" == recorder._below(tmp_path / "here" / "a")
    assert recorder._below(tmp_path / "a") is None
