"""Short histories that are wrong, each with a similar correct one.

For each rule, there is one that only this rule rejects. The others have a wrong answer about a single id,
which the search for an order (R22) rejects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs_conformance.history import RecordedStep
from dibs_conformance.steps import LoggedEntry, RecordedOutcome, RecordedSlot

Steps = list[RecordedStep]


class HistoryBuilder:
    """Builds a history of steps ten time units apart. `at` and `ended` set other times."""

    def __init__(self) -> None:
        self.steps: Steps = []

    def add(
        self, op: Any, status: str = "unknown", *, at: int | None = None, **fields: Any
    ) -> HistoryBuilder:
        began = 10 * (len(self.steps) + 1) if at is None else at
        ended = fields.pop("ended", None if status == "unknown" else began + 5)
        step_fields: dict[str, Any] = {"queue": "q", "id": "a", "client": "c"} | fields
        self.steps.append(RecordedStep(op=op, status=status, began=began, ended=ended, **step_fields))
        return self

    def enqueued(self, revision: int, status: str = "queued", **fields: Any) -> HistoryBuilder:
        first = fields.pop("first", revision)
        return self.add(
            "enqueue", status, first=first, revision=revision, payload=fields.pop("payload", "x"), **fields
        )

    def claimed(self, fence: int, first: int, revision: int, **fields: Any) -> HistoryBuilder:
        step_fields: dict[str, Any] = {"attempt": 1, "payload": "x", "lease": "l", "seq": first} | fields
        return self.add("claim", "taken", fence=fence, first=first, revision=revision, **step_fields)

    def settled(self, how: str, fence: int, status: str, **fields: Any) -> HistoryBuilder:
        return self.add("settle", status, how=how, fence=fence, **fields)

    def read(self, **fields: Any) -> HistoryBuilder:
        target = {name: fields.pop(name) for name in ("id", "queue") if name in fields}
        return self.add("get", "read", read=RecordedSlot(**fields), **target)

    def drained(self) -> HistoryBuilder:
        return self.add("drained", "drained", id="")


def completed_once() -> HistoryBuilder:
    """Return a history with one id: enqueued, claimed, completed."""
    return HistoryBuilder().enqueued(1).claimed(10, 1, 1).settled("complete", 10, "done", result="r")


# Each function returns two histories that differ only where the rule applies.


def accepted_is_lost(*, bad: bool) -> HistoryBuilder:
    return HistoryBuilder().enqueued(1).read() if bad else HistoryBuilder().enqueued(1).add("forget").read()


def r2(*, bad: bool) -> HistoryBuilder:
    return (
        HistoryBuilder().enqueued(1).drained().read(current=(1, 1))
        if bad
        else completed_once().drained().read()
    )


def run_has_an_older_payload(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1, payload="old").enqueued(2, "updated", first=1, payload="new")
    return history.claimed(10, 1, 2, payload="old" if bad else "new")


def r4(*, bad: bool) -> HistoryBuilder:
    return HistoryBuilder().enqueued(1).claimed(999 if bad else 1_000, 1, 1, now=1)


def two_active_runs(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1)
    history = history if bad else history.add("drop", "dropped", id="", lease="l")
    return history.claimed(11, 1, 1, attempt=1, lease="m")


def late_holder_is_heard(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).add("reap", id="").claimed(11, 1, 1, attempt=2)
    return history.settled("complete", 10, "done" if bad else "lost")


def run_ends_twice(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).settled("retry", 10, "returned")
    return history.settled("complete", 10, "done" if bad else "lost")


def holder_is_refused(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1)
    return (history if bad else history.add("reap", id="")).settled("complete", 10, "lost")


def r9(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1, key="k")
    return (
        history.enqueued(2, "updated", first=1, key="k")
        if bad
        else history.enqueued(1, key="k", repeated=True)
    )


def attempt_is_skipped(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).settled("retry", 10, "returned")
    return history.claimed(11, 1, 1, attempt=3 if bad else 2)


def r11(*, bad: bool) -> HistoryBuilder:
    return HistoryBuilder().enqueued(2, id="b").enqueued(1 if bad else 3)


def r12(*, bad: bool) -> HistoryBuilder:
    """The younger job is claimed while the older one waits, or at about the same time."""
    history = HistoryBuilder().enqueued(1).enqueued(2, id="b").claimed(20, 2, 2, id="b", limit=1)
    return history.claimed(21, 1, 1) if bad else history.claimed(21, 1, 1, at=31)


def r13(*, bad: bool) -> HistoryBuilder:
    counts = {"waiting": int(bad), "active": 0, "blocked": 0}
    return completed_once().drained().read().add("counts", "counted", id="", counts=counts)


def r14(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().add("configure", "configured", id="", patch={"fail_handler": "true"})
    history = history.enqueued(1).claimed(10, 1, 1).settled("fail", 10, "done")
    if not bad:
        history = history.claimed(12, 5, 5, queue="q!fail", id="f", origin=("q", "a", 10))
    return history.drained()


def r15(*, bad: bool) -> HistoryBuilder:
    return HistoryBuilder().enqueued(1).claimed(8_000, 1, 1, now=8, run_at=9 if bad else 8)


def r16(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1)
    history = history if bad else history.add("configure", "configured", id="", paused=True)
    history = history.add("claim", "short", id="", lease="l", limit=1, now=5)
    return history.add("configure", "configured", id="", paused=False).claimed(10, 1, 1)


def r17(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().add("grant", "granted", id="", lease="l", now=0, until=10)
    return history.add("renew", "alive", id="", lease="l", now=10 if bad else 9, until=20)


def another_result_is_kept(*, bad: bool) -> HistoryBuilder:
    return completed_once().read(outcome=RecordedOutcome("completed", 10, 1, 1, "other" if bad else "r"))


def r19(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().add("effect", "taken", fence=11)
    return history.add("effect", "taken" if bad else "refused", fence=10)


def cancelled_job_runs(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1).add("cancel", "cancelled" if bad else "unknown")
    return history.claimed(10, 1, 1)


def blocked_job_is_dropped(*, bad: bool) -> HistoryBuilder:
    history = (
        HistoryBuilder().enqueued(1).claimed(10, 1, 1).enqueued(2, "blocked").settled("retry", 10, "returned")
    )
    return history.claimed(11, 1, 1, attempt=2) if bad else history.claimed(11, 1, 2, attempt=1)


def r23(*, bad: bool) -> HistoryBuilder:
    """The second claim begins before max_active is configured, or after."""
    history = HistoryBuilder().enqueued(1).enqueued(2, id="b").claimed(20, 1, 1, limit=1)
    history = history.add("configure", "configured", id="", max_active=1, at=40)
    return history.claimed(21, 2, 2, id="b", at=50 if bad else 38, ended=60)


def r24(*, bad: bool) -> HistoryBuilder:
    history = HistoryBuilder().enqueued(1).add("configure", "configured", id="", paused=True)
    return history.claimed(20, 1, 1, at=30 if bad else 24)


def r25(*, bad: bool) -> HistoryBuilder:
    """Two overlapping configures: the later answer has both patches, or only its own."""
    history = HistoryBuilder().add("configure", "configured", id="", patch={"paused": "false"}, at=10)
    history = history.add("configure", "configured", id="", patch={"log_age": "9"}, at=12)
    settings = {"log_age": "86400000" if bad else "9"}
    return history.add("configure", "configured", id="", patch={}, settings=settings, at=20)


def log_page(history: HistoryBuilder, after: str | None, end: str, *entries: LoggedEntry) -> HistoryBuilder:
    return history.add("events", "read", id="", after=after, next=end, logged=entries)


def r26(*, bad: bool) -> HistoryBuilder:
    """A reader gets the offset 3, and an event appears at the offset 2, or at 4."""
    first, second = LoggedEntry("1", "queued", "a"), LoggedEntry("3", "queued", "b")
    late = LoggedEntry("2" if bad else "4", "queued", "c")
    history = log_page(HistoryBuilder(), None, "3", first, second).drained()
    log = sorted((first, second, late), key=lambda entry: entry.offset)
    return log_page(log_page(history, None, log[-1].offset, *log), log[-1].offset, log[-1].offset)


def r27(*, bad: bool) -> HistoryBuilder:
    end = LoggedEntry("1", "completed", "a", 10)
    history = completed_once().drained()
    history = log_page(history, None, "1", *(() if bad else (end,)))
    return history if bad else log_page(history, "1", "1")


def memo_is_lost(*, bad: bool) -> HistoryBuilder:
    """A run stores a memo and is retried. The next run gets it, or none."""
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).add("report", "reported", fence=10, memo="m")
    history = history.settled("retry", 10, "returned")
    return history.claimed(11, 1, 1, attempt=2, memo="none" if bad else "m")


def r30(*, bad: bool) -> HistoryBuilder:
    """Two runs of one key are active at once, or of two keys."""
    history = HistoryBuilder().add("configure", "configured", id="", patch={"per_key": "1"})
    history = history.enqueued(1).enqueued(2, id="b").claimed(20, 1, 1, job_key="k")
    return history.claimed(21, 2, 2, id="b", job_key="k" if bad else "m")


def r31(*, bad: bool) -> HistoryBuilder:
    """The third run starts 9 ms after the first two, or 10 ms, at a rate of one run each 10 ms."""
    rate = '{"starts":1,"per":10,"burst":2}'
    history = HistoryBuilder().add("configure", "configured", id="", patch={"rate": rate})
    for number, (id, now) in enumerate((("a", 100), ("b", 100), ("c", 109 if bad else 110)), 1):
        history = history.enqueued(number, id=id).claimed(200_000 + number, number, number, id=id, now=now)
    return history


def r32(*, bad: bool) -> HistoryBuilder:
    """The second run of an id begins 1 ms before the end of the first one, or at its end."""
    first = LoggedEntry("1", "released", "a", 10, 5, 8)
    second = LoggedEntry("2", "completed", "a", 11, 7 if bad else 8, 9)
    return log_page(HistoryBuilder(), None, "2", first, second)


#: By the name of a rule, or by what is wrong in an answer about a single id.
PLANTED: dict[str, Callable[..., HistoryBuilder]] = {
    name.upper(): history for name, history in globals().items() if name[0] == "r" and name[1:].isdigit()
}
OF_ONE_ID: dict[str, Callable[..., HistoryBuilder]] = {
    one.__name__: one
    for one in (
        *(accepted_is_lost, run_has_an_older_payload, two_active_runs, late_holder_is_heard, run_ends_twice),
        *(holder_is_refused, attempt_is_skipped, another_result_is_kept, cancelled_job_runs),
        *(blocked_job_is_dropped, memo_is_lost),
    )
}


def planted(name: str, *, bad: bool) -> Steps:
    return (PLANTED | OF_ONE_ID)[name](bad=bad).steps
