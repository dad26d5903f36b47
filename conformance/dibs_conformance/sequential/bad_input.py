"""Tables of bad input: values beyond the limits of the contract, and values of wrong types.

In a batch with bad items, the other items are valid: a storage that writes before it has checked the whole
batch stores them, and is found. The wrong types are made from the signatures of the protocol: for each
argument of each verb, and for each field of a value object, such as a request or a patch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from attrs import frozen
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr, replace

from dibs.model.job import FAIL_SUFFIX, Error, JobData, NewJob, OutcomeRetention
from dibs.model.overrides import DECLARATIONS, Overrides
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    JobPatch,
    QueueStep,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    StartRate,
    Update,
)
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.capabilities import Capabilities
from dibs_conformance.strategies import OVERRIDE_VALUES

KIB = 1024
MIB = 1024 * KIB
NOW = 1_767_225_600_000
DAY = 86_400_000
#: The longest duration in ms, and the latest run_at in ms since the epoch.
LONGEST = 100_000 * DAY
LATEST = 253_370_764_799_999
DEEP = b"[" * 65 + b"]" * 65

BAD_JSON = {
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "no JSON": b"{",
    "not UTF-8": b'"\xff"',
    "a NUL": b'"\\u0000"',
    "a lone surrogate": b'"\\ud800"',
    "65 levels": DEEP,
}
BAD_ATTRIBUTES: dict[str, dict[str, bytes]] = {
    **{name: {"a": value} for name, value in BAD_JSON.items()},
    "an integer above 2**53": {"a": b"9007199254740993"},
    "more than 64 KiB": {"a": b'"' + b"x" * 64 * KIB + b'"'},
    "a NUL in a name": {"a\0": b"1"},
    "a lone surrogate in a name": {"\ud800": b"1"},
}
#: The attributes of `seen` and `failed`. Together with as many others they are larger than 64 KiB.
WIDE: Final = {"a": b'"' + b"x" * 40 * KIB + b'"'}
TOO_LONG: Final = OutcomeRetention(completed=LONGEST + 1)
BAD_DATA = {
    "a memo": JobData(memo=b"m"),
    "payload above 1 MiB": JobData(payload=b"x" * (MIB + 1)),
    "key empty": JobData(key=""),
    "key of 129 bytes": JobData(key="é" * 64 + "x"),
    "key with NUL": JobData(key="k\0"),
    "key with a lone surrogate": JobData(key="\ud800"),
    "priority 1001": JobData(priority=1001),
    "priority -1001": JobData(priority=-1001),
    "a retention above 100,000 days": JobData(retention=OutcomeRetention(cancelled=LONGEST + 1)),
    **{
        f"{name} beyond its limit": JobData(overrides=Overrides(**{name: OVERRIDE_VALUES[one.kind][2]}))
        for name, one in DECLARATIONS.items()
    },
    **{f"attributes: {name}": JobData(attributes=held) for name, held in BAD_ATTRIBUTES.items()},
}
BAD_TIMES: dict[str, dict[str, Any]] = {
    "run_at and delay": {"run_at": NOW, "delay": 1},
    "a negative delay": {"delay": -1},
    "a delay above 100,000 days": {"delay": LONGEST + 1},
    "a run_at after the year 9998": {"run_at": LATEST + 1},
}
BAD_JOBS = {
    "id empty": NewJob(id=""),
    "id of 513 bytes": NewJob(id="é" * 256 + "x"),
    "id with NUL": NewJob(id="a\0"),
    "id with a lone surrogate": NewJob(id="\ud800"),
    "a negative run_at": NewJob(id="a", run_at=-1),
    **{name: NewJob(id="a", **times) for name, times in BAD_TIMES.items()},
    **{name: NewJob(id="a", data=data) for name, data in BAD_DATA.items()},
}
#: Update-only requests that would replace data or supersede a run, or that have data.
BAD_UPDATES = {
    "create=False with data=True": EnqueueRequest(
        job=NewJob(id="a"), on_conflict=Update(create=False, data=True)
    ),
    "create=False with supersede=True": EnqueueRequest(
        job=NewJob(id="a"), on_conflict=Update(create=False, supersede=True)
    ),
    "a wake with create=True": EnqueueRequest(job=NewJob(id="a"), on_conflict=Update(run_at="wake")),
    "a wake with a delay": EnqueueRequest(
        job=NewJob(id="a", delay=1), on_conflict=Update(create=False, run_at="wake")
    ),
    "a wake with a run_at": EnqueueRequest(
        job=NewJob(id="a", run_at=NOW), on_conflict=Update(create=False, run_at="wake")
    ),
    **{
        f"create=False with {name}": EnqueueRequest(
            job=NewJob(id="held", data=data), on_conflict=Update(create=False)
        )
        for name, data in {
            "a payload": JobData(payload=b"1"),
            "attributes that are no JSON": JobData(attributes={"a": b"x"}),
            "a priority": JobData(priority=1),
            "a key": JobData(key="k"),
            "overrides": JobData(overrides=Overrides(timeout=1)),
            "a retention": JobData(retention=OutcomeRetention(failed=1)),
        }.items()
    },
}
BAD_QUEUES = {"empty": "", "501 bytes": "q" * 501, "NUL": "q\0", "a lone surrogate": "\ud800"}
#: Queues of an enqueue and a follow-up.
CLOSED_QUEUES = {**BAD_QUEUES, "a fail queue": "q" + FAIL_SUFFIX, "that of worker records": WORKERS_QUEUE}
MERGED: Final = JobPatch(attributes={"b": WIDE["a"]})
BAD_PATCHES = {
    "payload above 1 MiB": JobPatch(payload=b"x" * (MIB + 1)),
    "priority 1001": JobPatch(priority=1001),
    **{name: JobPatch(**times) for name, times in BAD_TIMES.items()},
    "a lease of 0 ms": JobPatch(lease=0),
    "a lease above 100,000 days": JobPatch(lease=LONGEST + 1),
    "a retention above 100,000 days": JobPatch(retention=TOO_LONG),
    **{f"attributes: {name}": JobPatch(attributes=held) for name, held in BAD_ATTRIBUTES.items()},
    "attributes above 64 KiB once merged": MERGED,
}
#: Values of `rate` and `key_rate`, with the field of the rate that the error must name.
BAD_RATES: Final[dict[str, tuple[Any, str]]] = {
    "no starts": (StartRate(0, 10), ".starts"),
    "more than 1,000,000 starts": (StartRate(1_000_001, 31 * DAY), ".starts"),
    "more than 1,000 starts a ms": (StartRate(1_001, 1), ".starts"),
    "starts that are a flag": (StartRate(starts=True, per=10), ".starts"),
    "starts that are a fraction": (StartRate(1.5, 10), ".starts"),  # type: ignore[arg-type]
    "a period of 0 ms": (StartRate(1, 0), ".per"),
    "a period above 31 days": (StartRate(1, 31 * DAY + 1), ".per"),
    "no burst": (StartRate(1, 10, 0), ".burst"),
    "a burst above 1,000,000": (StartRate(1000, 1, 1_000_001), ".burst"),
    "a burst of more than 366 days": (StartRate(1, 31 * DAY, 12), ".burst"),
    "a number": (10, ""),
    "a tuple": ((1, 10, 1), ""),
}
BAD_PER_KEY: Final[tuple[Any, ...]] = (0, -1, 1_000_001, True, 1.5, "1")
BAD_MAX_WAITING: Final[tuple[Any, ...]] = (0, -1, 1_000_000_001, True, 1.5, "1")
BAD_WHEN_FULL: Final[tuple[Any, ...]] = ("drop_old", "", None, 1)
BAD_SHARES: Final[dict[str, Any]] = {
    "below 0": {"k": -1},
    "above 1,000": {"k": 1001},
    "a fraction": {"k": 1.5},
    "a flag": {"k": True},
    "a text": {"k": "1"},
    "an empty key": {"": 1},
    "a key of 129 bytes": {"k" * 129: 1},
    "a key with NUL": {"k\0": 1},
    "a key that is a number": {1: 1},
    "more than 1,000": {f"k{n}": 1 for n in range(1001)},
    "more than 1,000 once merged": {f"k{n}": 1 for n in range(1000)},
    "None": None,
    "pairs": [("k", 1)],
}
#: Turns that are valid, but only for a storage with the capability `fair`.
VALID_TURNS: Final[dict[str, Any]] = {"fair": True, "shares": {"k": None}}
#: Limits that are valid, but only for a storage with the capability `limits`.
VALID_LIMITS: Final = {"per_key": 1, "rate": StartRate(1, 10), "key_rate": StartRate(1, 10), "max_waiting": 1}
VALID_LIMITS["when_full"] = "drop_new"
BAD_SETTINGS = {
    "a log_age above 100,000 days": SettingsPatch(log_age=LONGEST + 1),
    "a request_key_age above 100,000 days": SettingsPatch(request_key_age=LONGEST + 1),
    "a retention above 100,000 days": SettingsPatch(retention=TOO_LONG),
    "log_results of 4,097": SettingsPatch(log_results=4097),
    "negative log_results": SettingsPatch(log_results=-1),
}


@frozen
class BadInput:
    """The invalid arguments of a verb. The other ones are valid."""

    verb: str
    kind: str
    arguments: Mapping[str, Any]
    #: The field that the error must name; "" for any field.
    field: str = ""
    #: The indexes that a BatchRefused must name.
    indexes: tuple[int, ...] = ()


def bad_input(claims: Capabilities, steps: Sequence[QueueStep]) -> Iterator[BadInput]:
    """Yield the table, apart from bad actions. `steps` are two valid steps of `serve`, the last for `q`."""
    good = EnqueueRequest(job=NewJob(id="a"))
    for name, job in BAD_JOBS.items():
        bad = EnqueueRequest(job=job)
        yield BadInput("enqueue", name, {"requests": [good, bad, good, bad]}, indexes=(1, 3))
    for name, request in BAD_UPDATES.items():
        yield BadInput("enqueue", name, {"requests": [good, request, good]}, indexes=(1,))
    long_key = EnqueueRequest(job=NewJob(id="a"), request_key="k" * 129)
    yield BadInput("enqueue", "a request_key of 129 bytes", {"requests": [long_key, good]}, indexes=(0,))
    yield BadInput("enqueue", "a batch of 1,001", {"requests": [good] * 1001})
    for name in ("a fail queue", "that of worker records"):
        yield BadInput("enqueue", f"queue {name}", {"queue": CLOSED_QUEUES[name]})
    for name, patch in BAD_PATCHES.items():
        yield BadInput("amend", name, {"id": "seen", "patch": patch})
    yield BadInput(
        "amend", "attributes of an outcome above 64 KiB once merged", {"id": "failed", "patch": MERGED}
    )
    for name, settings in BAD_SETTINGS.items():
        yield BadInput("configure", name, {"patch": settings})
    yield from bad_limits(claims)
    yield from bad_turns(claims)
    for name, value in {**BAD_JSON, "above 1 MiB": b'"' + b"x" * MIB + b'"'}.items():
        for memo in (None, b"m"):
            yield BadInput("report", f"progress: {name}", {"progress": value, "memo": memo})
    for progress in (None, b"1"):
        memo = b"x" * (MIB + 1)
        yield BadInput("report", "memo above 1 MiB", {"progress": progress, "memo": memo})
    yield BadInput("report", "no progress and no memo", {"progress": None, "memo": None})
    yield from bad_output(claims)
    yield BadInput("cancel", "one text as ids", {"ids": "held"})
    yield from (
        BadInput("retry_failed", f"{id}, a delay of {delay}", {"ids": [id], "delay": delay})
        for id in ("failed", "unknown")
        for delay in (-1, LONGEST + 1, 0.5)
    )
    yield BadInput("events", "a text that is no offset", {"after": "no offset"})
    if claims.many_queues:
        yield from bad_steps(steps)


def bad_output(claims: Capabilities) -> Iterator[BadInput]:
    """Yield bad lists of chunks. Without the capability `output`, valid ones are bad, too."""
    outputs: dict[str, Any] = {
        "one bytes object": b"chunk",
        "a chunk of text": ["chunk"],
        "a chunk above 64 KiB": [b"x" * 65_537],
        "1,001 chunks": [b""] * 1001,
        "chunks that count more than 1 MiB": [b"x" * 65_536] * 16,
    }
    if not claims.output:
        outputs = {**outputs, "output without the capability": [b"chunk"]}
        yield BadInput("events", "the output of an id without the capability", {"id": "held"}, "id")
    for name, output in outputs.items():
        for memo in (None, b"m"):
            yield BadInput("report", name, {"progress": None, "memo": memo, "output": output}, "output")
    for after in ("no offset", 5) if claims.output else ():
        yield BadInput("events", f"{after!r} as offset in an output", {"id": "held", "after": after}, "after")


def bad_limits(claims: Capabilities) -> Iterator[BadInput]:
    """Yield bad limits of queues. Without the capability `limits`, valid ones are bad, too."""
    limits: list[tuple[str, Any, str]] = [("per_key", value, "") for value in BAD_PER_KEY]
    limits += [("max_waiting", value, "") for value in BAD_MAX_WAITING]
    limits += [("when_full", value, "") for value in BAD_WHEN_FULL]
    for name in ("rate", "key_rate"):
        limits += [(name, rate, field if claims.limits else "") for rate, field in BAD_RATES.values()]
    limits += [] if claims.limits else [(name, value, "") for name, value in VALID_LIMITS.items()]
    for name, value, field in limits:
        patch = SettingsPatch(max_active=7, **{name: value})
        yield BadInput("configure", f"{name}={value}", {"patch": patch}, name + field)
    if claims.limits:
        for queue in (FLOWS, EVALUATIONS):
            flows = {"queue": queue, "patch": SettingsPatch(max_waiting=1)}
            yield BadInput("configure", f"max_waiting of {queue}", flows, "max_waiting")


def bad_turns(claims: Capabilities) -> Iterator[BadInput]:
    """Yield bad turns of keys. Without the capability `fair`, valid ones are bad, too.

    The queue has a share already, so that 1,000 others are too many.
    """
    bad = {f"shares {name}": ("shares", shares) for name, shares in BAD_SHARES.items()}
    bad |= {f"fair={value}": ("fair", value) for value in (None, 1, "yes")}
    bad |= {} if claims.fair else {f"{name}={value}": (name, value) for name, value in VALID_TURNS.items()}
    for text, (name, value) in bad.items():
        patch = SettingsPatch(max_active=7, **{name: value})
        yield BadInput("configure", text, {"patch": patch}, name)


def bad_steps(good: Sequence[QueueStep]) -> Iterator[BadInput]:
    """Yield bad lists of steps for a storage with the capability `many_queues`."""
    steps: dict[str, list[QueueStep]] = {
        "no step": [],
        "two steps of a queue": [*good, QueueStep("new")],
        "1,001 steps": [*good, *(QueueStep(f"new {number}") for number in range(999))],
    }
    for name, one in steps.items():
        yield BadInput("serve", name, {"steps": one}, "steps")


def bad_actions() -> Iterator[tuple[str, SettleAction]]:
    """Yield the name and the action of each settlement that must get the result `refused`."""
    yield "a result above 1 MiB", Complete(result=b"x" * (MIB + 1))
    yield "a retention above 100,000 days", Complete(retention=TOO_LONG)
    for name, times in BAD_TIMES.items():
        if "negative" not in name:
            yield f"a release with {name}", Release(**times)
            yield f"a parked release with {name}", Release(**times, parked=True)
            yield f"a retry with {name}", RetryLater(**times)
    yield "a parked release without a time", Release(parked=True)
    bad = [FollowUp(queue="q", job=job) for job in BAD_JOBS.values()]
    bad += [FollowUp(queue="q", job=one.job, on_conflict=one.on_conflict) for one in BAD_UPDATES.values()]
    for name, follow_up in zip((*BAD_JOBS, *BAD_UPDATES), bad, strict=True):
        yield f"a follow-up, {name}", Complete(then=(FollowUp(queue="q", job=NewJob(id="a")), follow_up))
    for name, queue in CLOSED_QUEUES.items():
        then = (FollowUp(queue=queue, job=NewJob(id="a")),)
        yield f"a follow-up, queue {name}", Fail(error=Error(type="E"), then=then)


#: The wrong values for each plain type, by their names in a report. None is wrong unless the type allows it.
WRONG: Final[dict[type, dict[str, Any]]] = {
    str: {"a number": 5, "bytes": b"seen", "a list": ["seen"]},
    bytes: {"text": "1", "a number": 5, "a bytearray": bytearray(b"1")},
    int: {"text": "1", "True": True, "a fraction": 1.5, "a list": [1]},
    float: {"text": "1", "True": True, "not a number": float("nan"), "a list": [1]},
    bool: {"1": 1, "text": "yes", "a list": [True]},
}
WRONG_LISTS: Final = {"a number": 5, "one text": "seen"}
WRONG_STRUCTS: Final = {"a number": 5, "text": "seen", "a mapping": {}}
#: Arguments that another rule of the contract describes.
NOT_BY_TYPE: Final = {"now"}


@frozen
class WrongValue:
    """A value of a wrong type: the path of the argument or field that is wrong, and the whole argument."""

    path: str
    #: The wrong value in words, such as "a number".
    kind: str
    argument: Any


def wrong_arguments(verb: Any, good: Mapping[str, Any]) -> Iterator[tuple[str, WrongValue]]:
    """Yield the name of an argument of a verb, and each wrong value for it.

    `good` has a valid value for the arguments; a value object in it is changed in one field at a time.
    """
    hints = get_type_hints(verb)
    for name in inspect.signature(verb).parameters:
        if name == "self" or name in NOT_BY_TYPE:
            continue
        for wrong in wrong_values(name, hints[name], good.get(name, UNSET)):
            yield name, wrong


def wrong_values(path: str, hint: Any, good: Any) -> Iterator[WrongValue]:
    """Yield the wrong values for a type, and those for the fields and items of the valid value `good`."""
    kinds = _alternatives(hint)
    if NoneType not in kinds:
        yield WrongValue(path, "None", None)
    plain = [kind for kind in kinds if kind not in (NoneType, UnsetType)]
    for kind, value in _wrong_for(plain).items():
        yield WrongValue(path, kind, value)
    yield from _inside(path, plain, good)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _wrong_for(kinds: Sequence[Any]) -> dict[str, Any]:
    """Return the wrong values that none of the alternatives allows."""
    tables = [_wrong_for_one(kind) for kind in kinds]
    shared = set.intersection(*(set(table) for table in tables)) if tables else set()
    return {name: value for table in tables[:1] for name, value in table.items() if name in shared}


def _wrong_for_one(kind: Any) -> dict[str, Any]:
    origin = get_origin(kind)
    if kind in WRONG:
        return WRONG[kind]
    if origin is Literal:
        return {**WRONG[str], "an unknown word": "nonsense"}
    return WRONG_STRUCTS if origin is None else WRONG_LISTS


def _inside(path: str, kinds: Sequence[Any], good: Any) -> Iterator[WrongValue]:
    """Yield a copy of `good` with one wrong field, item or value, for each of them."""
    if isinstance(good, Struct):
        hints = get_type_hints(type(good))
        for field in good.__struct_fields__:
            for wrong in wrong_values(f"{path}.{field}", hints[field], getattr(good, field)):
                yield WrongValue(wrong.path, wrong.kind, replaced(good, field, wrong.argument))
        return
    for kind in kinds:
        origin = get_origin(kind)
        if origin is None or origin is Literal:
            continue
        if issubclass(origin, Mapping):
            yield from _inside_mapping(path, kind, good)
        else:
            yield from _inside_list(path, kind, good)


def replaced(good: Struct, field: str, value: Any) -> Struct:
    """Return a copy of a struct with one field replaced, without the checks of its class."""
    copy = replace(good)
    force_setattr(copy, field, value)
    return copy


def _inside_list(path: str, kind: Any, good: Any) -> Iterator[WrongValue]:
    """Yield copies of a valid list whose last item is wrong; for an empty list, a list of one wrong item."""
    items = list(good) if isinstance(good, list | tuple) else []
    make = tuple if isinstance(good, tuple) else list
    last = max(0, len(items) - 1)
    for wrong in wrong_values(f"{path}[{last}]", get_args(kind)[0], items[-1] if items else UNSET):
        yield WrongValue(wrong.path, wrong.kind, make([*items[:last], wrong.argument]))


def _inside_mapping(path: str, kind: Any, good: Any) -> Iterator[WrongValue]:
    keys, values = get_args(kind)
    held = dict(good) if isinstance(good, Mapping) else {}
    for wrong in wrong_values(f"a key of {path}", keys, UNSET):
        if getattr(type(wrong.argument), "__hash__", None) is not None:
            value = next(iter(held.values()), b"1" if values is bytes else "1")
            yield WrongValue(wrong.path, wrong.kind, {**held, wrong.argument: value})
    for wrong in wrong_values(f"{path}['x']", values, UNSET):
        yield WrongValue(wrong.path, wrong.kind, {**held, "x": wrong.argument})
