"""Encoding of requests and settlements as query parameters.

A batch becomes one array per field, so that one statement carries the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import asdict, astuple

from dibs.errors import Refused
from dibs.model import check_arguments, rules
from dibs.model.check_jobs import CheckedBatch
from dibs.model.error_text import to_storable_error
from dibs.model.job import ActiveRun, Job, JobData, Origin, Outcome, Slot, Successor
from dibs.model.limits import Limits
from dibs.model.plain_values import to_plain
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
from dibs.storage.postgres.codec.positions import FEWEST_POSITIONS, RowPositions

Params = dict[str, Any]

_encode: Final = msgspec.json.Encoder(enc_hook=to_plain).encode
#: The functions know `wake` as a bit beside the rule `never`.
_RULES: Final = {"always": 0, "never": 1, "later": 2, "earlier": 3, "wake": 256 | 1}
KEEPS_DATA, KEEPS_COUNTS, REJECTS, REJECTS_FAILED, UPDATES_ONLY, SUPERSEDES = 4, 8, 16, 32, 64, 128
KINDS: Final[dict[type, str]] = {
    Complete: "completed",
    Fail: "failed",
    Cancelled: "cancelled",
    RetryLater: "retry",
    Release: "release",
    HandOff: "hand_off",
}
INT8: Final = 2**63 - 1


def to_json_text(value: object) -> str | None:
    """Return a value as JSON text, None (SQL NULL) for None."""
    return None if value is None else _encode(value).decode()


def attributes_to_json(attributes: Mapping[str, bytes]) -> str | None:
    """Return attributes as one JSON object, None for no attributes. The values are JSON already."""
    if not attributes:
        return None
    return _encode({name: Raw(value) for name, value in attributes.items()}).decode()


def encode_start(run_at: int | None, delay: int | None) -> int | None:
    """Encode a start time for start_time() in functions/enqueue.sql: `run_at`, or a delay as -1 - delay."""
    if run_at is not None:
        return run_at
    return None if delay is None else -1 - delay


def encode_on_conflict(on_conflict: OnConflict) -> int:
    """Encode `on_conflict` as the bits that the SQL type `request` has in `how`."""
    if on_conflict is DEFAULT_UPDATE:
        return 0
    if isinstance(on_conflict, Reject):
        return REJECTS | (REJECTS_FAILED if on_conflict.failed else 0)
    bits = _RULES[on_conflict.run_at]
    if not on_conflict.create:
        bits |= UPDATES_ONLY
    if on_conflict.supersede:
        bits |= SUPERSEDES
    return bits | (0 if on_conflict.replaces else KEEPS_DATA) | (0 if on_conflict.resets else KEEPS_COUNTS)


#: Parameters that are NULL for a batch of plain requests.
_ALL_DEFAULTS: Final = dict.fromkeys(
    (
        "priorities",
        "whens",
        "hows",
        "attributes",
        "overrides",
        "retentions",
        "job_keys",
        "request_keys",
        "wants",
    )
)


def _array_or_null(values: list[Any]) -> list[Any] | None:
    """Return the array of a field; None (SQL NULL) if every element is None, to send fewer bytes."""
    return None if values.count(None) == len(values) else values


def encode_requests(batch: CheckedBatch) -> Params:
    """Return the parameters of enqueue(): the fields of all requests as arrays.

    For one request that sets only id and payload, return these two, the parameters of the query enqueue_one.
    `plain` is True if no id is repeated and no request has a Reject, `create=False`, a request_key or
    want_outcome.
    """
    jobs = [request.job for request in batch]
    ids = [job.id for job in jobs]
    if batch.plain and len(ids) == 1:
        return {"id": ids[0], "payload": jobs[0].data.payload}
    if batch.plain:
        once = len(set(ids)) == len(ids)
        return {**_ALL_DEFAULTS, "ids": ids, "payloads": [job.data.payload for job in jobs], "plain": once}
    data = [job.data for job in jobs]
    hows = _array_or_null([encode_on_conflict(request.on_conflict) or None for request in batch])
    keys = _array_or_null([request.request_key for request in batch])
    wants = [request.want_outcome for request in batch]
    special = any(how is not None and how & (REJECTS | UPDATES_ONLY) for how in hows or ())
    return {
        "ids": ids,
        "payloads": [each.payload for each in data],
        "priorities": _array_or_null([each.priority or None for each in data]),
        "whens": _array_or_null([encode_start(job.run_at, job.delay) for job in jobs]),
        "hows": hows,
        "attributes": _array_or_null([attributes_to_json(each.attributes) for each in data]),
        "overrides": _array_or_null([to_json_text(each.overrides) for each in data]),
        "retentions": _array_or_null([to_json_text(each.retention) for each in data]),
        "job_keys": _array_or_null([each.key for each in data]),
        "request_keys": keys,
        "wants": wants if any(wants) else None,
        "plain": not (special or keys or any(wants)) and len(set(ids)) == len(ids),
    }


def encode_settlements(
    given: Sequence[Settlement], limits: Limits, positions: RowPositions, *, in_call: int = 0
) -> tuple[Params, list[str]]:
    """Return the parameters of settle(), and for each settlement a reason to refuse it or "".

    `in_call` is the number of settlements of the call, if it has those of other queues.
    """
    reasons = [refusal_reason(one, limits) for one in given]
    # An action of an unknown type is refused; its kind has no effect.
    kinds = [KINDS.get(type(one.action), "completed") for one in given]
    details = [
        encode_details(one.action, one.cost) if not reason else '{"refused": true}'
        for one, reason in zip(given, reasons, strict=True)
    ]
    ids = [one.id for one in given]
    plain = len(set(ids)) == len(ids) and set(kinds) == {"completed"} and not any(details)
    results = [one.action.result if isinstance(one.action, Complete) else None for one in given]
    spots = positions.take([one.fence for one in given])
    params = {
        "spots": spots if plain and max(in_call, len(ids)) >= FEWEST_POSITIONS else None,
        "ids": [sendable_id(id) for id in ids],
        "fences": [one.fence if -INT8 <= one.fence <= INT8 else 0 for one in given],
        "kinds": None if plain else kinds,
        "results": _array_or_null([r if not why else None for r, why in zip(results, reasons, strict=True)]),
        "details": None if plain else _array_or_null(details),
        "plain": plain,
    }
    return params, reasons


def add_handled(params: Params, handled: bool) -> None:  # noqa: FBT001 - the value of a setting
    """Add the setting `fail_handler`, read outside of a caller's transaction, to the details of a settle."""
    flag = f'{{"handled": {"true" if handled else "false"}, '
    params["details"] = [text and flag + text[1:] for text in params["details"]]


