"""The plan of a flow, the payload of the flow job: its nodes, their arguments and their parents. Its
notes: the state of each node, as the memo of the flow job keeps it.

A note is one whole number per node, because a flow of 10,000 nodes writes all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from dibs.client.options.arguments import DEFAULT_KEEP
from dibs.errors import Refused
from dibs.model.job import OutcomeRetention
from dibs.model.limits import LIMITS
from dibs.model.overrides import Overrides
from dibs.model.wakeup import FLOWS

#: The most nodes of one plan.
MAX_NODES: Final = 10_000
#: The longest id of a flow, in bytes. The ids of its nodes are longer, and have at most 512 bytes.
MAX_FLOW_ID: Final = 480
#: Ms for which the outcome of each node is kept at least, by default: 7 days.
DEFAULT_KEEP_MS: Final = round(DEFAULT_KEEP * 1000)
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Argument(Struct, omit_defaults=True, kw_only=True):
    """An argument of a call: a value, the result of a node, or a list or an object that contains results.

    Exactly one field is set.
    """

    #: A value, encoded by the default serde.
    json: Raw | UnsetType = UNSET
    #: A value, encoded by another serde of the node's queue.
    base64: bytes | UnsetType = UNSET
    #: The number of the node whose result is the value.
    node: int | UnsetType = UNSET
    #: The numbers of the nodes whose results make a list.
    nodes: tuple[int, ...] | UnsetType = UNSET
    #: The items of a list.
    items: tuple[Argument, ...] | UnsetType = UNSET
    #: The fields of an object.
    fields: dict[str, Argument] | UnsetType = UNSET

    def parents(self) -> Iterator[int]:
        """Yield the number of each node whose result is part of the value."""
        if isinstance(self.node, int):
            yield self.node
        elif isinstance(self.nodes, tuple):
            yield from self.nodes
        elif isinstance(self.items, tuple):
            for item in self.items:
                yield from item.parents()
        elif isinstance(self.fields, dict):
            for field in self.fields.values():
                yield from field.parents()


class PlannedCall(Struct, omit_defaults=True, kw_only=True):
    """The arguments of a task for a node that takes results of other nodes."""

    args: tuple[Argument, ...] = ()
    kwargs: dict[str, Argument] = {}

    def parents(self) -> Iterator[int]:
        """Yield the number of each node whose result is an argument, or part of one."""
        for argument in (*self.args, *self.kwargs.values()):
            yield from argument.parents()


class PlannedNode(Struct, omit_defaults=True, kw_only=True):
    """A job of a flow. One of `data`, `payload` and `call` is set."""

    #: The index of its queue in `Plan.queues`.
    queue: int = 0
    #: The id that the caller chose; empty for an id that the flow makes.
    id: str = ""
    #: The payload, encoded by the default serde.
    data: Raw | UnsetType = UNSET
    #: The payload, encoded by another serde.
    payload: bytes | UnsetType = UNSET
    #: The arguments, if the results of other nodes are among them.
    call: PlannedCall | None = None
    #: The parents that must complete, without those whose results are arguments.
    after: tuple[int, ...] = ()
    #: The parents that must end in any way.
    after_any: tuple[int, ...] = ()
    #: The index of the queue whose serde encodes the result, if it is another one. A nested flow has the
    #: result of one of its own nodes.
    result_queue: int | None = None
    attributes: dict[str, Raw] = {}
    priority: int = 0
    overrides: Overrides | None = None
    retention: OutcomeRetention | None = None
    key: str | None = None
    run_at: int | None = None
    delay: int | None = None

    def arguments(self) -> tuple[int, ...]:
        """Return the numbers of the nodes whose results are arguments, each once."""
        return tuple(dict.fromkeys(self.call.parents())) if self.call is not None else ()

    def required(self) -> tuple[int, ...]:
        """Return the numbers of the parents that must complete, each once."""
        return tuple(dict.fromkeys((*self.arguments(), *self.after)))


class Plan(Struct, omit_defaults=True, kw_only=True):
    """The payload of a flow job."""

    #: The names of the queues of the nodes.
    queues: tuple[str, ...]
    nodes: tuple[PlannedNode, ...]
    #: The names of the serdes of those queues that have another one than the default.
    serdes: dict[str, str] = {}
    #: The number of the node whose result is that of the flow.
    returns: int | None = None
    #: Ms for which the outcome of each node is kept at least; None for ever.
    keep: int | None = DEFAULT_KEEP_MS
    #: True for a segment of a batch: it completes whatever its nodes do, and its result counts their ends.
    tolerant: bool = False

    def queue_of(self, number: int) -> str:
        """Return the name of the queue of a node."""
        return self.queues[self.nodes[number].queue]

    def result_queue_of(self, number: int) -> str:
        """Return the name of the queue whose serde encodes the result of a node."""
        node = self.nodes[number]
        return self.queues[node.queue if node.result_queue is None else node.result_queue]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Plan)


def encode_plan(plan: Plan, limit: int = LIMITS.payload) -> bytes:
    """Return the plan as the payload of a flow job. Raises Refused if it has more than `limit` bytes."""
    raw = _encoder.encode(plan)
    if len(raw) > limit:
        raise Refused(
            f"the plan of this flow has {len(raw):,} bytes for {len(plan.nodes):,} nodes; the limit is "
            f"{limit:,} bytes: pass shorter arguments, for example keys of stored data, or enqueue parts of "
            "it as flows from a handler, or use a batch",
            field="flow",
        )
    return raw


def decode_plan(raw: bytes) -> Plan:
    """Return a stored plan. Raises ValueError."""
    plan = _decoder.decode(raw)
    for number, node in enumerate(plan.nodes):
        if max((*node.required(), *node.after_any), default=-1) >= number:
            raise ValueError(f"node {number} has a parent that is not before it")
        if not 0 <= max(node.queue, node.result_queue or 0) < len(plan.queues):
            raise ValueError(f"node {number} has no queue")
    if plan.returns is not None and not 0 <= plan.returns < len(plan.nodes):
        raise ValueError(f"the flow returns node {plan.returns}, which it does not have")
    return plan


def node_id(plan: Plan, flow_id: str, stamp: int, number: int) -> str:
    """Return the job id of a node. `stamp` keeps the ids of two flows with the same id apart."""
    return plan.nodes[number].id or f"{id_prefix(flow_id, stamp)}{number}"


def id_prefix(flow_id: str, stamp: int) -> str:
    """Return the beginning of the ids that a flow makes for its nodes."""
    return f"{flow_id}/{base36(stamp)}/"


def base36(number: int) -> str:
    """Return a number in base 36, for ids."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def is_flow(plan: Plan, number: int) -> bool:
    """Return whether a node is a nested flow."""
    return plan.queue_of(number) == FLOWS


