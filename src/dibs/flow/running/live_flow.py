"""A flow that runs, as one process knows it: its plan, its notes and the run of its job."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec
from attrs import define, field

from dibs.flow.plan import WAITING, FlowMemo, Plan, decode_memo, decode_plan, encode_memo, id_prefix, is_open
from dibs.flow.running.decide import FlowState
from dibs.model.job import Job, OutcomeRetention
from dibs.model.wakeup import FLOW_ATTRIBUTE, NO_HINT

#: The most flows that a process keeps decoded.
CACHED_FLOWS: Final = 64
#: The most bytes of results that a process keeps for a flow.
RESULT_BYTES: Final = 1024 * 1024


@define(eq=False, slots=False)
class LiveFlow:
    """A handed-off flow job, decoded."""

    id: str
    #: The revision of the flow job. A retry of the flow has another one.
    revision: int
    #: The fence of the run that was handed off, with which notes are reported.
    fence: int
    stamp: int
    state: FlowState
    attributes: Mapping[str, bytes]
    #: The memo that the flow job has, as bytes; None before the first notes.
    memo: bytes | None = None
    errors: dict[int, str] = field(factory=dict)
    #: The revision that wrote the notes.
    noted_revision: int = 0
    #: True after a recent evaluation in this process. Before, another evaluation may have enqueued nodes that
    #: are waiting by the notes.
    is_current: bool = False
    #: The hint with which the flow was evaluated last.
    hint: bytes = NO_HINT
    #: When this process evaluated the flow last, by time.monotonic().
    evaluated_at: float = float("-inf")
    #: When the notes were read or stored, by time.monotonic().
    saved_at: float = float("-inf")
    #: When all open nodes were read in this process, by time.monotonic().
    read_at: float = float("-inf")
    #: The duration of that read, in seconds.
    read_seconds: float = 0.0
    #: True after a failure in this segment was noted on its batch.
    has_reported_failure: bool = False
    #: Results of completed nodes that this process has run or read, by number. Others are read when needed.
    results: dict[int, bytes | None] = field(factory=dict)
    _result_bytes: int = 0
    #: Seconds until the next evaluation of a flow with shared nodes.
    pause: float = 0.0

    @property
    def plan(self) -> Plan:
        return self.state.plan

    def node_id(self, number: int) -> str:
        return self.plan.nodes[number].id or f"{self._id_prefix}{number}"

    def is_own(self, number: int) -> bool:
        """Return whether only this flow enqueues the job id of a node."""
        return not self.plan.nodes[number].id

    def keep_result(self, number: int, result: bytes | None) -> None:
        """Keep the result of a completed node for its dependents, up to RESULT_BYTES in all."""
        self._result_bytes += 64 + len(result or b"")
        if self._result_bytes <= RESULT_BYTES and self._has_readers[number]:
            self.results[number] = b"null" if result is None else result

    @cached_property
    def _has_readers(self) -> list[bool]:
        """For each node, whether its result is an argument of another node, or that of the flow."""
        found = [False] * len(self.plan.nodes)
        for node in self.plan.nodes:
            for parent in node.arguments():
                found[parent] = True
        if self.plan.returns is not None:
            found[self.plan.returns] = True
        return found

    @property
    def has_shared(self) -> bool:
        """True if an open node has an id that other enqueues may use, too."""
        return any(is_open(self.state.notes[number]) for number in self.shared)

    @cached_property
    def _id_prefix(self) -> str:
        return id_prefix(self.id, self.stamp)

    @cached_property
    def key_prefix(self) -> str:
        """The beginning of the request keys of the nodes. A retry of the flow has others."""
        digest = hashlib.blake2b(self.id.encode(), digest_size=16).hexdigest()
        return f"flow/{digest}/{self.revision}/"

    @cached_property
    def node_attributes(self) -> dict[str, bytes]:
        """The attributes of a node that sets none."""
        return {FLOW_ATTRIBUTE: msgspec.json.encode(self.id)}

    @cached_property
    def node_retention(self) -> OutcomeRetention:
        """The retention of a node that sets none."""
        keep = self.plan.keep
        return OutcomeRetention(completed=keep, failed=keep, cancelled=keep)

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """The numbers of the nodes with ids that other enqueues may use, too."""
        return tuple(number for number, node in enumerate(self.plan.nodes) if node.id)

    def encode_memo(self) -> bytes:
        """Return the notes as the memo of the flow job."""
        return encode_memo(FlowMemo(self.stamp, self.revision, self.state.notes, self.errors))


class FlowChanged(Exception):
    """The flow job has left the run that was read: it has ended, or was retried."""


def decode_flow(job: Job) -> LiveFlow:
    """Return the flow of a handed-off job. Raises ValueError if its payload is no plan."""
    plan = decode_plan(job.data.payload)
    memo = FlowMemo(job.first, job.revision, [WAITING] * len(plan.nodes))
    if job.data.memo is not None:
        memo = decode_memo(job.data.memo)
        if len(memo.notes) != len(plan.nodes):
            raise ValueError(f"the memo has {len(memo.notes)} notes for {len(plan.nodes)} nodes")
    return LiveFlow(
        id=job.id,
        revision=job.revision,
        fence=0 if job.run is None else job.run.fence,
        stamp=memo.stamp,
        state=FlowState(plan, memo.notes),
        attributes=job.data.attributes,
        memo=job.data.memo,
        errors=memo.errors,
        noted_revision=memo.revision,
    )


class FlowCache:
    """The flows that this process evaluated last, decoded.

    The state of a cached flow may be ahead of the stored notes, by ends that were read and not stored yet.
    """

    def __init__(self) -> None:
        self._flows: OrderedDict[str, LiveFlow] = OrderedDict()

    def take(self, id: str) -> LiveFlow | None:
        """Remove the flow with this id, and return it; None for an unknown one.

        A frozen evaluation and the next one may run in one process. Each has a state of its own.
        """
        return self._flows.pop(id, None)

    def put(self, flow: LiveFlow) -> None:
        """Keep a flow for the next evaluation, and forget the oldest one if there are too many."""
        self._flows[flow.id] = flow
        self._flows.move_to_end(flow.id)
        if len(self._flows) > CACHED_FLOWS:
            self._flows.popitem(last=False)


def refresh_flow(known: LiveFlow | None, job: Job) -> LiveFlow:
    """Return the flow of a handed-off job: the known one if the stored notes are those that it has.

    Raises ValueError if the payload is no plan.
    """
    flow = known
    if flow is None or flow.revision != job.revision or flow.memo != job.data.memo:
        flow = decode_flow(job)
        if known is not None and known.revision == job.revision:
            flow.hint, flow.read_at, flow.read_seconds = known.hint, known.read_at, known.read_seconds
    flow.fence = 0 if job.run is None else job.run.fence
    flow.attributes = job.data.attributes
    return flow