def refusal_reason(settlement: Settlement, limits: Limits) -> str:
    """Return the reason to refuse a settlement that breaks a limit, "" for a valid one."""
    try:
        check_arguments.check_settle_action(settlement.action, limits)
        if settlement.cost is not None:
            check_arguments.check_cost(settlement.cost)
    except Refused as refused:
        return str(refused)
    return ""


def encode_details(action: SettleAction, cost: int | None = None) -> str | None:
    """Return the other fields of a settlement (error, follow-ups ...) as JSON; None if all have defaults."""
    if type(action) is Complete and not action.then and action.retention is None and cost is None:
        return None
    fields: dict[str, Any] = {"cost": cost}
    if isinstance(action, RetryLater):
        fields |= {"cause": action.cause, "when": encode_start(action.run_at, action.delay)}
    elif isinstance(action, Release):
        fields |= {"when": encode_start(action.run_at, action.delay), "parked": action.parked or None}
    elif isinstance(action, Complete | Fail | Cancelled) and action.retention is not None:
        fields["retention"] = action.retention
    if isinstance(action, Fail | RetryLater | Cancelled) and action.error is not None:
        fields["error"] = to_storable_error(action.error)
    if isinstance(action, Complete | Fail) and action.then:
        fields["then"] = [_encode_follow_up(item) for item in action.then]
    return to_json_text({name: value for name, value in fields.items() if value is not None} or None)


def _encode_follow_up(item: FollowUp) -> dict[str, Any]:
    job, data = item.job, item.job.data
    fields = {
        "queue": item.queue,
        "id": job.id,
        "payload": data.payload,
        "priority": data.priority,
        "attributes": _encode_attributes(data.attributes),
        "overrides": data.overrides,
        "retention": data.retention,
        "key": data.key,
        "when": encode_start(job.run_at, job.delay),
        "how": encode_on_conflict(item.on_conflict),
    }
    return {name: value for name, value in fields.items() if value is not None}