#: The node is not enqueued yet.
WAITING: Final = 0
COMPLETED: Final = 1
FAILED: Final = 2
CANCELLED: Final = 3
#: The node has ended, and its outcome was not kept long enough to be read.
LOST: Final = 4
#: The node never runs, because a parent did not complete.
SKIPPED: Final = 5
#: The names of the states above, by note.
STATE_NAMES: Final = ("waiting", "completed", "failed", "cancelled", "lost", "skipped")
#: The note of an open node is its revision plus this number. The revisions of a manual clock may be small.
_OPEN: Final = 16


def open_note(revision: int) -> int:
    """Return the note of a node that was enqueued with this revision."""
    return revision + _OPEN


def completed_note(revision: int) -> int:
    """Return the note of a completed node whose job id other enqueues may use, too.

    It keeps the revision, because the outcome of the id may later be that of another enqueue.
    """
    return -revision


def is_open(note: int) -> bool:
    """Return whether the node is enqueued and has not ended."""
    return note > _OPEN


def is_ended(note: int) -> bool:
    """Return whether the node has ended or is skipped."""
    return note <= _OPEN and note != WAITING


def is_completed(note: int) -> bool:
    return note == COMPLETED or note < 0


def revision_of(note: int) -> int | None:
    """Return the revision that a note keeps: that of an open node, or of `completed_note`; else None."""
    if note > _OPEN:
        return note - _OPEN
    return -note if note < 0 else None


def state_name(note: int) -> str:
    """Return the name of the state; "open" for a node that is enqueued."""
    if note < 0:
        return "completed"
    return STATE_NAMES[note] if note < len(STATE_NAMES) else "open"


class FlowMemo(msgspec.Struct, array_like=True):
    """The memo of a flow job."""

    #: The first revision of the flow when it was first evaluated. The ids of its nodes contain it.
    stamp: int
    #: The revision of the flow that wrote these notes. A retry of the flow has another one.
    revision: int
    #: One note per node.
    notes: list[int]
    #: The error texts of nodes that failed without a run, by number.
    errors: dict[int, str] = {}


_memo_encoder: Final = msgspec.msgpack.Encoder()
_memo_decoder: Final = msgspec.msgpack.Decoder(FlowMemo)


def encode_memo(memo: FlowMemo) -> bytes:
    return _memo_encoder.encode(memo)


def decode_memo(raw: bytes) -> FlowMemo:
    """Return a stored memo. Raises ValueError."""
    return _memo_decoder.decode(raw)
