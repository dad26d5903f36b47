"""Encoding of settlements (the ends and returns of runs) as script arguments.

storage/redis/lua/include/settle_one.lua documents the layout.

A step is the settlements of one queue, then a claim in it; storage/redis/lua/serve.lua documents its layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct as Layout
from typing import Any, Final

from attrs import define, field

from dibs.errors import Refused
from dibs.model.check_arguments import check_cost, check_settle_action
from dibs.model.error_text import to_storable_error
from dibs.model.job import FAIL_SUFFIX
from dibs.model.limits import Limits
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
)
from dibs.model.results import SettleResult, SettleStatus
from dibs.model.rules import REASON_CAN_ONLY_END
from dibs.storage.redis.codec import jobs
from dibs.storage.redis.codec.data import encode_retention, with_size
from dibs.storage.redis.codec.requests import Argument, encode_id, encode_request

SETTLE_STATUSES: Final[tuple[SettleStatus, ...]] = (
    "done",
    "returned",
    "handed_off",
    "cancelled",
    "lost",
    "refused",
)
CAUSE_NUMBERS: Final = {"error": 4, "timeout": 5, "stall": 6}
#: The actions whose kind matters if they are refused: after the end of the run, a repeat is compared by kind.
_ENDS: Final = (Complete, Fail, Cancelled)
_REFUSED_RETURN: Final = CAUSE_NUMBERS["error"]
DONE_RESULT: Final = SettleResult("done")

_SETTLEMENT: Final = Layout(">QBBQH")
_SETTLED: Final = Layout(">BQ")


@define
class SettlementBatch:
    """Collects the settlements of one queue as arguments of serve.lua, and decodes the reply."""

    queue: str
    limits: Limits
    cross_queue: bool = field(kw_only=True)
    #: True for a fail queue. Its failures are kept for ever and enqueue no fail job.
    is_fail_queue: bool = field(init=False)
    #: Id and packed bytes of each settlement: id, bytes, id, bytes, ...
    arguments: list[Argument] = field(factory=list, init=False)
    #: Index of the queue in KEYS, id, and packed request of each follow-up (a job that an end enqueues).
    follow_ups: list[Argument] = field(factory=list, init=False)
    #: The queues of all follow-ups, each once. They must be registered first; `configure` registers a fail
    #: queue.
    queues: list[str] = field(factory=list, init=False)
    #: For each settlement that breaks a limit, its index and the reason.
    reasons: dict[int, str] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.is_fail_queue = self.queue.endswith(FAIL_SUFFIX)

    @property
    def targets(self) -> list[str]:
        """The queues for KEYS[2] and later: the fail queue of this queue, then the queues of follow-ups.

        A fail queue has no fail queue, so it is its own KEYS[2].
        """
        return [self.queue if self.is_fail_queue else self.queue + FAIL_SUFFIX, *self.queues]

    def add(self, settlements: Iterable[Settlement]) -> None:
        for index, one in enumerate(settlements):
            if reason := self._refusal_reason(one):
                self.reasons[index] = reason
            packed = self.encode(one.fence, one.action, one.cost, breaks_limit=bool(reason))
            self.arguments += (encode_id(one.id), packed)

    def _refusal_reason(self, settlement: Settlement) -> str:
        try:
            self.check(settlement.action)
            if settlement.cost is not None:
                check_cost(settlement.cost)
        except Refused as refused:
            return str(refused)
        return ""

    def check(self, action: SettleAction) -> None:
        """Raise Refused if an action breaks a limit, or has a follow-up that this storage cannot enqueue."""
        check_settle_action(action, self.limits)
        if isinstance(action, Complete | Fail):
            self._check_queues(action.then)

    def _check_queues(self, then: Iterable[FollowUp]) -> None:
        for item in then:
            if item.queue != self.queue and not self.cross_queue:
                raise Refused(
                    f"a follow-up for queue {item.queue!r}: this storage is not cross_queue, so follow-ups "
                    f"of {self.queue!r} may go to that queue only; enqueue it from the handler",
                    field="then",
                )

    def encode(
        self, fence: int, action: SettleAction, cost: int | None = None, *, breaks_limit: bool = False
    ) -> bytes:
        """Pack one settlement, and add its follow-ups to `follow_ups`.

        With `breaks_limit`, pack only the mark that makes the script refuse the settlement.
        """
        if breaks_limit:
            kind = _kind_number(action) if isinstance(action, _ENDS) else _REFUSED_RETURN
            return _SETTLEMENT.pack(_valid_fence(fence), kind, 1, 0, 0)
        has, at, follow_up_count, parts = 0, 0, 0, []
        if cost is not None:
            has |= 128
            parts.append(cost.to_bytes(8))
        if isinstance(action, Complete | Fail | Cancelled) and action.retention is not None:
            has |= 4
            parts.append(with_size(encode_retention(action.retention).encode()))
        if isinstance(action, Complete | Fail):
            follow_up_count = self._add_follow_ups(action.then)
        if isinstance(action, Fail | Cancelled | RetryLater) and action.error is not None:
            has |= 8
            parts.append(with_size(jobs.encode_error(to_storable_error(action.error, self.limits))))
        if isinstance(action, Fail) and self.is_fail_queue:
            has |= 64
        elif isinstance(action, Complete) and action.result is not None:
            has |= 16
            parts.append(with_size(action.result))
        elif isinstance(action, RetryLater | Release):
            time, at = _encode_time(action)
            has |= time
        return _SETTLEMENT.pack(
            _valid_fence(fence), _kind_number(action), has, at, follow_up_count
        ) + b"".join(parts)

    def _add_follow_ups(self, then: Sequence[FollowUp]) -> int:
        for item in then:
            if item.queue not in self.queues:
                self.queues.append(item.queue)
            # KEYS[1] is the queue and KEYS[2] its fail queue, so the other queues begin at KEYS[3].
            number = 3 + self.queues.index(item.queue)
            self.follow_ups += [number, item.job.id, encode_request(item.job, item.on_conflict, None)]
        return len(then)

    def decode(self, raw: bytes) -> list[SettleResult]:
        results = []
        for index, (status, revision) in enumerate(_SETTLED.iter_unpack(raw)):
            status_name = SETTLE_STATUSES[status - 1]
            if status_name == "done":
                results.append(DONE_RESULT)
            elif status_name == "refused":
                results.append(SettleResult(status_name, self.reasons.get(index, REASON_CAN_ONLY_END)))
            else:
                results.append(SettleResult(status_name, revision=revision))
        return results


def _valid_fence(fence: int) -> int:
    """Return a fence (the number of a claim), or 0, which no run has, for a number out of range."""
    return fence if 0 <= fence <= 2**53 else 0


def _encode_time(action: RetryLater | Release) -> tuple[int, int]:
    """Return the flags of the time of an action, and the time or the delay in ms."""
    if action.run_at is not None:
        return 2 | 32, action.run_at
    return (0 if action.delay is None else 32), action.delay or 0


def _kind_number(action: SettleAction) -> int:
    match action:
        case Complete():
            return 1
        case Fail():
            return 2
        case Cancelled():
            return 3
        case RetryLater():
            return CAUSE_NUMBERS[action.cause]
        case Release():
            return 9 if action.parked else 7
        case HandOff():
            return 8


#: The time in ms, the packed answers to the settlements, and the reply of the claim; b"" for no claim.
StepReply = tuple[int, bytes, Any]


#: The numbers of a step: indexes in KEYS of its queue and of its fail queue, and the numbers of its
#: settlements, of its follow-ups, and of the jobs to claim.
_STEP: Final = Layout(">IIIII")


@define
class StepBatch:
    """Collects the steps of one script call."""

    #: Number of steps.
    count: int = field(default=0, init=False)
    #: Arguments of all steps.
    arguments: list[Argument] = field(factory=list, init=False)
    #: Index in KEYS of each queue that a step names.
    _indexes: dict[str, int] = field(factory=dict, init=False)

    @property
    def queues(self) -> list[str]:
        """The queues for KEYS, in their order."""
        return list(self._indexes)

    def add(self, queue: str, batch: SettlementBatch, limit: int) -> None:
        self.count += 1
        index = self._index_of(queue)
        settlements, follow_ups = len(batch.arguments) // 2, batch.follow_ups
        # A step without settlements cannot enqueue a fail job, so it needs no prefix of a fail queue.
        fail_index = self._index_of(batch.targets[0]) if settlements else index
        numbers = _STEP.pack(index, fail_index, settlements, len(follow_ups) // 3, limit)
        self.arguments += (numbers, queue, *batch.arguments)
        # A batch counts its own queues; KEYS has the queues of all steps.
        targets = [queue, *batch.targets]
        for number, id, request in zip(follow_ups[::3], follow_ups[1::3], follow_ups[2::3], strict=True):
            self.arguments += (self._index_of(targets[int(number) - 1]), id, request)

    def _index_of(self, queue: str) -> int:
        return self._indexes.setdefault(queue, len(self._indexes) + 1)
