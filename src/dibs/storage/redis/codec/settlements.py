"""Encode settlements as script arguments, in the layout that lua/include/settle_run.lua reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct as Layout
from typing import Final

from dibs.errors import Refused
from dibs.model.check_arguments import check_settle_action
from dibs.model.error_text import checked_error
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
from dibs.model.rules import ONLY_END
from dibs.storage.redis.codec import jobs as codec
from dibs.storage.redis.codec.requests import Word, id_word, request_word

SETTLED: Final[tuple[SettleStatus, ...]] = ("done", "returned", "handed_off", "cancelled", "lost", "refused")
CAUSES: Final = {"error": 4, "timeout": 5, "stall": 6}
DONE: Final = SettleResult("done")

_SETTLEMENT: Final = Layout(">QBBQH")
_SETTLED: Final = Layout(">BQ")


class Settling:
    """Settlements as words; `queues` are those of their follow-ups, `reasons` why some are refused."""

    def __init__(self, queue: str, limits: Limits, *, cross_queue: bool) -> None:
        self.queue, self.limits, self.cross_queue = queue, limits, cross_queue
        #: Whether the queue is a fail queue: what fails there is kept for ever, and has no fail job.
        self.fails = queue.endswith(FAIL_SUFFIX)
        self.words: list[Word] = []
        self.follow_ups: list[Word] = []
        self.queues: list[str] = []
        self.reasons: dict[int, str] = {}
        self.handled = False

    @property
    def targets(self) -> list[str]:
        """The queues beside its own, as KEYS: its fail queue (itself where it has none), then the others."""
        return [self.queue if self.fails else self.queue + FAIL_SUFFIX, *self.queues]

    @property
    def named(self) -> list[str]:
        """The queues that are written to beside its own."""
        return [*self.queues, *([self.queue + FAIL_SUFFIX] if self.handled else [])]

    def add(self, settlements: Iterable[Settlement]) -> None:
        for index, one in enumerate(settlements):
            if plain := self.plain(one):
                self.words += (id_word(one.id), plain)
                continue
            reason = self._refusal(one.action)
            if reason:
                self.reasons[index] = reason
            self.words.append(id_word(one.id))
            self.words.append(self.settlement(one.fence, one.action, bad=bool(reason)))

    def plain(self, one: Settlement) -> bytes | None:
        """Return what a completion that says no more than its result is; None for whatever else there is.

        Most are, and the general way, which gives the same bytes, takes three times as long.
        """
        how = one.action
        if not isinstance(how, Complete) or how.then != () or how.retention is not None:
            return None
        if not 0 <= one.fence <= 2**53:
            return None
        result = how.result
        if result is None:
            return _SETTLEMENT.pack(one.fence, 1, 0, 0, 0)
        if not isinstance(result, bytes) or len(result) > self.limits.result:
            return None
        return _SETTLEMENT.pack(one.fence, 1, 16, 0, 0) + codec.sized(result)

    def _refusal(self, how: SettleAction) -> str:
        try:
            self.check(how)
        except Refused as refused:
            return str(refused)
        return ""

    def check(self, how: SettleAction) -> None:
        """Refuse a settlement that breaks a limit. Raises Refused."""
        check_settle_action(how, self.limits)
        if isinstance(how, Complete | Fail):
            self._check_queues(how.then)

    def _check_queues(self, then: Iterable[FollowUp]) -> None:
        for item in then:
            if item.queue != self.queue and not self.cross_queue:
                raise Refused(
                    f"a follow-up for queue {item.queue!r}: this storage is not cross_queue, so follow-ups "
                    f"of {self.queue!r} may go to that queue only; enqueue it from the handler",
                    field="then",
                )

    def settlement(self, fence: int, how: SettleAction, *, bad: bool = False) -> bytes:
        """Return one settlement, and take its follow-ups in."""
        if bad:
            return _SETTLEMENT.pack(_fence(fence), _kind(how), 1, 0, 0)
        has, at, follows, parts = 0, 0, 0, []
        if isinstance(how, Complete | Fail | Cancelled) and how.retention is not None:
            has |= 4
            parts.append(codec.sized(codec.encode_retention(how.retention).encode()))
        if isinstance(how, Complete | Fail):
            follows = self._follow(how.then)
        if isinstance(how, Fail):
            has |= 8 | (64 if self.fails else 32 if how.handled else 0)
            self.handled = self.handled or (how.handled and not self.fails)
            parts.append(codec.sized(codec.encode_error(checked_error(how.error, self.limits))))
        elif isinstance(how, Complete) and how.result is not None:
            has |= 16
            parts.append(codec.sized(how.result))
        elif isinstance(how, RetryLater):
            has |= 2 if how.run_at is not None else 0
            at = how.run_at if how.run_at is not None else how.delay or 0
            if how.error is not None:
                has |= 8
                parts.append(codec.sized(codec.encode_error(checked_error(how.error, self.limits))))
        return _SETTLEMENT.pack(_fence(fence), _kind(how), has, at, follows) + b"".join(parts)

    def _follow(self, then: Sequence[FollowUp]) -> int:
        for item in then:
            if item.queue not in self.queues:
                self.queues.append(item.queue)
            # KEYS[1] and KEYS[2] are the queue itself and its fail queue.
            number = 3 + self.queues.index(item.queue)
            self.follow_ups += [number, item.job.id, request_word(item.job, item.on_conflict, None)]
        return len(then)

    def answers(self, raw: bytes) -> list[SettleResult]:
        told = []
        for index, (status, revision) in enumerate(_SETTLED.iter_unpack(raw)):
            word = SETTLED[status - 1]
            if word == "done":
                told.append(DONE)
            elif word == "refused":
                told.append(SettleResult(word, self.reasons.get(index, ONLY_END)))
            else:
                told.append(SettleResult(word, revision=revision))
        return told


def _fence(fence: int) -> int:
    """Return a fence, or 0, which no run has, for what cannot be one."""
    return fence if 0 <= fence <= 2**53 else 0


def _kind(how: SettleAction) -> int:
    match how:
        case Complete():
            return 1
        case Fail():
            return 2
        case Cancelled():
            return 3
        case RetryLater():
            return CAUSES[how.cause]
        case Release():
            return 7
        case HandOff():
            return 8
