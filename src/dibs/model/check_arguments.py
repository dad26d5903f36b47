"""The checks of the arguments that storages take. dibs.model.check_jobs checks enqueue requests.

Each check raises Refused. dibs.storage.checks calls the checks once per storage call, before the storage
reads or writes. So every storage refuses the same input (contract 4, promise 8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, get_args

import msgspec
from msgspec import UNSET

from dibs.errors import Refused
from dibs.model import rates
from dibs.model.check_jobs import check_follow_ups, check_job_data, check_queue, check_retention
from dibs.model.check_values import (
    check_attributes,
    check_bytes,
    check_duration,
    check_flag,
    check_is_a,
    check_is_list,
    check_is_text,
    check_optional_number,
    check_text,
    check_time,
    check_whole_number,
)
from dibs.model.job import Error, ErrorKind, Job, Outcome, Slot, Successor
from dibs.model.limits import DAY, LATEST_TIME, LIMITS, MOST_COST, SAFE_INTEGER, Limits
from dibs.model.plain_values import to_plain
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    HandOff,
    JobPatch,
    LogLevel,
    Release,
    RetryLater,
    Settings,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
    WhenFull,
)
from dibs.model.retry import RetryCause

#: The most parts into which `split` divides a listing or an export.
MAX_PARTS: Final = 1000
#: The latest manual time, in ms. Revisions and fences are at least the time in µs, and their limit is 2**53.
LATEST_NOW: Final = SAFE_INTEGER // 1000
_CAUSES: Final = get_args(RetryCause)
_ERROR_KINDS: Final = get_args(ErrorKind)
_SLOT_DECODER: Final = msgspec.msgpack.Decoder(Slot)


def check_now(now: int) -> None:
    """Raise Refused unless a manual time is 0 to LATEST_NOW, in ms since the epoch."""
    check_whole_number("now", now, 0, LATEST_NOW)


def check_limit(limit: int) -> None:
    """Raise Refused for a limit below 1. A caller that reads page by page would never finish with it."""
    check_whole_number("limit", limit, 1, SAFE_INTEGER)


def check_parts(parts: int) -> None:
    """Raise Refused unless `parts`, the number of parts of a `split`, is 1 to 1,000."""
    check_whole_number("parts", parts, 1, MAX_PARTS)


def check_ttl(ttl: int) -> None:
    """Raise Refused unless the time to live of a lease is 1 ms to 100,000 days."""
    check_duration("ttl", ttl, 1)


def check_holder(holder: str, limits: Limits = LIMITS) -> None:
    """Raise Refused unless the name of a lease holder keeps the limit for ids (512 bytes by default)."""
    check_text("holder", holder, limits.id)


def check_queues(queues: Sequence[str], limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad queue name, and for a str: "ab" would pass as the queues "a" and "b"."""
    check_not_one_text("queues", queues)
    for queue in queues:
        check_queue(queue, limits)


def check_not_one_text(field: str, texts: Sequence[str]) -> None:
    """Raise Refused for a str, and for a value without items.

    A str is a sequence of str, too, so type checkers accept it as a list.
    """
    if isinstance(texts, str):
        raise Refused(f"{field} must be a list of texts, not one text: write [{texts!r:.60}]", field=field)
    if not isinstance(texts, Iterable):
        raise Refused(f"{field} must be a list of texts, not {type(texts).__name__}", field=field)


def check_ids(ids: Sequence[str]) -> None:
    """Raise Refused unless `ids` is a list of texts. Limits of ids are not checked: no job has such an id."""
    check_not_one_text("ids", ids)
    for id in ids:
        check_is_text("id", id)


def check_revision(field: str, revision: object) -> None:
    """Raise Refused unless a revision or fence is a whole number from 0."""
    check_whole_number(field, revision, 0, SAFE_INTEGER)


def check_choice(field: str, word: str, known: Sequence[str]) -> None:
    """Raise Refused for a `word` outside `known`. The error lists the known ones."""
    if not isinstance(word, str) or word not in known:
        raise Refused(f"{field} must be one of {', '.join(known)}", field=field)


def check_cost(cost: object) -> None:
    """Raise Refused unless the cost of a run is a whole number from 0 to MOST_COST."""
    check_whole_number("cost", cost, 0, MOST_COST, " thousandths of a start")


