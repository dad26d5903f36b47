"""The atomic parts of a call: the items of a batch, the ids of a reading, or the whole call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from dibs.model.job import Slot
from dibs_conformance.concurrent.actions import IDS
from dibs_conformance.concurrent.calls import Call

#: Stands for every id: the ids that the call changed are unknown.
ANY_ID = "*"
#: Operations that change no id.
READS = frozenset({"get", "list", "export", "split", "counts", "events"})
#: Operations that the check of an order leaves out. `prune` removes only what each read already hides,
#: `compact` changes nothing that a call can see, and concurrent/log_readers.py checks `events`.
UNORDERED = frozenset({"prune", "compact", "events"})
#: Readings of single ids, whose parts may take effect in any order.
READS_OF_IDS = frozenset({"get", "list", "export", "split"})
#: Operations that settle, and then claim.
SETTLE_AND_CLAIM = frozenset({"settle_and_claim", "serve"})
#: For each batch operation, the argument that holds the items.
BATCH_ARGUMENTS = {
    "enqueue": "requests",
    "settle": "settlements",
    "settle_and_claim": "settlements",
    "serve": "settlements",
    "cancel": "ids",
    "retry_failed": "ids",
    "forget": "ids",
    "import_": "records",
}


@frozen(eq=False)
class CallPart:
    """An atomic part of a call: one item of a batch, one id of a reading, or the whole call."""

    call: Call
    operation: str
    #: An item of a batch operation, or an id of a reading; for other operations, all arguments of the call.
    request: Any
    #: The answer to this item, or None if the call has no answer.
    answer: Any
    #: Position within the call. Items of a batch take effect in list order, those of a reading in any order.
    index: int
    #: Times in ms at which the part may have taken effect: the `now` of its call, or a later `now` of an
    #: overlapping call.
    times: tuple[int, ...]
    #: Ids that overlapping calls touch. A claim or a reap may skip those ids.
    concurrent_ids: frozenset[str]
    #: True if a `configure` overlaps the call. The call may then obey the former or the new settings.
    settings_change: bool = False

    @property
    def answered(self) -> bool:
        return self.call.completion == "answered"

    def may_skip(self, id: str) -> bool:
        return id in self.concurrent_ids or ANY_ID in self.concurrent_ids


def split_call(
    call: Call, times: tuple[int, ...], concurrent_ids: frozenset[str], *, settings_change: bool
) -> Iterator[CallPart]:
    """Yield the atomic parts of a call, in order. A reading without an answer has no parts."""
    if call.operation in UNORDERED or (call.operation in READS and call.completion != "answered"):
        return
    answered = call.completion == "answered"
    for index, (operation, request, answer) in enumerate(split_items(call, answered=answered)):
        at = 0 if call.operation in READS else index
        yield CallPart(call, operation, request, answer, at, times, concurrent_ids, settings_change)


def split_items(call: Call, *, answered: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield the operation, the request and the answer of each part."""
    if call.operation in READS:
        yield from split_reading(call)
        return
    batch = BATCH_ARGUMENTS.get(call.operation)
    if batch is None:
        yield call.operation, call.args, call.answer
        return
    answers = call.answer
    if call.operation in SETTLE_AND_CLAIM:
        answers = call.answer.settled if answered else None
    request = call.args[batch]
    for index, item in enumerate(request):
        yield (
            "settle" if call.operation in SETTLE_AND_CLAIM else call.operation,
            item,
            answers[index] if answered else None,
        )
    if call.operation in SETTLE_AND_CLAIM:
        yield "claim", call.args, call.answer.claim if answered else None


def split_reading(call: Call) -> Iterator[tuple[str, Any, Any]]:
    """Yield one part for each id that was read, or that is missing in the answer, or for each count."""
    if call.operation == "get":
        yield from (("get", id, slot) for id, slot in zip(call.args["ids"], call.answer, strict=True))
    elif call.operation == "counts":
        counts = call.answer[call.queue]
        yield from (
            ("counts", name, getattr(counts, name))
            for name in counts.__struct_fields__
            if name != "approximate"
        )
    else:
        found: list[tuple[str, Slot]] = call.answer
        yield from ((call.operation, id, slot) for id, slot in found)
        missing = set(IDS) - {id for id, _ in found}
        yield from (("absent", id, None) for id in sorted(missing))
