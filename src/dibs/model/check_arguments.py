"""The checks of the arguments of verbs, except enqueue requests (dibs.model.check_jobs).

Each check raises Refused. dibs.storage.checks calls them once per verb, before the storage reads or writes,
so that every storage refuses the same input (contract 4, promise 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from msgspec import UNSET

from dibs.errors import Refused
from dibs.model.check_jobs import check_data, check_queue, check_retention, check_then
from dibs.model.check_values import check_attributes, check_bytes, check_number, check_text, check_whole
from dibs.model.job import Job, Outcome, Slot, Successor
from dibs.model.limits import LIMITS, LONGEST, SAFE_INTEGER, Limits
from dibs.model.requests import Complete, Fail, JobPatch, LogLevel, RetryLater, SettingsPatch, SettleAction
from dibs.model.retry import RetryCause

#: The largest number of parts of a split.
MOST_PARTS: Final = 1000
#: The latest manual time in ms: numbers start at the time in us and must stay safe integers.
LATEST_NOW: Final = SAFE_INTEGER // 1000
_CAUSES: Final = get_args(RetryCause)
_LEVELS: Final = get_args(LogLevel)


def check_now(now: int) -> None:
    """Raise Refused for a bad manual time."""
    check_whole("now", now, 0, LATEST_NOW)


def check_limit(limit: int) -> None:
    """Raise Refused for a limit below 1, with which a caller would repeat its call for ever."""
    check_whole("limit", limit, 1, SAFE_INTEGER)


def check_parts(parts: int) -> None:
    """Raise Refused unless `parts` is 1 to 1,000."""
    check_whole("parts", parts, 1, MOST_PARTS)


def check_ttl(ttl: int) -> None:
    """Raise Refused for a lease below 1 ms."""
    check_whole("ttl", ttl, 1, LONGEST)


def check_holder(holder: str, limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad name of a holder."""
    check_text("holder", holder, limits.id)


def check_queues(queues: Sequence[str], limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad name of a queue, and for one str: its characters would pass as names."""
    check_texts("queues", queues)
    for queue in queues:
        check_queue(queue, limits)


def check_texts(field: str, texts: Sequence[str]) -> None:
    """Raise Refused for one str instead of a sequence of str."""
    if isinstance(texts, str):
        raise Refused(f"{field} must be a list of texts, not one text: write [{texts!r:.60}]", field=field)


def check_word(field: str, word: str, known: Sequence[str]) -> None:
    """Raise Refused unless `word` is one of `known`."""
    if word not in known:
        raise Refused(f"{field} must be one of {', '.join(known)}", field=field)


def check_settle_action(action: SettleAction, limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad action of a settlement."""
    # The most frequent class comes first: an isinstance that fails costs eight times as much as a match.
    if isinstance(action, Complete):
        if action.result is not None:
            check_bytes("result", action.result, limits.result)
        check_then(action.then, limits)
    elif isinstance(action, Fail):
        check_then(action.then, limits)
    elif isinstance(action, RetryLater):
        _check_retry(action)
        return
    retention = getattr(action, "retention", None)
    if retention is not None:
        check_retention("retention", retention)


def _check_retry(action: RetryLater) -> None:
    if action.run_at is not None and action.delay is not None:
        raise Refused("run_at and delay are both set; set at most one of them", field="run_at")
    check_number("run_at", action.run_at, 0, SAFE_INTEGER)
    check_number("delay", action.delay, 0, LONGEST)
    check_word("cause", action.cause, _CAUSES)


def check_patch(patch: JobPatch, limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad patch. The storage checks the size of the merged attributes."""
    if patch.run_at is not UNSET and patch.delay is not UNSET:
        raise Refused("run_at and delay are both set; set at most one of them", field="run_at")
    if patch.payload is not UNSET:
        check_bytes("payload", patch.payload, limits.payload)
    if patch.attributes is not UNSET:
        check_attributes(patch.attributes, limits)
    if patch.priority is not UNSET:
        check_whole("priority", patch.priority, -limits.priority, limits.priority)
    if patch.run_at is not UNSET:
        check_whole("run_at", patch.run_at, 0, SAFE_INTEGER)
    if patch.delay is not UNSET:
        check_whole("delay", patch.delay, 0, LONGEST)
    if patch.retention is not UNSET:
        check_retention("retention", patch.retention)


def check_settings(patch: SettingsPatch) -> None:
    """Raise Refused for bad settings."""
    if patch.paused is not UNSET and not isinstance(patch.paused, bool):
        raise Refused("paused must be True or False", field="paused")
    if patch.max_active is not UNSET and patch.max_active is not None:
        check_whole("max_active", patch.max_active, 0, SAFE_INTEGER)
    if patch.retention is not UNSET:
        check_retention("retention", patch.retention)
    if patch.log_level is not UNSET:
        check_word("log_level", patch.log_level, _LEVELS)
    for name in ("log_age", "log_bytes", "request_key_age"):
        value = getattr(patch, name)
        if value is not UNSET:
            check_whole(name, value, 0, LONGEST)


def check_record(id: str, slot: Slot, limits: Limits = LIMITS) -> None:
    """Raise Refused for an import record that no storage exports; importing it would damage the queue."""
    check_text("id", id, limits.id)
    job, successor, outcome = slot.current, slot.successor, slot.outcome
    if job is not None:
        _check_current(id, job, limits)
    if successor is not None:
        if job is None or job.run is None:
            raise Refused(
                "only an active current has a successor; remove one or make the current active",
                field="successor",
            )
        _check_part("successor", successor, limits)
        check_whole("successor.run_at", successor.run_at, 0, SAFE_INTEGER)
        check_whole("successor.seq", successor.seq, 0, SAFE_INTEGER)
    if outcome is not None:
        _check_part("outcome", outcome, limits)
        check_whole("outcome.fence", outcome.fence, 0, SAFE_INTEGER)
        check_number("outcome.expires_at", outcome.expires_at, 0, SAFE_INTEGER)
    for first, last in slot.dropped:
        check_whole("dropped", first, 0, SAFE_INTEGER)
        check_whole("dropped", last, first, SAFE_INTEGER)


def _check_current(id: str, job: Job, limits: Limits) -> None:
    if job.id != id:
        raise Refused(
            f"the record of id {id!r:.60} has a job with the id {job.id!r:.60}; the two must be equal",
            field="current.id",
        )
    _check_part("current", job, limits)
    check_whole("current.run_at", job.run_at, 0, SAFE_INTEGER)
    check_whole("current.seq", job.seq, 0, SAFE_INTEGER)
    if job.run is not None:
        check_whole("current.run.fence", job.run.fence, 0, SAFE_INTEGER)
        if job.run.lease is not None:
            check_whole("current.attempts", job.attempts, 1, SAFE_INTEGER)


def _check_part(name: str, part: Job | Successor | Outcome, limits: Limits) -> None:
    check_whole(f"{name}.first", part.first, 0, SAFE_INTEGER)
    check_whole(f"{name}.revision", part.revision, part.first, SAFE_INTEGER)
    if part.data is not None:
        check_data(part.data, limits)