def check_settle_action(action: SettleAction, limits: Limits = LIMITS) -> None:
    """Raise Refused if a result, follow-up, retry time or retention of the action breaks a limit."""
    # The most frequent class comes first: an isinstance that fails costs eight times as much as a match.
    if isinstance(action, Complete):
        result = action.result
        if result is not None and (type(result) is not bytes or len(result) > limits.result):
            check_bytes("result", result, limits.result)
        if action.then != ():
            check_follow_ups(action.then, limits)
        if action.retention is None:
            return
    elif isinstance(action, Fail):
        check_error("error", action.error)
        check_follow_ups(action.then, limits)
    elif isinstance(action, RetryLater):
        _check_retry(action)
        return
    elif isinstance(action, Release):
        _check_release(action)
        return
    else:
        check_is_a("action", action, Cancelled, HandOff)
        if isinstance(action, Cancelled) and action.error is not None:
            check_error("error", action.error)
    retention = getattr(action, "retention", None)
    if retention is not None:
        check_retention("retention", retention)


def check_error(field: str, error: object) -> None:
    """Raise Refused unless `error` and its causes are Errors with fields of the right types."""
    while error is not None or field == "error":
        check_is_a(field, error, Error)
        for name in ("type", "message", "traceback"):
            check_is_text(f"{field}.{name}", getattr(error, name))
        check_choice(f"{field}.kind", getattr(error, "kind", ""), _ERROR_KINDS)
        field, error = f"{field}.cause", getattr(error, "cause", None)


def check_settlements(settlements: Sequence[Settlement]) -> None:
    """Raise Refused unless each entry is a Settlement with an id and a fence of the right types.

    A bad action is not refused here, because one bad action must not fail its batch.
    """
    check_is_list("settlements", settlements)
    for one in settlements:
        if type(one) is Settlement and type(one.id) is str and type(one.fence) is int:
            continue  # nearly every settlement
        check_is_a("settlements", one, Settlement)
        check_is_text("id", one.id)
        check_whole_number("fence", one.fence, -SAFE_INTEGER, SAFE_INTEGER)


def _check_retry(action: RetryLater) -> None:
    _check_time_or_delay(action)
    check_choice("cause", action.cause, _CAUSES)
    if action.error is not None:
        check_error("error", action.error)


def _check_time_or_delay(action: RetryLater | Release) -> None:
    if action.run_at is not None and action.delay is not None:
        raise Refused("run_at and delay are both set; set at most one of them", field="run_at")
    if action.run_at is not None:
        check_time("run_at", action.run_at)
    if action.delay is not None:
        check_duration("delay", action.delay)


def _check_release(action: Release) -> None:
    _check_time_or_delay(action)
    check_flag("parked", action.parked)
    if action.parked and action.run_at is None and action.delay is None:
        raise Refused(
            "parked is True without run_at or delay; set the time until which the job waits", field="parked"
        )


def check_patch(patch: JobPatch, limits: Limits = LIMITS) -> None:
    """Raise Refused if a field that the patch sets breaks a limit.

    The storage checks the size of the attributes again after it has merged them.
    """
    check_is_a("patch", patch, JobPatch)
    if patch.run_at is not UNSET and patch.delay is not UNSET:
        raise Refused("run_at and delay are both set; set at most one of them", field="run_at")
    if patch.payload is not UNSET:
        check_bytes("payload", patch.payload, limits.payload)
    if patch.attributes is not UNSET:
        check_attributes(patch.attributes, limits)
    if patch.priority is not UNSET:
        check_whole_number("priority", patch.priority, -limits.priority, limits.priority)
    if patch.run_at is not UNSET:
        check_time("run_at", patch.run_at)
    if patch.delay is not UNSET:
        check_duration("delay", patch.delay)
    if patch.retention is not UNSET:
        check_retention("retention", patch.retention)
    if patch.lease is not UNSET:
        check_duration("lease", patch.lease, 1)


