"""From values to parameters: one array per field, which is how a batch travels in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import asdict

from dibs.errors import Refused
from dibs.model import check_arguments, rules
from dibs.model.check_jobs import CheckedBatch
from dibs.model.error_text import checked_error
from dibs.model.job import ActiveRun, Job, JobData, Outcome, Slot, Successor
from dibs.model.limits import Limits
from dibs.model.requests import (
    DEFAULT_UPDATE,
    Cancelled,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)

Params = dict[str, Any]

_encode: Final = msgspec.json.Encoder().encode
_RULES: Final = {"always": 0, "never": 1, "later": 2, "earlier": 3}
KEEPS_DATA, KEEPS_COUNTS, REJECTS, REJECTS_FAILED = 4, 8, 16, 32
KINDS: Final[dict[type, str]] = {
    Complete: "completed",
    Fail: "failed",
    Cancelled: "cancelled",
    RetryLater: "retry",
    Release: "release",
    HandOff: "hand_off",
}
INT8: Final = 2**63 - 1


def text_of(value: object) -> str | None:
    """Return a value as JSON text; None stays None."""
    return None if value is None else _encode(value).decode()


def attributes_text(data: JobData) -> str | None:
    """Return attributes as one JSON object, their values byte for byte as they are."""
    if not data.attributes:
        return None
    return _encode({name: Raw(value) for name, value in data.attributes.items()}).decode()


def when_of(run_at: int | None, delay: int | None) -> int | None:
    """Return a time as start_time() in 0004_enqueue.sql reads it."""
    if run_at is not None:
        return run_at
    return None if delay is None else -1 - delay


def how_of(how: OnConflict) -> int:
    """Return an on_conflict as the bits of the type `request`."""
    if how is DEFAULT_UPDATE:
        return 0
    if isinstance(how, Reject):
        return REJECTS | (REJECTS_FAILED if how.failed else 0)
    bits = _RULES[how.run_at]
    return bits | (0 if how.data else KEEPS_DATA) | (0 if how.resets else KEEPS_COUNTS)


#: What a batch of plain requests leaves out.
_NOTHING_SAID: Final = dict.fromkeys(
    ("priorities", "whens", "hows", "attributes", "overrides", "retentions", "keys", "wants")
)


def _array(values: list[Any]) -> list[Any] | None:
    """Return the array of a field; one that says nothing need not travel."""
    return None if values.count(None) == len(values) else values


def requests(asked: CheckedBatch) -> Params:
    """Return the parameters of an enqueue."""
    jobs = [request.job for request in asked]
    ids = [job.id for job in jobs]
    if asked.plain:
        once = len(set(ids)) == len(ids)
        return {**_NOTHING_SAID, "ids": ids, "payloads": [job.data.payload for job in jobs], "plain": once}
    data = [job.data for job in jobs]
    hows = _array([how_of(request.on_conflict) or None for request in asked])
    keys = _array([request.request_key for request in asked])
    wants = [request.want_outcome for request in asked]
    rejects = any(how is not None and how & REJECTS for how in hows or ())
    return {
        "ids": ids,
        "payloads": [each.payload for each in data],
        "priorities": _array([each.priority or None for each in data]),
        "whens": _array([when_of(job.run_at, job.delay) for job in jobs]),
        "hows": hows,
        "attributes": _array([attributes_text(each) for each in data]),
        "overrides": _array([text_of(each.overrides) for each in data]),
        "retentions": _array([text_of(each.retention) for each in data]),
        "keys": keys,
        "wants": wants if any(wants) else None,
        "plain": not (rejects or keys or any(wants)) and len(set(ids)) == len(ids),
    }


def settlements(given: Sequence[Settlement], limits: Limits) -> tuple[Params, list[str]]:
    """Return the parameters of a settle, and for each settlement why it is refused, or nothing."""
    reasons = [refusal(one.action, limits) for one in given]
    kinds = [KINDS[type(one.action)] for one in given]
    details = [
        details_of(one.action) if not reason else '{"refused": true}'
        for one, reason in zip(given, reasons, strict=True)
    ]
    ids = [one.id for one in given]
    plain = len(set(ids)) == len(ids) and set(kinds) == {"completed"} and not any(details)
    results = [one.action.result if isinstance(one.action, Complete) else None for one in given]
    params = {
        "ids": [askable(id) for id in ids],
        "fences": [one.fence if -INT8 <= one.fence <= INT8 else 0 for one in given],
        "kinds": None if plain else kinds,
        "results": _array([r if not why else None for r, why in zip(results, reasons, strict=True)]),
        "details": None if plain else _array(details),
        "plain": plain,
    }
    return params, reasons


def refusal(how: SettleAction, limits: Limits) -> str:
    """Return why a settlement is refused, or nothing."""
    try:
        check_arguments.check_settle_action(how, limits)
    except Refused as refused:
        return str(refused)
    return ""


def details_of(how: SettleAction) -> str | None:
    """Return what a settlement carries beside its result: for most, nothing."""
    if type(how) is Complete and not how.then and how.retention is None:
        return None
    said: dict[str, Any] = {}
    if isinstance(how, RetryLater):
        said = {"cause": how.cause, "when": when_of(how.run_at, how.delay)}
    elif isinstance(how, Complete | Fail | Cancelled) and how.retention is not None:
        said["retention"] = how.retention
    if isinstance(how, Fail | RetryLater) and how.error is not None:
        said["error"] = checked_error(how.error)
    if isinstance(how, Fail) and how.handled:
        said["handled"] = True
    if isinstance(how, Complete | Fail) and how.then:
        said["then"] = [_follow_up(item) for item in how.then]
    return text_of({name: value for name, value in said.items() if value is not None} or None)


def _follow_up(item: FollowUp) -> dict[str, Any]:
    job, data = item.job, item.job.data
    said = {
        "queue": item.queue,
        "id": job.id,
        "payload": data.payload,
        "priority": data.priority,
        "attributes": {name: Raw(value) for name, value in data.attributes.items()} or None,
        "overrides": data.overrides,
        "retention": data.retention,
        "when": when_of(job.run_at, job.delay),
        "how": how_of(item.on_conflict),
    }
    return {name: value for name, value in said.items() if value is not None}


def patch(asked: JobPatch) -> tuple[str, bytes | None]:
    """Return a patch as JSON, and its payload apart."""
    said: dict[str, Any] = {}
    if asked.attributes is not UNSET:
        said["attributes"] = {name: Raw(value) for name, value in asked.attributes.items()}
    if asked.payload is not UNSET:
        said["payload"] = True
    if asked.run_at is not UNSET or asked.delay is not UNSET:
        said["when"] = asked.run_at if asked.run_at is not UNSET else -1 - (asked.delay or 0)
    if asked.priority is not UNSET:
        said["priority"] = asked.priority
    if asked.retention is not UNSET:
        said["retention"] = asked.retention
    return _encode(said).decode(), None if asked.payload is UNSET else asked.payload


def settings(asked: SettingsPatch) -> str:
    """Return the settings that are to change, as JSON."""
    return _encode(asked).decode()


def askable(id: str) -> str:
    """Return an id as it may be sent; one that no job can have becomes the empty one, which none has."""
    try:
        id.encode()
    except UnicodeEncodeError:
        return ""
    return "" if "\0" in id else id


# -- whole ids from elsewhere ------------------------------------------------------------------------


def record(slot: Slot) -> str:
    """Return a whole id as JSON with the columns of `live` and `ended` as keys."""
    said: dict[str, Any] = {}
    dropped = [number for span in slot.dropped for number in span] or None
    if slot.current is not None:
        said["current"] = {**_job(slot.current, slot.successor), "dropped": dropped}
        dropped = None
    if slot.outcome is not None:
        said["outcome"] = {**_outcome(slot.outcome), "dropped": dropped}
    return _encode(said).decode()


def _plain(value: Struct, *left_out: str) -> dict[str, Any]:
    return {name: item for name, item in asdict(value).items() if name not in left_out}


def _data(data: JobData | None) -> dict[str, Any]:
    if data is None:
        return {}
    attributes = {name: Raw(item) for name, item in data.attributes.items()} or None
    return {**asdict(data), "payload": _hex(data.payload), "attributes": attributes}


def _hex(value: bytes | None) -> str | None:
    return None if value is None else "\\x" + value.hex()


def _job(job: Job, successor: Successor | None) -> dict[str, Any]:
    run = job.run
    after = None if successor is None else {**_plain(successor, "data"), **_data(successor.data)}
    said = {**_plain(job, "data", "run"), **_data(job.data), "next": after, "state": "w"}
    return said if run is None else {**said, **_run(run)}


def _run(run: ActiveRun) -> dict[str, Any]:
    progress = None if run.progress is None else Raw(run.progress)
    said = {**_plain(run, "lease"), "progress": progress}
    return {**said, "state": "h" if run.lease is None else "a"}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {**_plain(outcome, "data"), **_data(outcome.data), "result": _hex(outcome.result)}


def highest(slots: Sequence[Slot]) -> int:
    """Return the highest number in some slots: what is drawn from now on must be above."""
    return max((number for slot in slots for number in rules.numbers_in(slot)), default=0)
