"""When a checkpoint is due, and what a process that starts with one writes afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.storage.file import FileStorage, checkpoint
from dibs.storage.file.checkpoint import CheckpointTrigger
from tests.storage.file.folder import commit, commits, ids_in, opened, request

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("checkpoint_bytes", "commits", "size", "due"),
    [
        (0, 1, 4 * MIB, False),
        (0, 1, 4 * MIB + 1, True),
        (8 * MIB, 1, 8 * MIB, False),
        (8 * MIB, 1, 8 * MIB + 1, True),
        (0, 4096, 1, False),
        (0, 4097, 1, True),
        # One commit for each 4 KiB of the checkpoint: 5,120 of them.
        (20 * MIB, 5120, 1, False),
        (20 * MIB, 5121, 1, True),
    ],
)
def test_a_checkpoint_is_due_beyond_a_size_or_a_number_of_commits(
    checkpoint_bytes: int, commits: int, size: int, *, due: bool
) -> None:
    trigger = CheckpointTrigger()
    if checkpoint_bytes:
        trigger.reset(checkpoint_bytes)
    for _ in range(commits):
        trigger.add(size)

    assert due == trigger.is_due


@pytest.mark.parametrize("restart", [lambda one: one.reset(1), lambda one: one.postpone()])
def test_the_count_restarts_after_a_checkpoint(restart: object) -> None:
    trigger = CheckpointTrigger()
    for size in (4 * MIB + 1, *[1] * 4097):
        trigger.add(size)
    restart(trigger)  # type: ignore[operator]
    trigger.add(4 * MIB)
    for _ in range(4095):
        trigger.add(0)

    assert not trigger.is_due


async def test_a_checkpoint_removes_its_commits_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MIN_COMMIT_BYTES", 1000)
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request("a", b"x" * 400)])
        before = commits(tmp_path)
        await storage.enqueue("q", [request("b", b"x" * 600)])
        after = commits(tmp_path)

    assert [0, 1] == before
    assert [2] == after, "the commit of the checkpoint stays"
    assert (tmp_path / "checkpoint").is_file()
    assert ["a", "b"] == await ids_in(tmp_path)


async def test_the_first_commit_after_a_checkpoint_has_only_its_own_step(tmp_path: Path) -> None:
    """The index that a process reads from a checkpoint has no unwritten changes."""
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request(f"{n:03}") for n in range(200)])
        await storage.compact()
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request("last")])

    assert 1000 > commit(tmp_path, 2).stat().st_size
    assert 201 == len(await ids_in(tmp_path))


async def test_a_process_that_reads_a_checkpoint_knows_its_size(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request(f"{n:03}") for n in range(200)])
        await storage.compact()
        written = storage._replay.checkpoint_trigger.checkpoint_bytes
    async with opened(tmp_path) as storage:
        read = storage._replay.checkpoint_trigger.checkpoint_bytes

    assert (tmp_path / "checkpoint").stat().st_size == written == read


async def test_a_checkpoint_of_another_process_wakes_each_wait_once(tmp_path: Path) -> None:
    """The index is replaced, so a wait may have missed a change; the next wait has a new token."""
    async with opened(tmp_path, poll=0.01) as storage, opened(tmp_path) as other:
        await other.enqueue("q", [request("a")])
        await read(storage)
        await other.enqueue("q", [request("b")])
        await other.compact()
        await read(storage)
        since = (await storage.wait(["q"], timeout=0)).since
        await other.enqueue("elsewhere", [request("c")])

        assert not (await storage.wait(["q"], since=since, timeout=0.3)).woken


async def read(storage: FileStorage) -> None:
    await storage.get("q", ["a"])
