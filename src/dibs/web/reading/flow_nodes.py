"""What the jobs of a flow's nodes say: their arguments, and when each waited and ran."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen
from msgspec import UnsetType

from dibs.flow.plan import Plan
from dibs.flow.stored_flow import NodeStatus
from dibs.model.job import JobData, Slot
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage
from dibs.web.reading.job import arguments_text
from dibs.web.reading.source import CALL_BYTES, Source, slot_bytes

#: Jobs that one call reads, each with a payload of up to 1 MiB.
CALL: Final = 10
#: Letters of the arguments of a node.
MAX_ARGUMENTS: Final = 120


@frozen
class NodeRun:
    """The job of a node. Times are ms since the epoch; None for what has not happened."""

    #: Its arguments in one line; "" if results of other nodes are among them and the job is not kept.
    arguments: str
    due_at: int | None = None
    claimed_at: int | None = None
    ended_at: int | None = None

    @property
    def waited(self) -> int | None:
        if self.due_at is None or self.claimed_at is None:
            return None
        return max(0, self.claimed_at - self.due_at)

    @property
    def ran(self) -> int | None:
        if self.claimed_at is None or self.ended_at is None:
            return None
        return max(0, self.ended_at - self.claimed_at)


@frozen
class TimeBar:
    """The wait and the run of a node as parts of the time of its flow, in percent of the width."""

    left: float
    waited: float
    ran: float


@frozen
class Span:
    """The time of a flow, in ms since the epoch; until now if it has not ended."""

    begin: int
    end: int

    @classmethod
    def since(cls, begin: int, end: int | None) -> Span:
        return cls(begin, max(begin + 1, int(time.time() * 1000) if end is None else end))

    def bar(self, run: NodeRun) -> TimeBar | None:
        """Return the bar of a run; a job that waits or runs still does so until the end."""
        if run.due_at is None:
            return None
        due, claimed, ended = map(
            self._share, (run.due_at, run.claimed_at or self.end, run.ended_at or self.end)
        )
        return TimeBar(round(due, 2), round(claimed - due, 2), round(ended - claimed, 2))

    def _share(self, at: int) -> float:
        return 100 * min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin)))


async def read_runs(
    source: Source, storage: Storage, plan: Plan | None, nodes: Sequence[NodeStatus]
) -> Mapping[int, NodeRun]:
    """Return the arguments and the times of nodes, by the number of the node.

    The reading of times ends after 8 MiB of values.
    """
    by_queue: dict[str, list[NodeStatus]] = {}
    for node in nodes:
        by_queue.setdefault(node.queue, []).append(node)
    found: dict[int, NodeRun] = {}
    size = 0
    for queue, members in by_queue.items():
        for begin in range(0, len(members), CALL):
            part = members[begin : begin + CALL]
            ids = [node.id for node in part]
            slots = await storage.get(queue, ids) if size < CALL_BYTES else [Slot()] * len(ids)
            for node, slot in zip(part, slots, strict=True):
                size += slot_bytes(slot)
                found[node.number] = _run_of(source, plan, node, slot)
    return found


def _run_of(source: Source, plan: Plan | None, node: NodeStatus, slot: Slot) -> NodeRun:
    job, outcome = slot.current, slot.outcome
    times: tuple[int | None, int | None, int | None] = (None, None, None)
    if job is not None:
        claimed_at = None if job.run is None else job.run.claimed_at
        times = (max(job.run_at, job.enqueued_at), claimed_at, None)
    elif outcome is not None:
        times = (max(outcome.run_at, outcome.enqueued_at), outcome.claimed_at, outcome.ended_at)
    data = _planned(plan, node) or (job.data if job is not None else outcome.data if outcome else None)
    # The plan of a nested flow has the arguments of jobs of other queues.
    text = "" if node.queue == FLOWS else arguments_text(source, node.queue, data, MAX_ARGUMENTS)
    return NodeRun(text, *times)


def _planned(plan: Plan | None, node: NodeStatus) -> JobData | None:
    """Return the data of a node by its plan; None if it takes results of other nodes."""
    if plan is None:
        return None
    planned = plan.nodes[node.number]
    if isinstance(planned.payload, bytes):
        return JobData(payload=planned.payload)
    return None if isinstance(planned.data, UnsetType) else JobData(payload=bytes(planned.data))
