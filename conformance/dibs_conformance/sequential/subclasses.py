"""A probe of promise 8: a subclass of str, bytes or int counts as its plain value.

The texts of the probe say something else in `str()`, `repr()` and format strings, as members of an Enum do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from attrs import define, field

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import EnqueueRequest, Fail, HandOff, JobPatch, SettingsPatch, Settlement
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.bad_input import NOW


class Text(str):
    """A text whose conversions to text are another text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        return "another text"


class Bytes(bytes):
    """A subclass of bytes."""


def number(value: int) -> int:
    """Return a member of an IntEnum with this value."""
    return IntEnum("Number", {"MEMBER": value}).MEMBER  # type: ignore[attr-defined,no-any-return]


@define
class Answers:
    """The number of answers that were compared, and a description of each wrong one."""

    made: int = 0
    wrong: list[str] = field(factory=list)

    def compare(self, verb: str, answer: Any, expected: Any) -> None:
        self.made += 1
        if answer != expected:
            self.wrong.append(f"{verb} with values of subclasses: {answer!r}, expected {expected!r}")


async def check_subclasses(storage: Storage) -> tuple[int, list[str]]:
    """Make each call of a job's life with values of subclasses, and read the job with plain values."""
    answers = Answers()
    try:
        await _check_life(storage, answers)
    except Exception as error:  # noqa: BLE001 - any exception is the finding
        answers.wrong.append(f"a verb with values of subclasses: {type(error).__name__}: {error}")
    return max(1, answers.made), answers.wrong


async def _check_life(storage: Storage, answers: Answers) -> None:
    queue, id, now = Text("q"), Text("a"), number(NOW)
    lease = await _check_claim(storage, answers, queue, id, now)
    [slot] = await storage.get("q", ["a"], now=NOW)
    job = slot.current
    if job is None or job.run is None:
        answers.wrong.append("a job with values of subclasses is not active after its claim")
        return
    fence, revision = number(job.run.fence), number(job.revision)
    answers.compare("holder of the run", job.run.holder, "kit")
    reported = await storage.report(queue, id, fence, Bytes(b"1"), Bytes(b"m"), now=now)
    answers.compare("report", reported, "reported")
    [slot] = await storage.get("q", ["a"], now=NOW)
    answers.compare("memo of the job", slot.current and slot.current.data.memo, b"m")
    patch = JobPatch(attributes={Text("b"): Bytes(b"2")})
    answers.compare("amend", await storage.amend(queue, id, patch, now=now), "amended")
    answers.compare("cancel", list(await storage.cancel(queue, [id], now=now)), ["active"])
    settled = await storage.settle(queue, [Settlement(id=id, fence=fence, action=HandOff())], now=now)
    answers.compare("settle", [one.status for one in settled], ["handed_off"])
    failure = Fail(error=Error(type=Text("E"), message=Text("m")))
    answers.compare("finish", await storage.finish(queue, id, failure, revision, now=now), "done")
    await _check_end(storage, answers, queue, id, lease)


async def _check_claim(storage: Storage, answers: Answers, queue: str, id: str, now: int) -> str:
    """Enqueue and claim a job with values of subclasses. Return the lease."""
    data = JobData(payload=Bytes(b"p"), priority=number(1), attributes={Text("a"): Bytes(b"1")})
    request = EnqueueRequest(job=NewJob(id=id, data=data, delay=number(0)), request_key=Text("key"))
    await storage.enqueue(queue, [request], now=now)
    plain = EnqueueRequest(job=NewJob(id="b"), request_key="key")
    [repeat] = await storage.enqueue("q", [plain], now=NOW)
    answers.compare("enqueue, repeated", (repeat.repeated, repeat.id), (True, "a"))
    [slot] = await storage.get("q", ["a"], now=NOW)
    kept = JobData(payload=b"p", priority=1, attributes={"a": b"1"})
    answers.compare("enqueue", slot.current and slot.current.data, kept)
    page = await storage.list(queue, Text("waiting"), limit=number(10), now=now)  # type: ignore[arg-type]
    answers.compare("list", [item for item, _ in page.items], ["a"])
    lease = Text((await storage.grant([queue], number(60_000), Text("kit"), now=now)).lease)
    renewed = await storage.renew([queue], lease, number(60_000), now=now)
    answers.compare("renew", [one.alive for one in renewed.values()], [True])
    claimed = await storage.claim(queue, lease, number(1), now=now)
    answers.compare("claim", [job.id for job in claimed.jobs], ["a"])
    return lease


async def _check_end(storage: Storage, answers: Answers, queue: str, id: str, lease: str) -> None:
    [slot] = await storage.get("q", ["a"], now=NOW)
    error = slot.outcome.error if slot.outcome else None
    answers.compare("error of the outcome", error and (error.type, error.message), ("E", "m"))
    answers.compare("retry_failed", list(await storage.retry_failed(queue, [id], now=NOW)), ["queued"])
    answers.compare("counts", [one.waiting for one in (await storage.counts([queue], now=NOW)).values()], [1])
    settings = await storage.configure(queue, SettingsPatch(max_active=number(2)), now=NOW)
    answers.compare("configure", settings.max_active, 2)
    answers.compare("queues", [info.name for info in await storage.queues()], ["q"])
    answers.compare("export", [one.id for one in (await storage.export(queue)).records], ["a"])
    answers.compare("drop", [*(await storage.drop([queue], lease, number(1), now=NOW)).values()], [0])
    answers.compare("forget", list(await storage.forget(queue, [id], now=NOW)), [True])
    pruned = await storage.prune(queue, number(1), now=NOW)
    answers.compare("prune", pruned.outcomes, 0)
