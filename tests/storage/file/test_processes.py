"""Several real processes on one directory at once: one active run per id, nothing lost."""

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
from tests.storage.file.child import Child
from tests.storage.file.place import fill, opened, request


@pytest.fixture
def children(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(children: ExitStack, root: Path) -> Child:
    child = children.enter_context(Child(root))
    assert "opened" == child.answer()
    return child


def started(children: ExitStack, root: Path, count: int) -> list[Child]:
    """Start them all at the same time: they may meet while the directory is made."""
    many = [children.enter_context(Child(root)) for _ in range(count)]
    assert ["opened"] * count == [child.answer() for child in many]
    return many


def told_by(log: Path) -> dict[str, list[tuple[str, int]]]:
    """What the book says, per id, in the order in which it was written."""
    told: dict[str, list[tuple[str, int]]] = {}
    for line in log.read_text().splitlines():
        word, id, fence = line.split()
        told.setdefault(id, []).append((word, int(fence)))
    return told


def check_runs(told: dict[str, list[tuple[str, int]]]) -> None:
    """Runs of an id follow one another, and their fences grow."""
    for id, runs in told.items():
        fences = [fence for _, fence in runs]

        assert ["begin", "end"] * (len(runs) // 2) == [word for word, _ in runs], id
        assert fences[::2] == fences[1::2] == sorted(set(fences)), id


@pytest.mark.parametrize(("processes", "jobs"), [(4, 60), pytest.param(8, 1250, marks=pytest.mark.chaos)])
async def test_processes_that_claim_and_enqueue_at_once_run_each_id_once_at_a_time(
    tmp_path: Path, children: ExitStack, processes: int, jobs: int
) -> None:
    """Claim stampede: each job has one winner, the shared ids run again and again, nothing is lost."""
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
    told = told_by(log)
    check_runs(told)
    async with opened(root) as storage:
        counts = (await storage.counts(["q"]))["q"]

    assert sum(done) == sum(len(runs) // 2 for runs in told.values())
    assert all(2 == len(told[f"own-{number}-{i}"]) for number in range(processes) for i in range(jobs))
    assert (0, 0, 0) == (counts.waiting, counts.active, counts.blocked)
    assert counts.completed == processes * jobs + 3


async def test_a_process_that_slept_through_a_checkpoint_goes_on(tmp_path: Path, children: ExitStack) -> None:
    """Its next commits are gone; it finds the checkpoint instead, and misses nothing."""
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


async def test_a_holder_that_slept_past_its_lease_is_refused(tmp_path: Path, children: ExitStack) -> None:
    """Stop, reap, run elsewhere, continue: the late end is lost and changes nothing."""
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
    """A wait for work that is known to wait, and not yet to have been told anything."""
    token = (await storage.claim("q", "none", 1)).token
    task = asyncio.create_task(storage.wait(["q"], since={"q": token}))
    while not storage._wakeups._by_queue:  # noqa: ASYNC110 - nobody is told that the thread has joined it
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_an_enqueue_elsewhere_wakes_a_wait_without_waiting_for_the_poll(
    tmp_path: Path, children: ExitStack
) -> None:
    """The poll is ten minutes; the watch is what tells."""
    other = start(children, tmp_path / "jobs")
    async with opened(tmp_path / "jobs", poll=600.0) as storage, asyncio.timeout(45):
        task = await waiting_on(storage)
        assert "done" == other.ask("enqueue", ["a"])

        assert (await task).woken


async def test_a_lost_hint_costs_a_poll_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs", poll=0.02) as storage, opened(tmp_path / "jobs") as other:
        storage._watch = DeafWatch()  # type: ignore[assignment]
        task = await waiting_on(storage)
        await other.enqueue("q", [request("a")])

        assert (await task).woken


async def test_hints_lost_by_the_thousand_cost_one_poll(tmp_path: Path, children: ExitStack) -> None:
    """A process stopped while others commit is told too late, or not at all; its next look finds it all."""
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


class DeafWatch:
    """A watch that the system tells nothing, as when inotify's queue ran over."""

    def stop(self) -> None:
        """There is nothing to stop."""
