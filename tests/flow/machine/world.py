"""The world of the machine: a storage on a manual clock, processes, and what operators do to flows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from attrs import define, field

from dibs.cli.commands.move import move
from dibs.maintenance import flow_repair
from dibs.model.job import Error, Job
from dibs.model.requests import Cancelled, Complete, End, Fail
from dibs.model.run_outcome import HandedOff, Raised, Returned, Verdict
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.protocol import Storage
from dibs.testing.clock import ManualClock
from tests.flow.machine.graphs import QUEUES, Fate, FlowSpec, label_of
from tests.flow.machine.laws import BrokenLaw, check_start, require
from tests.flow.machine.ledger import Ledger, Recorder
from tests.flow.machine.process import Fault, Process

LEASE_MS: Final = 30_000
ALL_QUEUES: Final = (FLOWS, EVALUATIONS, *QUEUES)
#: Returns a new, empty storage with a manual clock.
NewStorage = Callable[[], Storage]


@define(eq=False)
class World:
    """Two processes on one storage, and the flows that were enqueued."""

    _new_storage: NewStorage
    recorder: Recorder
    processes: list[Process]
    storages: list[Storage]
    specs: dict[str, FlowSpec] = field(factory=dict)
    #: For each node that one flow enqueues: the label of its flow, and its number there.
    nodes: dict[str, tuple[str, int]] = field(factory=dict)
    fates: dict[str, tuple[Fate, ...]] = field(factory=dict)
    #: Processes that stopped in the middle of an evaluation.
    paused: list[tuple[Process, asyncio.Task[Verdict]]] = field(factory=list)
    #: Retries of single nodes by an operator.
    retried: Counter[str] = field(factory=Counter)
    #: The flows whose cancellation was requested.
    cancelled: set[str] = field(factory=set)
    #: The flows whose job in the queue of flows was cancelled by `queue.cancel`, not by `flow.cancel`.
    plainly: set[str] = field(factory=set)
    #: True after anything that may delay a flow until its timer.
    is_disturbed: bool = False
    #: True after a pause: an old evaluation may enqueue a node of a flow that was cancelled meanwhile.
    was_paused: bool = False
    #: The number of evaluations of the last sweeps, which the processes run in turn.
    turn: int = 0
    handed_off: dict[tuple[str, str], tuple[int, Fate]] = field(factory=dict)

    @classmethod
    async def open(cls, new_storage: NewStorage) -> World:
        storage = await new_storage().__aenter__()
        recorder = Recorder(ManualClock(storage))
        return cls(new_storage, recorder, [Process(recorder), Process(recorder)], [storage])

    @property
    def ledger(self) -> Ledger:
        return self.recorder.ledger

    async def close(self) -> None:
        for process, task in self.paused:
            task.cancel()
            await asyncio.wait([task])
            process.close()
        for process in self.processes:
            process.close()
        for storage in self.storages:
            await storage.__aexit__(None, None, None)

    # -- flows -----------------------------------------------------------------------------------------

    async def enqueue(self, label: str, spec: FlowSpec) -> None:
        self._learn(label, spec)
        if any(node.shared is not None for node in spec.all_nodes()):
            self.is_disturbed = True  # the end of a shared node wakes one of its flows
        await self.processes[0].build(label, spec, id=label).enqueue()

    def _learn(self, label: str, spec: FlowSpec) -> None:
        self.specs[label] = spec
        for number, node in enumerate(spec.nodes):
            name = label_of(label, number, node)
            self.fates.setdefault(name, node.fates)
            if node.shared is None:
                self.nodes[name] = label, number
            if node.nested is not None:
                self._learn(name, node.nested)

    # -- runs ------------------------------------------------------------------------------------------

    async def claim(self, queue: str) -> Job | None:
        """Claim one due job under a new lease."""
        grant = await self.recorder.grant([queue], LEASE_MS, "machine")
        claim = await self.recorder.claim(queue, grant.lease, 1)
        return claim.jobs[0] if claim.jobs else None

    async def run_handler(self, queue: str, index: int = 0, fault: Fault | None = None) -> bool:
        """Run one due flow or evaluation in a process. Return whether there was one."""
        job = await self.claim(queue)
        if job is None:
            return False
        if queue == FLOWS:
            self._check_start(queue, job)
        process = self.processes[index]
        task = await process.run(queue, job, fault)
        if task is not None:
            self.paused.append((process, task))
            self.was_paused = True
        if task is not None or process.storage.is_dead:
            self.processes[index] = Process(self.recorder)
        return True

    async def resume(self, number: int) -> None:
        """Resume a paused process. Its lease may have expired, and its memory is that of the pause."""
        process, task = self.paused.pop(number)
        process.storage.resumed.set()
        await task
        self.processes.append(process)
        self.processes.pop(0).close()

    async def work(self, queue: str, *, dies: bool = False) -> bool:
        """Run one due node, and end it as its fate says. Return whether there was one."""
        job = await self.claim(queue)
        if job is None:
            return False
        name = self._check_start(queue, job)
        if dies:  # the run comes back when its lease expires
            self.is_disturbed = True
            return True
        fates = self.fates[name]
        fate = fates[min(self.ledger.runs[name], len(fates) - 1)]
        if fate == "retry" and self.ledger.runs[name] >= len(fates):
            fate = "complete"
        await self.processes[0].settle(queue, job, self._verdict(name, fate))
        if fate.startswith("hand off"):
            self.handed_off[queue, job.id] = job.revision, fate
        return True

    def _verdict(self, name: str, fate: Fate) -> Verdict:
        error = Error(type="Planned", message=f"{name} fails")
        if fate == "complete":
            return Returned(self._result(name))
        if fate == "retry":
            return Raised(error=error, delay=0)
        return Raised(error=error, permanent=True) if fate == "fail" else HandedOff()

    def _result(self, name: str) -> bytes:
        return msgspec.json.encode([name, self.ledger.runs[name]])

    def _check_start(self, queue: str, job: Job) -> str:
        name = self.ledger.labels[queue, job.id]
        if name in self.nodes:
            flow, number = self.nodes[name]
            check_start(self.ledger, flow, self.specs[flow], number, job.data.payload)
            may_run = self.ledger.is_live(flow) or self._may_outlive(flow)
            require(may_run or name in self.retried, "no node runs after its flow", name)
        return name

    def _may_outlive(self, flow: str) -> bool:
        """Return whether a node of an ended flow may still run: only its next evaluation cancels it."""
        if self.was_paused:
            return self.is_cancelled(flow)
        is_told = flow in self.cancelled and flow not in self.plainly
        return self.is_cancelled(flow) and not is_told and flow not in self.ledger.closed

    def is_cancelled(self, flow: str) -> bool:
        """Return whether the cancellation of a flow, or of a flow around it, was requested."""
        parts = flow.split(".")
        return any(".".join(parts[:end]) in self.cancelled for end in range(1, len(parts) + 1))

    async def finish_one(self) -> bool:
        """End the first handed-off node, as an operator does. Return whether there was one."""
        for (queue, id), (revision, fate) in list(self.handed_off.items()):
            del self.handed_off[queue, id]
            (slot,) = await self.recorder.get(queue, [id])
            if slot.current is None or slot.current.run is None or slot.current.run.lease is not None:
                continue
            name = self.ledger.labels[queue, id]
            end: End = Complete(result=self._result(name))
            if slot.current.run.cancel_requested:
                end = Cancelled()
            elif fate == "hand off and fail":
                end = Fail(error=Error(type="Planned", message=f"{name} fails"))
            self.is_disturbed = True
            await self.recorder.finish(queue, id, end, revision)
            return True
        return False

    # -- operators -------------------------------------------------------------------------------------

    async def cancel_flow(self, flow: str, *, plainly: bool) -> None:
        self.is_disturbed = True
        if plainly:
            (answer,) = await self.recorder.cancel(FLOWS, [flow], running=True)
        else:
            answer = await self.processes[0].app.get_flow(flow).cancel()
        if answer in ("cancelled", "requested"):
            self.cancelled.add(flow)
            if plainly:
                self.plainly.add(flow)
                await self.processes[0].app.get_flow(flow).wake()

    async def cancel_node(self, name: str) -> None:
        self.is_disturbed = True
        for queue, id in self.ledger.ids.get(name, [])[-1:]:
            await self.recorder.cancel(queue, [id], running=True)
            if queue == FLOWS:
                self.cancelled.add(name)
                self.plainly.add(name)

    async def retry_node(self, name: str) -> None:
        self.is_disturbed = True
        for queue, id in self.ledger.ids.get(name, [])[-1:]:
            if (await self.recorder.retry_failed(queue, [id]))[0] == "queued":
                self.retried[name] += 1

    async def cancel_evaluation(self, flow: str) -> None:
        """Cancel the evaluation of a flow: after the last end, only maintenance brings it back."""
        self.is_disturbed = True
        await self.recorder.cancel(EVALUATIONS, [flow], running=True)

    async def retry_flow(self, flow: str) -> None:
        await self.processes[0].app.get_flow(flow).retry_failed()

    async def advance(self, seconds: float) -> None:
        clock = self.recorder.clock
        await clock.move_to(clock.now_ms + int(seconds * 1000))
        for queue in ALL_QUEUES:
            await self.recorder.reap(queue, 1000)
        await flow_repair.repair_flows(cast("Storage", self.recorder))

    async def move(self) -> None:
        """Move all queues to a new storage, after the end of all processes."""
        self.is_disturbed = True
        for process, task in self.paused:
            process.storage.is_dead = True
            process.storage.resumed.set()
            await task
        self.paused.clear()
        await self.advance(LEASE_MS / 1000)
        storage = await self._new_storage().__aenter__()
        clock = ManualClock(storage, self.recorder.clock.now_utc)
        source, target = self.recorder.clock.silent_storage, clock.silent_storage
        await move(source, target, ALL_QUEUES, wait=False, advance=lambda _: None)
        self.storages.append(storage)
        self.recorder.clock = clock
        self.processes = [Process(self.recorder), Process(self.recorder)]

    # -- the end ---------------------------------------------------------------------------------------

    async def live_jobs(self) -> dict[str, int]:
        counts = await self.recorder.counts(ALL_QUEUES)
        return {queue: live for queue, one in counts.items() if (live := one.waiting + one.active)}

    async def sweep(self) -> bool:
        """Run everything that is due, round by round. Return whether anything ran."""
        ran = False
        while any(
            [
                await self.run_handler(FLOWS),
                await self.run_handler(EVALUATIONS, self._next_process()),
                *[await self.work(queue) for queue in QUEUES],
            ]
        ):
            ran = True
        return ran

    def _next_process(self) -> int:
        """Return the processes in turn, so that the memory of each is behind the others."""
        self.turn += 1
        return self.turn % len(self.processes)

    async def drain(self) -> None:
        """Run all jobs to their end, without further faults. Fail if a flow needs too many minutes."""
        while self.paused:
            await self.resume(0)
        nodes = sum(len(spec.nodes) for spec in self.specs.values())
        for _ in range(40 + 12 * nodes):
            while await self.sweep() or await self.finish_one():
                pass
            if not await self.live_jobs():
                return
            require(self.is_disturbed, "a flow without faults needs no timer", await self._describe())
            # Shared nodes are read several times a second, and the lease of a dead holder ends later.
            await self.advance(max(1.0, await self._seconds_until_due()))
        raise BrokenLaw(f"each flow ends: {await self._describe()}")

    async def _seconds_until_due(self) -> float:
        """Return the seconds until the next job is due, at most those until all leases have expired."""
        grant = await self.recorder.grant(ALL_QUEUES, LEASE_MS, "machine")
        due = [await self.recorder.claim(queue, grant.lease, 1) for queue in ALL_QUEUES]
        await self.recorder.drop(ALL_QUEUES, grant.lease, 100)
        times: list[int] = [claim.next_due - claim.now for claim in due if claim.next_due is not None]
        return min([LEASE_MS, *times]) / 1000

    async def _describe(self) -> Any:
        """Return the live jobs and the ends, for the message about a flow that hangs."""
        live = {}
        for queue in ALL_QUEUES:
            page = await self.recorder.export(queue, limit=1000)
            jobs = [record.slot.current for record in page.records if record.slot.current is not None]
            live[queue] = [(job.id, job.run_at, job.run) for job in jobs]
        return live, dict(self.ledger.ends)