def check_import_record(id: str, slot: Slot, limits: Limits = LIMITS) -> None:
    """Raise Refused for an import record that no storage would export.

    Such a record would damage the queue: an example is a successor without an active job.
    """
    check_text("id", id, limits.id)
    _check_slot_types(slot)
    job, successor, outcome = slot.current, slot.successor, slot.outcome
    if job is not None:
        _check_current(id, job, limits)
    if successor is not None:
        if job is None or job.run is None:
            raise Refused(
                "only an active current has a successor; remove one or make the current active",
                field="successor",
            )
        _check_range_and_data("successor", successor, limits)
        check_whole_number("successor.run_at", successor.run_at, 0, SAFE_INTEGER)
        check_whole_number("successor.seq", successor.seq, 0, SAFE_INTEGER)
    if outcome is not None:
        _check_range_and_data("outcome", outcome, limits)
        check_attributes(outcome.attributes, limits)
        check_whole_number("outcome.fence", outcome.fence, 0, SAFE_INTEGER)
        check_optional_number("outcome.expires_at", outcome.expires_at, 0, SAFE_INTEGER)
    for first, last in slot.dropped:
        check_whole_number("dropped", first, 0, SAFE_INTEGER)
        check_whole_number("dropped", last, first, SAFE_INTEGER)


def _check_slot_types(slot: Slot) -> None:
    """Raise Refused if any field of the slot has a wrong type, by encoding and decoding the slot."""
    check_is_a("slot", slot, Slot)
    try:
        _SLOT_DECODER.decode(msgspec.msgpack.encode(slot, enc_hook=to_plain))
    except (msgspec.ValidationError, TypeError) as error:
        raise Refused(f"slot is not one that a storage exports: {error}", field="slot") from None
    # The encoder also takes a bytearray, which a caller can change afterwards.
    run = slot.current.run if slot.current else None
    if run is not None and run.progress is not None:
        check_is_a("current.run.progress", run.progress, bytes)
    if slot.outcome is not None and slot.outcome.result is not None:
        check_is_a("outcome.result", slot.outcome.result, bytes)
    if slot.outcome is not None and slot.outcome.progress is not None:
        check_is_a("outcome.progress", slot.outcome.progress, bytes)


def _check_current(id: str, job: Job, limits: Limits) -> None:
    if job.id != id:
        raise Refused(
            f"the record of id {id!r:.60} has a job with the id {job.id!r:.60}; the two must be equal",
            field="current.id",
        )
    _check_range_and_data("current", job, limits)
    check_whole_number("current.run_at", job.run_at, 0, LATEST_TIME)
    check_whole_number("current.seq", job.seq, 0, SAFE_INTEGER)
    if job.run is not None:
        check_whole_number("current.run.fence", job.run.fence, 0, SAFE_INTEGER)
        if job.run.lease is not None:
            check_whole_number("current.attempts", job.attempts, 1, SAFE_INTEGER)


def _check_range_and_data(name: str, part: Job | Successor | Outcome, limits: Limits) -> None:
    check_whole_number(f"{name}.first", part.first, 0, SAFE_INTEGER)
    check_whole_number(f"{name}.revision", part.revision, part.first, SAFE_INTEGER)
    if part.data is not None:
        check_job_data(part.data, limits)


#: The largest `per_key`, and the most starts and the largest burst of a rate.
MOST_STARTS: Final = 1_000_000
#: The largest `max_waiting`.
MOST_WAITING: Final = 1_000_000_000
#: The most starts in a turn of a key, and the most keys with a share of their own.
MOST_SHARE: Final = 1_000
MOST_SHARES: Final = 1_000
#: The longest result that the log of a queue may keep, in bytes.
MOST_LOG_RESULTS: Final = 4096
#: The longest period of a rate, in ms.
LONGEST_PER: Final = 31 * DAY
#: The highest rate, in starts per ms.
FASTEST_RATE: Final = 1000
#: The longest `burst * interval` of a rate, in us. All clocks then stay below 2**53.
LONGEST_BURST: Final = rates.FURTHEST

_LEVELS: Final = get_args(LogLevel)
_FLAGS: Final = ("paused", "fail_handler", "fair")
_LIMITS: Final = ("per_key", "rate", "key_rate", "max_waiting", "when_full")
_WHEN_FULL: Final = get_args(WhenFull)
_DEFAULTS: Final = Settings()


