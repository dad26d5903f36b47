"""The disk states possible after a power loss; and detection of a forgotten fsync."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dibs_conformance.crashes.disk_model import DiskModel, DiskOperation, DiskRecorder
from dibs_conformance.crashes.power_loss import LAW, QUEUE, PowerLossChecker, PowerLossPoint, record_process
from dibs_conformance.crashes.scenes import FaultCampaign, Survivor
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs.actions import ClientCall
from tests.kit.concurrent.test_levels import SHARED


def possible_disks(*operations: DiskOperation) -> list[dict[str, bytes]]:
    disk = DiskModel()
    for operation in operations:
        disk.apply(operation)
    return list(disk.after_power_loss())


WRITTEN = (DiskOperation("create", "a"), DiskOperation("write", "a", data=b"12"))


def test_unsynced_content_may_survive_in_any_way() -> None:
    disks = possible_disks(*WRITTEN)

    assert 5 == len(disks)
    assert all(disk in disks for disk in ({}, {"a": b"12"}, {"a": b"1"}, {"a": b"\0\0"}, {"a": b""}))


def test_synced_content_is_complete_if_its_name_survives() -> None:
    assert [{}, {"a": b"12"}] == possible_disks(*WRITTEN, DiskOperation("sync", "a"))
    assert [{"a": b"12"}] == possible_disks(*WRITTEN, DiskOperation("sync", "a"), DiskOperation("sync", ""))


def test_a_renamed_file_has_the_old_or_the_new_name() -> None:
    synced = (*WRITTEN, DiskOperation("sync", "a"), DiskOperation("sync", ""))

    assert [{"a": b"12"}, {"b": b"12"}] == possible_disks(*synced, DiskOperation("rename", "a", "b"))
    assert [{"b": b"12"}] == possible_disks(
        *synced, DiskOperation("rename", "a", "b"), DiskOperation("sync", "")
    )


def test_a_removed_name_may_come_back() -> None:
    synced = (*WRITTEN, DiskOperation("sync", "a"), DiskOperation("sync", ""))

    assert [{"a": b"12"}, {}] == possible_disks(*synced, DiskOperation("unlink", "a"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[ClientCall], list[DiskOperation]]:
    """Calls and file operations of the file storage with fsync=1."""
    url = f"file:{tmp_path_factory.mktemp('recorded')}/jobs?fsync=1"
    return record_process(Locations(url), url)


def failure(
    folder: Path, calls: Sequence[ClientCall], operations: Sequence[DiskOperation], seconds: float
) -> str | None:
    locations = Locations(f"file:{folder}?fsync=1")
    plan = LevelPlan(locations=locations, claims=SHARED, seed=1, budget=seconds)
    campaign: FaultCampaign[PowerLossPoint] = FaultCampaign(*LAW, Survivor(), QUEUE, 1, min_points=1)
    checker = PowerLossChecker(plan, campaign, list(calls), list(operations))
    try:
        campaign.run(checker.points(), checker.check_point, time.monotonic() + seconds)
        assert campaign.histories
        return None if campaign.failure is None else campaign.failure.why
    finally:
        locations.remove_all()


def test_the_file_storage_keeps_answered_calls(
    tmp_path: Path, recording: tuple[list[ClientCall], list[DiskOperation]]
) -> None:
    assert failure(tmp_path, *recording, seconds=3) is None


@pytest.mark.parametrize(
    "forgotten",
    [
        lambda operation: operation.kind == "sync" and operation.path == "commits",
        lambda operation: operation.kind == "sync" and operation.path.startswith("tmp/0"),
        lambda operation: operation.kind == "sync" and operation.path == "tmp/checkpoint",
    ],
    ids=["of the folder", "of a commit", "of a checkpoint"],
)
def test_a_forgotten_fsync_is_caught(
    tmp_path: Path,
    recording: tuple[list[ClientCall], list[DiskOperation]],
    forgotten: Callable[[DiskOperation], bool],
) -> None:
    calls, operations = recording
    remaining = [operation for operation in operations if not forgotten(operation)]

    assert len(remaining) < len(operations)
    assert failure(tmp_path, calls, remaining, seconds=60) is not None


def test_a_recorder_ignores_files_outside_its_folder(tmp_path: Path) -> None:
    recorder = DiskRecorder(tmp_path / "here")

    assert "a" == recorder._relative_path(tmp_path / "here" / "a")
    assert recorder._relative_path(tmp_path / "a") is None
