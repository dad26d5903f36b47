"""Several processes on one directory at the same time: one active run per id, no job lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dibs.model.results import WaitResult
from dibs.storage.file import FileStorage
from tests.storage.file.child_process import Child
from tests.storage.file.folder import fill, opened, request


@pytest.fixture
def children(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(children: ExitStack, root: Path) -> Child:
    child = children.enter_context(Child(root))
    assert "opened" == child.answer()
    return child


def started(children: ExitStack, root: Path, count: int) -> list[Child]:
    """Start several processes at the same time, so that they may create the directory together."""
    many = [children.enter_context(Child(root)) for _ in range(count)]
    assert ["opened"] * count == [child.answer() for child in many]
    return many


def runs_in(log: Path) -> dict[str, list[tuple[str, int]]]:
    """Return the begins and ends in the log file per id, in their order."""
    runs_by_id: dict[str, list[tuple[str, int]]] = {}
    for line in log.read_text().splitlines():
        word, id, fence = line.split()
        runs_by_id.setdefault(id, []).append((word, int(fence)))
    return runs_by_id


def check_runs(runs_by_id: dict[str, list[tuple[str, int]]]) -> None:
    """Check that the runs of each id do not overlap, and that their fences grow."""
    for id, runs in runs_by_id.items():
        fences = [fence for _, fence in runs]

        assert ["begin", "end"] * (len(runs) // 2) == [word for word, _ in runs], id
        assert fences[::2] == fences[1::2] == sorted(set(fences)), id


@pytest.mark.parametrize(("processes", "jobs"), [(4, 60), pytest.param(8, 1250, marks=pytest.mark.chaos)])
async def test_processes_that_claim_and_enqueue_at_once_run_each_id_once_at_a_time(
    tmp_path: Path, children: ExitStack, processes: int, jobs: int
) -> None:
    """Many claims at once: each job is claimed once, shared ids run repeatedly, no job is lost."""
    root, log = tmp_path / "jobs", tmp_path / "log"
    log.touch()
    many = started(children, root, processes)
    for number, child in enumerate(many):
        child.send("enqueue", [f"own-{number}-{i}" for i in range(jobs)])
    assert ["done"] * processes == [child.answer() for child in many]
    for child in many:
        child.send("churn", 20)
        child.send("work", str(log))
    assert ["done"] * processes == [child.answer() for child in many]
    done = [child.answer() for child in many]
    runs_by_id = runs_in(log)
    check_runs(runs_by_id)
    async with opened(root) as storage:
        counts = (await storage.counts(["q"]))["q"]

    assert sum(done) == sum(len(runs) // 2 for runs in runs_by_id.values())
    assert all(2 == len(runs_by_id[f"own-{number}-{i}"]) for number in range(processes) for i in range(jobs))
    assert (0, 0, 0) == (counts.waiting, counts.active, counts.blocked)
    assert counts.completed == processes * jobs + 3


async def test_a_process_that_was_stopped_during_a_checkpoint_continues(
    tmp_path: Path, children: ExitStack
) -> None:
    """Another process removes commits that the stopped one has not read; it reads the checkpoint instead."""
    asleep, awake = started(children, tmp_path / "jobs", 2)
    assert "done" == asleep.ask("enqueue", ["a"])
    os.kill(asleep.pid, signal.SIGSTOP)
    for verb, words in (("enqueue", ["b"]), ("checkpoint", None), ("enqueue", ["c"]), ("checkpoint", None)):
        assert "done" == awake.ask(verb, *([words] if words else []))
    assert "done" == awake.ask("enqueue", ["d"])
    os.kill(asleep.pid, signal.SIGCONT)

    assert ["a", "b", "c", "d"] == asleep.ask("ids")
    assert "done" == asleep.ask("enqueue", ["e"])
    assert ["a", "b", "c", "d", "e"] == awake.ask("ids")


async def test_a_holder_that_was_stopped_past_its_lease_is_refused(
    tmp_path: Path, children: ExitStack
) -> None:
    """After the job was reaped and claimed by another process, the late end is lost and changes no job."""
    root = tmp_path / "jobs"
    await fill(root, "a", now=1000)
    late = start(children, root)
    [[_, old]] = late.ask("claim", 1000, 100)
    os.kill(late.pid, signal.SIGSTOP)
    async with opened(root) as storage:
        assert ["stalled"] == [one.kind for one in await storage.reap("q", 9, now=2000)]
        lease = (await storage.grant(["q"], 100, "h", now=2000)).lease
        [job] = (await storage.claim("q", lease, 1, now=2000)).jobs
        os.kill(late.pid, signal.SIGCONT)
        before = await storage.get("q", ["a"])

        assert "lost" == late.ask("complete", "a", old)
        assert before == await storage.get("q", ["a"])
        assert job.run is not None
        assert "done" == late.ask("complete", "a", job.run.fence)


async def test_a_killed_process_leaves_the_lock_free_and_its_lease_to_be_reaped(
    tmp_path: Path, children: ExitStack
) -> None:
    root = tmp_path / "jobs"
    await fill(root, "a", now=1000)
    dead = start(children, root)
    [[_, fence]] = dead.ask("claim", 1000, 100)
    os.kill(dead.pid, signal.SIGKILL)
    dead.process.wait()
    async with opened(root) as storage:
        assert [("a", fence, "stalled")] == [
            (r.id, r.fence, r.kind) for r in await storage.reap("q", 9, now=2000)
        ]


async def waiting_on(storage: FileStorage) -> asyncio.Task[WaitResult]:
    """Start a wait for work, and return it once it is registered and not yet woken."""
    token = (await storage.claim("q", "none", 1)).token
    task = asyncio.create_task(storage.wait(["q"], since={"q": token}))
    while not storage._wakeups._by_queue:  # noqa: ASYNC110 - the thread sends no event
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_an_enqueue_of_another_process_wakes_a_wait_before_the_poll(
    tmp_path: Path, children: ExitStack
) -> None:
    """The poll interval is ten minutes, so the watch must wake the wait."""
    other = start(children, tmp_path / "jobs")
    async with opened(tmp_path / "jobs", poll=600.0) as storage, asyncio.timeout(45):
        task = await waiting_on(storage)
        assert "done" == other.ask("enqueue", ["a"])

        assert (await task).woken


async def test_a_lost_notification_delays_a_wait_by_one_poll(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs", poll=0.02) as storage, opened(tmp_path / "jobs") as other:
        storage._watch = SilentWatch()  # type: ignore[assignment]
        task = await waiting_on(storage)
        await other.enqueue("q", [request("a")])

        assert (await task).woken


async def test_many_lost_notifications_delay_a_wait_by_one_poll(tmp_path: Path, children: ExitStack) -> None:
    """A stopped process gets notifications late or not at all; its next read finds all commits."""
    asleep, awake = started(children, tmp_path / "jobs", 2)
    asleep.send("wait", 0.0)
    assert asleep.answer() is False
    os.kill(asleep.pid, signal.SIGSTOP)
    for number in range(300):
        awake.send("enqueue", [f"{number:03}"])
    assert ["done"] * 300 == [awake.answer() for _ in range(300)]
    os.kill(asleep.pid, signal.SIGCONT)

    assert asleep.ask("wait", 45.0) is True
    assert 300 == len(asleep.ask("ids"))


class SilentWatch:
    """A watch without notifications, as after an overflow of inotify's queue."""

    def stop(self) -> None:
        """Do nothing."""
