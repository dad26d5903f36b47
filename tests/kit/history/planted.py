"""For each rule of the checker a short history that only it finds bad, and a close one that is good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs_conformance.history import Step
from dibs_conformance.history.step import End, Read

History = list[Step]


class Tale:
    """Steps one after the other, ten moments each; `at` and `until` put one elsewhere."""

    def __init__(self) -> None:
        self.steps: History = []

    def add(self, op: Any, status: str = "unknown", *, at: int | None = None, **words: Any) -> Tale:
        began = 10 * (len(self.steps) + 1) if at is None else at
        ended = words.pop("ended", None if status == "unknown" else began + 5)
        said: dict[str, Any] = {"queue": "q", "id": "a", "client": "c"} | words
        self.steps.append(Step(op=op, status=status, began=began, ended=ended, **said))
        return self

    def enqueued(self, revision: int, status: str = "queued", **words: Any) -> Tale:
        first = words.pop("first", revision)
        return self.add(
            "enqueue", status, first=first, revision=revision, payload=words.pop("payload", "x"), **words
        )

    def claimed(self, fence: int, first: int, revision: int, **words: Any) -> Tale:
        said: dict[str, Any] = {"attempt": 1, "payload": "x", "lease": "l", "seq": first} | words
        return self.add("claim", "taken", fence=fence, first=first, revision=revision, **said)

    def settled(self, how: str, fence: int, status: str, **words: Any) -> Tale:
        return self.add("settle", status, how=how, fence=fence, **words)

    def read(self, **words: Any) -> Tale:
        where = {name: words.pop(name) for name in ("id", "queue") if name in words}
        return self.add("get", "read", read=Read(**words), **where)

    def drained(self) -> Tale:
        return self.add("drained", "drained", id="")


def once() -> Tale:
    """Enqueued, claimed and completed."""
    return Tale().enqueued(1).claimed(10, 1, 1).settled("complete", 10, "done", result="r")


# Each pair: the same tale, but for what the rule is about.


def r1(*, bad: bool) -> Tale:
    return Tale().enqueued(1).read() if bad else Tale().enqueued(1).add("forget").read()


def r2(*, bad: bool) -> Tale:
    return Tale().enqueued(1).drained().read(current=(1, 1)) if bad else once().drained().read()


def r3(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1, payload="old").enqueued(2, "updated", first=1, payload="new")
    return tale.claimed(10, 1, 2, payload="old" if bad else "new")


def r4(*, bad: bool) -> Tale:
    return Tale().enqueued(1).claimed(999 if bad else 1_000, 1, 1, now=1)


def fences_go_back() -> History:
    """Closed by a lost reap; the numbers alone tell."""
    return Tale().enqueued(1).claimed(10, 1, 1).add("reap", id="").claimed(9, 1, 1, attempt=2).steps


def r5(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).claimed(10, 1, 1)
    tale = tale if bad else tale.add("drop", "dropped", id="", lease="l")
    return tale.claimed(11, 1, 1, attempt=1, lease="m")


def r6(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).claimed(10, 1, 1).add("reap", id="").claimed(11, 1, 1, attempt=2)
    return tale.settled("complete", 10, "done" if bad else "lost")


def r7(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).claimed(10, 1, 1).settled("retry", 10, "returned")
    return tale.settled("complete", 10, "done" if bad else "lost")


def r8(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).claimed(10, 1, 1)
    return (tale if bad else tale.add("reap", id="")).settled("complete", 10, "lost")


def r9(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1, key="k")
    return tale.enqueued(2, "updated", key="k") if bad else tale.enqueued(1, key="k", repeated=True)


def r10(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).claimed(10, 1, 1).settled("retry", 10, "returned")
    return tale.claimed(11, 1, 1, attempt=3 if bad else 2)


def r11(*, bad: bool) -> Tale:
    return Tale().enqueued(2, id="b").enqueued(1 if bad else 3)


def r12(*, bad: bool) -> Tale:
    """The older one waits while the younger is taken; or is taken at about the same time."""
    tale = Tale().enqueued(1).enqueued(2, id="b").claimed(20, 2, 2, id="b", limit=1)
    return tale.claimed(21, 1, 1) if bad else tale.claimed(21, 1, 1, at=31)


def r13(*, bad: bool) -> Tale:
    counts = {"waiting": int(bad), "active": 0, "blocked": 0}
    return once().drained().read().add("counts", "counted", id="", counts=counts)


def r14(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).claimed(10, 1, 1).settled("fail", 10, "done", handled=True)
    if not bad:
        tale = tale.claimed(12, 5, 5, queue="q!fail", id="f", origin=("q", "a", 10))
    return tale.drained()


def r15(*, bad: bool) -> Tale:
    return Tale().enqueued(1).claimed(8_000, 1, 1, now=8, run_at=9 if bad else 8)


def r16(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1)
    tale = tale if bad else tale.add("configure", "configured", id="", paused=True)
    return tale.add("claim", "short", id="", lease="l", limit=1, now=5).claimed(10, 1, 1)


def r17(*, bad: bool) -> Tale:
    tale = Tale().add("grant", "granted", id="", lease="l", now=0, until=10)
    return tale.add("renew", "alive", id="", lease="l", now=10 if bad else 9, until=20)


def r18(*, bad: bool) -> Tale:
    return once().read(outcome=End("completed", 10, 1, 1, "other" if bad else "r"))


def r19(*, bad: bool) -> Tale:
    tale = Tale().add("effect", "taken", fence=11)
    return tale.add("effect", "taken" if bad else "refused", fence=10)


def r20(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).add("cancel", "cancelled" if bad else "unknown")
    return tale.claimed(10, 1, 1)


def r21(*, bad: bool) -> Tale:
    tale = Tale().enqueued(1).claimed(10, 1, 1).enqueued(2, "blocked").settled("retry", 10, "returned")
    return tale.claimed(11, 1, 1, attempt=2) if bad else tale.claimed(11, 1, 2, attempt=1)


TALES: dict[str, Callable[..., Tale]] = {
    name.upper(): tale for name, tale in globals().items() if name[0] == "r" and name[1:].isdigit()
}


def planted(name: str, *, bad: bool) -> History:
    return TALES[name](bad=bad).steps
