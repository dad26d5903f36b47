"""Tests of the limits: a storage refuses invalid input before it writes, and accepts values at a limit.

A batch with invalid items must fail with the indexes of these items. The other items are valid: a storage
that writes before it has checked the whole batch stores them, and fails the test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from attrs import frozen

from dibs.errors import BatchRefused, Refused
from dibs.model.job import FAIL_SUFFIX, Error, JobData, NewJob, OutcomeRetention
from dibs.model.overrides import DECLARATIONS, Overrides
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    JobPatch,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs.storage.protocol import Storage
from dibs_conformance.strategies import OVERRIDE_VALUES

KIB = 1024
MIB = 1024 * KIB
NOW = 1_767_225_600_000
#: The longest duration in ms, and the latest run_at in ms since the epoch.
LONGEST = 100_000 * 86_400_000
LATEST = 253_370_764_799_999
DEEP = b"[" * 65 + b"]" * 65
LARGE = b'"' + b"x" * 64 * KIB + b'"'

BAD_JSON = {
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "no JSON": b"{",
    "not UTF-8": b'"\xff"',
    "a NUL": b'"\\u0000"',
    "a lone surrogate": b'"\\ud800"',
    "65 levels": DEEP,
}
BAD_ATTRIBUTES = {
    **{name: {"a": value} for name, value in BAD_JSON.items()},
    "an integer above 2**53": {"a": b"9007199254740993"},
    "more than 64 KiB": {"a": LARGE},
    "a NUL in a name": {"a\0": b"1"},
    "a lone surrogate in a name": {"\ud800": b"1"},
}
BAD_JOBS = {
    "id empty": NewJob(id=""),
    "id of 513 bytes": NewJob(id="é" * 256 + "x"),
    "id with NUL": NewJob(id="a\0"),
    "id with a lone surrogate": NewJob(id="\ud800"),
    "a memo": NewJob(id="a", data=JobData(memo=b"m")),
    "payload above 1 MiB": NewJob(id="a", data=JobData(payload=b"x" * (MIB + 1))),
    "key empty": NewJob(id="a", data=JobData(key="")),
    "key of 129 bytes": NewJob(id="a", data=JobData(key="é" * 64 + "x")),
    "key with NUL": NewJob(id="a", data=JobData(key="k\0")),
    "key with a lone surrogate": NewJob(id="a", data=JobData(key="\ud800")),
    "priority 1001": NewJob(id="a", data=JobData(priority=1001)),
    "priority -1001": NewJob(id="a", data=JobData(priority=-1001)),
    "run_at and delay": NewJob(id="a", run_at=1, delay=1),
    "a negative delay": NewJob(id="a", delay=-1),
    "a negative run_at": NewJob(id="a", run_at=-1),
    "a delay above 100,000 days": NewJob(id="a", delay=LONGEST + 1),
    "a run_at after the year 9998": NewJob(id="a", run_at=LATEST + 1),
    "a retention above 100,000 days": NewJob(
        id="a", data=JobData(retention=OutcomeRetention(cancelled=LONGEST + 1))
    ),
    **{
        f"{name} beyond its limit": NewJob(
            id="a", data=JobData(overrides=Overrides(**{name: OVERRIDE_VALUES[one.kind][2]}))
        )
        for name, one in DECLARATIONS.items()
    },
    **{
        f"attributes: {name}": NewJob(id="a", data=JobData(attributes=held))
        for name, held in BAD_ATTRIBUTES.items()
    },
}
#: Update-only requests that would replace data, or that have data.
BAD_UPDATES = {
    "create=False with data=True": EnqueueRequest(
        job=NewJob(id="a"), on_conflict=Update(create=False, data=True)
    ),
    **{
        f"create=False with {name}": EnqueueRequest(
            job=NewJob(id="held", data=data), on_conflict=Update(create=False)
        )
        for name, data in {
            "a payload": JobData(payload=b"1"),
            "attributes": JobData(attributes={"a": b"1"}),
            "a priority": JobData(priority=1),
            "a key": JobData(key="k"),
            "overrides": JobData(overrides=Overrides(timeout=1)),
            "a retention": JobData(retention=OutcomeRetention(failed=1)),
        }.items()
    },
}
BAD_QUEUES = {"empty": "", "501 bytes": "q" * 501, "NUL": "q\0", "a lone surrogate": "\ud800"}
BAD_PATCHES = {
    "payload above 1 MiB": JobPatch(payload=b"x" * (MIB + 1)),
    "priority 1001": JobPatch(priority=1001),
    "run_at and delay": JobPatch(run_at=1, delay=1),
    "a negative delay": JobPatch(delay=-1),
    "a delay above 100,000 days": JobPatch(delay=LONGEST + 1),
    "a run_at after the year 9998": JobPatch(run_at=LATEST + 1),
    "a lease of 0 ms": JobPatch(lease=0),
    "a lease above 100,000 days": JobPatch(lease=LONGEST + 1),
    "a retention above 100,000 days": JobPatch(retention=OutcomeRetention(failed=LONGEST + 1)),
    **{f"attributes: {name}": JobPatch(attributes=held) for name, held in BAD_ATTRIBUTES.items()},
    "attributes above 64 KiB once merged": JobPatch(attributes={"b": b'"' + b"x" * 40 * KIB + b'"'}),
}
BAD_SETTINGS = {
    "a log_age above 100,000 days": SettingsPatch(log_age=LONGEST + 1),
    "a request_key_age above 100,000 days": SettingsPatch(request_key_age=LONGEST + 1),
    "a retention above 100,000 days": SettingsPatch(retention=OutcomeRetention(completed=LONGEST + 1)),
    "log_results of 4,097": SettingsPatch(log_results=4097),
    "negative log_results": SettingsPatch(log_results=-1),
}
AT_LIMITS = {
    "id of 512 bytes": NewJob(id="é" * 256),
    "payload of 1 MiB": NewJob(id="p", data=JobData(payload=b"x" * MIB)),
    "priorities 1000 and -1000": NewJob(id="h", data=JobData(priority=-1000)),
    "key of 128 bytes": NewJob(id="y", data=JobData(key="é" * 64)),
    "64 levels": NewJob(id="d", data=JobData(attributes={"a": DEEP[1:-1]})),
    "2**53": NewJob(id="i", data=JobData(attributes={"a": b"-9007199254740992"})),
    "a delay of 100,000 days": NewJob(
        id="f", delay=LONGEST, data=JobData(retention=OutcomeRetention(failed=LONGEST, cancelled=LONGEST))
    ),
    "a run_at at the end of the year 9998": NewJob(id="l", run_at=LATEST),
    "no attributes, no payload": NewJob(id="n", data=JobData(payload=b"", attributes={})),
}


#: A value of a wrong type, for arguments that are texts, numbers or flags.
WRONG: Any = ["held"]
WRONG_TYPES: dict[str, Callable[[Storage], Awaitable[Any]]] = {
    "cancel, an id that is a list": lambda storage: storage.cancel("q", ["held", WRONG], now=NOW),
    "cancel, one text as ids": lambda storage: storage.cancel("q", "held", now=NOW),
    "cancel, running that is a list": lambda storage: storage.cancel("q", ["held"], running=WRONG, now=NOW),
    "forget, an id that is a list": lambda storage: storage.forget("q", [WRONG], now=NOW),
    "retry_failed, an id that is a list": lambda storage: storage.retry_failed("q", [WRONG], now=NOW),
    "get, an id that is a list": lambda storage: storage.get("q", [WRONG], now=NOW),
    "amend, an id that is a list": lambda storage: storage.amend("q", WRONG, JobPatch(priority=1), now=NOW),
    "finish, a revision that is a list": lambda storage: storage.finish(
        "q", "held", Complete(), WRONG, now=NOW
    ),
    "events, a text that is no offset": lambda storage: storage.events("q", after="no offset", now=NOW),
}


@frozen
class InvalidCall:
    """One call with invalid input."""

    name: str
    call: Callable[[Storage], Awaitable[Any]]
    #: The indexes that a BatchRefused must name. None if the call must raise a single Refused.
    indexes: tuple[int, ...] | None = None


def invalid_calls(fence: int) -> Iterator[InvalidCall]:
    """Yield every invalid call. They need the jobs of `prepare_jobs`, and the fence that it returned."""
    good = EnqueueRequest(job=NewJob(id="a"))
    for name, job in BAD_JOBS.items():
        yield enqueue_case(name, [good, EnqueueRequest(job=job), good, EnqueueRequest(job=job)], (1, 3))
    for name, request in BAD_UPDATES.items():
        yield enqueue_case(name, [good, request, good], (1,))
    long_key = EnqueueRequest(job=NewJob(id="a"), request_key="k" * 129)
    yield enqueue_case("a request_key of 129 bytes", [long_key, good], (0,))
    yield enqueue_case("a batch of 1,001", [good] * 1001, None)
    for name, queue in {**BAD_QUEUES, "a fail queue": "q" + FAIL_SUFFIX}.items():
        yield InvalidCall(f"enqueue, queue {name}", enqueue_to(queue, good))
    for name, patch in BAD_PATCHES.items():
        yield InvalidCall(f"amend, {name}", amend_with(patch))
    for name, settings in BAD_SETTINGS.items():
        yield InvalidCall(f"configure, {name}", configure_with(settings))
    for name, call in WRONG_TYPES.items():
        yield InvalidCall(name, call)
    yield InvalidCall("grant, a ttl above 100,000 days", grant_for(LONGEST + 1))
    for name, value in {**BAD_JSON, "above 1 MiB": b'"' + b"x" * MIB + b'"'}.items():
        yield InvalidCall(f"report, progress: {name}", report_with(fence, value))
        yield InvalidCall(f"report, memo and progress: {name}", report_with(fence, value, b"m"))
    yield InvalidCall("report, memo above 1 MiB", report_with(fence, None, b"x" * (MIB + 1)))
    yield InvalidCall("report, progress and memo above 1 MiB", report_with(fence, b"1", b"x" * (MIB + 1)))
    yield InvalidCall("report without progress and memo", report_with(fence, None))
    merged = JobPatch(attributes={"b": b'"' + b"x" * 40 * KIB + b'"'})
    yield InvalidCall("amend, attributes of an outcome above 64 KiB once merged", amend_with(merged, "done"))


def enqueue_case(name: str, requests: list[EnqueueRequest], indexes: tuple[int, ...] | None) -> InvalidCall:
    """Return an invalid call that enqueues a batch. `indexes` are the positions of its invalid items."""

    async def call(storage: Storage) -> None:
        await storage.enqueue("q", requests, now=NOW)

    return InvalidCall(f"enqueue, {name}", call, indexes)


def enqueue_to(queue: str, request: EnqueueRequest) -> Callable[[Storage], Awaitable[Any]]:
    async def call(storage: Storage) -> None:
        await storage.enqueue(queue, [request], now=NOW)

    return call


def amend_with(patch: JobPatch, id: str = "seen") -> Callable[[Storage], Awaitable[Any]]:
    async def call(storage: Storage) -> None:
        await storage.amend("q", id, patch, now=NOW)

    return call


def configure_with(patch: SettingsPatch) -> Callable[[Storage], Awaitable[Any]]:
    async def call(storage: Storage) -> None:
        await storage.configure("q", patch, now=NOW)

    return call


def grant_for(ttl: int) -> Callable[[Storage], Awaitable[Any]]:
    async def call(storage: Storage) -> None:
        await storage.grant(["q"], ttl, "kit", now=NOW)

    return call


def report_with(
    fence: int, progress: bytes | None, memo: bytes | None = None
) -> Callable[[Storage], Awaitable[Any]]:
    async def call(storage: Storage) -> None:
        await storage.report("q", "held", fence, progress, memo, now=NOW)

    return call


def invalid_actions() -> Iterator[tuple[str, SettleAction]]:
    """Yield the name and the action of each settlement that must get the result `refused`."""
    yield "a result above 1 MiB", Complete(result=b"x" * (MIB + 1))
    yield "a retry after 100,000 days", RetryLater(delay=LONGEST + 1)
    yield "a retry after the year 9998", RetryLater(run_at=LATEST + 1)
    yield "a release after 100,000 days", Release(delay=LONGEST + 1)
    yield "a release after the year 9998", Release(run_at=LATEST + 1)
    yield "a release with run_at and delay", Release(run_at=NOW, delay=1)
    for name, request in BAD_UPDATES.items():
        follow_up = FollowUp(queue="q", job=request.job, on_conflict=request.on_conflict)
        yield f"a follow-up, {name}", Complete(then=(follow_up,))
    yield (
        "a retention above 100,000 days",
        Complete(retention=OutcomeRetention(completed=LONGEST + 1)),
    )
    for name, job in BAD_JOBS.items():
        yield (
            f"a follow-up, {name}",
            Complete(then=(FollowUp(queue="q", job=NewJob(id="a")), FollowUp(queue="q", job=job))),
        )
    for name, queue in {**BAD_QUEUES, "a fail queue": "q" + FAIL_SUFFIX}.items():
        yield (
            f"a follow-up, queue {name}",
            Fail(error=Error(type="E"), then=(FollowUp(queue=queue, job=NewJob(id="a")),)),
        )


async def prepare_jobs(storage: Storage) -> int:
    """Create an active job `held`, a completed job `done` and a waiting job `seen` with attributes.

    Return the fence of `held`.
    """
    attributes = {"a": b'"' + b"x" * 40 * KIB + b'"'}
    ended = EnqueueRequest(job=NewJob(id="done", data=JobData(attributes=attributes)))
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="held")), ended], now=NOW)
    granted = await storage.grant(["q"], 3_600_000, "kit", now=NOW)
    job, done = (await storage.claim("q", granted.lease, 2, now=NOW)).jobs
    fence = done.run.fence if done.run is not None else 0
    await storage.settle("q", [Settlement(id="done", fence=fence, action=Complete())], now=NOW)
    await storage.enqueue(
        "q", [EnqueueRequest(job=NewJob(id="seen", data=JobData(attributes=attributes)))], now=NOW
    )
    assert job.run is not None  # noqa: S101 - a claimed job runs
    return job.run.fence


async def read_state(storage: Storage) -> Any:
    """Return everything that the invalid calls could change: slots, counts and queue names."""
    slots = await storage.get("q", ["a", "done", "held", "seen"], now=NOW)
    names = sorted(info.name for info in await storage.queues())
    return list(slots), await storage.counts(["q"], now=NOW), names


async def check_invalid_input(storage: Storage) -> tuple[int, list[str]]:
    """Make every invalid call. Return the number of calls, and a description of each wrong result."""
    fence = await prepare_jobs(storage)
    cases = list(invalid_calls(fence))
    wrong = [text for case in cases if (text := await check_invalid_call(storage, case))]
    ends = list(invalid_actions())
    wrong += [
        text for name, action in ends if (text := await check_invalid_action(storage, fence, name, action))
    ]
    return len(cases) + len(ends), wrong


async def check_invalid_call(storage: Storage, case: InvalidCall) -> str | None:
    """Make one invalid call. Return None if it was refused and changed no job, else a description."""
    before = await read_state(storage)
    try:
        await case.call(storage)
    except BatchRefused as group:
        found = tuple(error.index for error in group.exceptions if isinstance(error, Refused))
        if found != case.indexes:
            return f"{case.name}: BatchRefused for the indexes {found}, expected {case.indexes}"
    except Refused:
        if case.indexes is not None:
            return f"{case.name}: Refused instead of a BatchRefused for the indexes {case.indexes}"
    except Exception as error:  # noqa: BLE001 - any other exception is the finding
        return f"{case.name}: {type(error).__name__} instead of Refused"
    else:
        return f"{case.name}: accepted"
    return None if await read_state(storage) == before else f"{case.name}: refused, but the storage changed"


async def check_invalid_action(storage: Storage, fence: int, name: str, action: SettleAction) -> str | None:
    """Settle with an invalid action. Return None if it was refused and changed no job, else a description."""
    before = await read_state(storage)
    try:
        [answer] = await storage.settle("q", [Settlement(id="held", fence=fence, action=action)], now=NOW)
    except Exception as error:  # noqa: BLE001 - any other exception is the finding
        return f"settle, {name}: {type(error).__name__} instead of the result refused"
    if answer.status != "refused":
        return f"settle, {name}: {answer.status}"
    return (
        None if await read_state(storage) == before else f"settle, {name}: refused, but the storage changed"
    )


async def check_values_at_limits(storage: Storage) -> tuple[int, list[str]]:
    """Enqueue values that are exactly at a limit. Return their number, and a text for each wrong result."""
    batch = [EnqueueRequest(job=NewJob(id=f"b{n}")) for n in range(1000)]
    tries = {name: ("q", [EnqueueRequest(job=job)]) for name, job in AT_LIMITS.items()}
    tries["a batch of 1,000"] = ("q", batch)
    tries["a queue of 500 bytes"] = ("é" * 250, batch[:1])
    await storage.configure("q", SettingsPatch(log_results=4096), now=NOW)
    tries["a request_key of 128 bytes"] = ("q", [EnqueueRequest(job=NewJob(id="k"), request_key="k" * 128)])
    wrong = [
        text
        for name, (queue, requests) in tries.items()
        if (text := await find_accept_error(storage, name, queue, requests))
    ]
    return len(tries), wrong


async def find_accept_error(
    storage: Storage, name: str, queue: str, requests: list[EnqueueRequest]
) -> str | None:
    """Enqueue a valid batch. Return None if it was stored unchanged, else a description."""
    try:
        answers = await storage.enqueue(queue, requests, now=NOW)
    except Exception as error:  # noqa: BLE001 - any other exception is the finding
        return f"{name}: {type(error).__name__}: {error}"
    kept = await storage.get(queue, [request.job.id for request in requests], now=NOW)
    same = [
        s.current is not None and s.current.data == r.job.data for s, r in zip(kept, requests, strict=True)
    ]
    return (
        None if len(answers) == len(requests) and all(same) else f"{name}: accepted, but stored differently"
    )