def check_settings(patch: SettingsPatch, *, limits: bool, fair: bool) -> None:
    """Raise Refused if a setting of the patch has a wrong type or breaks a limit.

    `limits` and `fair` are whether the storage has the capabilities of these names. Without `limits`, the
    settings `per_key`, `rate`, `key_rate`, `max_waiting` and `when_full` may only have their defaults, and
    without `fair` the settings `fair` and `shares`.
    """
    check_is_a("patch", patch, SettingsPatch)
    for name in _FLAGS:
        if getattr(patch, name) is not UNSET:
            check_flag(name, getattr(patch, name))
    if patch.max_active is not UNSET:
        check_optional_number("max_active", patch.max_active, 0, SAFE_INTEGER)
    if patch.retention is not UNSET:
        check_retention("retention", patch.retention)
    _check_log(patch)
    if patch.request_key_age is not UNSET:
        check_duration("request_key_age", patch.request_key_age)
    _check_limits(patch, allowed=limits)
    _check_turns(patch, allowed=fair)


def _check_log(patch: SettingsPatch) -> None:
    if patch.log_level is not UNSET:
        check_choice("log_level", patch.log_level, _LEVELS)
    if patch.log_age is not UNSET:
        check_duration("log_age", patch.log_age)
    if patch.log_bytes is not UNSET:
        check_whole_number("log_bytes", patch.log_bytes, 0, SAFE_INTEGER)
    if patch.log_results is not UNSET:
        check_whole_number("log_results", patch.log_results, 0, MOST_LOG_RESULTS, " bytes")


def _check_limits(patch: SettingsPatch, *, allowed: bool) -> None:
    if patch.when_full is not UNSET:
        check_choice("when_full", patch.when_full, _WHEN_FULL)
    for name in _LIMITS:
        value = getattr(patch, name)
        if value is UNSET or value == getattr(_DEFAULTS, name):
            continue
        if not allowed:
            raise _without_capability(name, "limits")
        if name == "per_key":
            check_whole_number(name, value, 1, MOST_STARTS)
        elif name == "max_waiting":
            check_whole_number(name, value, 1, MOST_WAITING)
        elif name != "when_full":
            check_rate(name, value)


def _without_capability(name: str, capability: str) -> Refused:
    return Refused(
        f"{name} is set, but this storage does not have the capability `{capability}`; leave {name} out, "
        "or use a storage that has it",
        field=name,
    )


def _check_turns(patch: SettingsPatch, *, allowed: bool) -> None:
    if patch.fair is True and not allowed:
        raise _without_capability("fair", "fair")
    if patch.shares is UNSET:
        return
    check_is_a("shares", patch.shares, Mapping)
    assert isinstance(patch.shares, Mapping)  # noqa: S101 - for type checkers
    if patch.shares and not allowed:
        raise _without_capability("shares", "fair")
    check_share_count(len(patch.shares))
    for key, share in patch.shares.items():
        check_text("shares", key, LIMITS.key)
        if share is not None:
            check_whole_number("shares", share, 0, MOST_SHARE, f" starts in a turn, for key {key!r:.60}")


def check_share_count(count: int) -> None:
    """Raise Refused if there are more entries than a queue keeps."""
    if count > MOST_SHARES:
        raise Refused(
            f"shares has {count:,} entries; a queue keeps {MOST_SHARES:,}; remove entries with None, "
            "as a key without an entry has the share 1",
            field="shares",
        )


def check_rate(field: str, rate: object) -> None:
    """Raise Refused unless `rate` is a StartRate whose numbers keep the limits of the contract."""
    check_is_a(field, rate, StartRate)
    assert isinstance(rate, StartRate)  # noqa: S101 - for type checkers
    check_whole_number(f"{field}.starts", rate.starts, 1, MOST_STARTS)
    check_whole_number(f"{field}.per", rate.per, 1, LONGEST_PER, " ms (31 days)")
    check_whole_number(f"{field}.burst", rate.burst, 1, MOST_STARTS)
    if rate.starts > FASTEST_RATE * rate.per:
        raise Refused(
            f"{field}.starts is {rate.starts} in {rate.per} ms; the limit is {FASTEST_RATE} starts a ms",
            field=f"{field}.starts",
        )
    if rate.burst * rates.interval(rate) > LONGEST_BURST:
        raise Refused(
            f"{field}.burst is {rate.burst}, and it takes more than 366 days until such a burst is allowed "
            "again; lower burst, or raise starts",
            field=f"{field}.burst",
        )