def encode_patch(given: JobPatch) -> tuple[str, bytes | None]:
    """Return the fields that a patch changes as JSON, and its payload, which is sent as bytes."""
    changes: dict[str, Any] = {}
    if given.attributes is not UNSET:
        changes["attributes"] = {name: Raw(value) for name, value in given.attributes.items()}
    if given.payload is not UNSET:
        changes["payload"] = True
    if given.run_at is not UNSET or given.delay is not UNSET:
        changes["when"] = given.run_at if given.run_at is not UNSET else -1 - (given.delay or 0)
    if given.priority is not UNSET:
        changes["priority"] = given.priority
    if given.retention is not UNSET:
        changes["retention"] = given.retention
    if given.lease is not UNSET:
        changes["overrides"] = {"lease": given.lease}
    return _encode(changes).decode(), None if given.payload is UNSET else given.payload


def encode_settings(given: SettingsPatch) -> str:
    """Return the settings that a patch changes as JSON."""
    return _encode(given).decode()


def sendable_id(id: str) -> str:
    """Return an id that Postgres can store. Other text, which is the id of no job, becomes ""."""
    try:
        id.encode()
    except UnicodeEncodeError:
        return ""
    return "" if "\0" in id else id


# -- whole ids, for import_ ---------------------------------------------------------------------------


def encode_record(slot: Slot) -> str:
    """Return a slot (job, successor, outcome) as JSON. Its keys are the columns of `live` and `ended`."""
    fields: dict[str, Any] = {}
    dropped = [number for span in slot.dropped for number in span] or None
    if slot.current is not None:
        fields["current"] = {**_encode_job(slot.current, slot.successor), "dropped": dropped}
        dropped = None
    if slot.outcome is not None:
        fields["outcome"] = {**_encode_outcome(slot.outcome), "dropped": dropped}
    return _encode(fields).decode()


def _fields_without(value: Struct, *excluded: str) -> dict[str, Any]:
    return {name: item for name, item in asdict(value).items() if name not in excluded}


def _encode_data(data: JobData | None) -> dict[str, Any]:
    if data is None:
        return {}
    attributes = _encode_attributes(data.attributes)
    memo = _to_bytea_text(data.memo)
    return {**asdict(data), "payload": _to_bytea_text(data.payload), "memo": memo, "attributes": attributes}


def _encode_attributes(attributes: Mapping[str, bytes]) -> dict[str, Raw] | None:
    return {name: Raw(value) for name, value in attributes.items()} or None


def _encode_origin(origin: Origin | None) -> list[Any] | None:
    """Return an origin as the array that rows.decode_origin reads; its attributes are the last element."""
    if origin is None:
        return None
    *fields, attributes = astuple(origin)
    return [*fields, _encode_attributes(attributes)]


def _to_bytea_text(value: bytes | None) -> str | None:
    return None if value is None else "\\x" + value.hex()


def _encode_job(job: Job, successor: Successor | None) -> dict[str, Any]:
    run = job.run
    after = (
        None if successor is None else {**_fields_without(successor, "data"), **_encode_data(successor.data)}
    )
    fields = {
        **_fields_without(job, "data", "run"),
        **_encode_data(job.data),
        "origin": _encode_origin(job.origin),
        "next": after,
        "state": "w",
    }
    return fields if run is None else {**fields, **_encode_run(run)}


def _encode_run(run: ActiveRun) -> dict[str, Any]:
    progress = None if run.progress is None else Raw(run.progress)
    fields = {**_fields_without(run, "lease"), "progress": progress}
    return {**fields, "state": "h" if run.lease is None else "w"}


def _encode_outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        **_fields_without(outcome, "data"),
        "attributes": _encode_attributes(outcome.attributes),
        **_encode_data(outcome.data),
        "origin": _encode_origin(outcome.origin),
        "result": _to_bytea_text(outcome.result),
        "progress": None if outcome.progress is None else Raw(outcome.progress),
    }


def highest_number(slots: Sequence[Slot]) -> int:
    """Return the highest seq, fence or revision in some slots.

    Numbers drawn after an import must be higher.
    """
    return max((number for slot in slots for number in rules.numbers_in(slot)), default=0)


def sendable_lease(lease: str) -> str | None:
    """Return a lease that Postgres can read as a uuid, or None for text that cannot be a lease."""
    is_hex = len(lease) == 32 and all(ch in "0123456789abcdef" for ch in lease)
    return lease if is_hex else None
