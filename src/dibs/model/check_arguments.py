"""What is refused in the arguments of verbs, beside the jobs of an enqueue: `dibs.model.limits` has those.

Every storage calls these at its door, before anything is read or written (promise 8).
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

#: Into how many parts a reading may be cut.
MOST_PARTS: Final = 1000
#: Numbers are drawn from now in us, and stay safe integers.
LATEST_NOW: Final = SAFE_INTEGER // 1000
_CAUSES: Final = get_args(RetryCause)
_LEVELS: Final = get_args(LogLevel)


def check_now(now: int) -> None:
    """Refuse a manual time that is none."""
    check_whole("now", now, 0, LATEST_NOW)


def check_limit(limit: int) -> None:
    """Refuse a limit that lets nothing through: the caller would ask for ever."""
    check_whole("limit", limit, 1, SAFE_INTEGER)


def check_parts(parts: int) -> None:
    """Refuse no parts at all, and more than anybody could read side by side."""
    check_whole("parts", parts, 1, MOST_PARTS)


def check_ttl(ttl: int) -> None:
    """Refuse a lease that would be over at once."""
    check_whole("ttl", ttl, 1, LONGEST)


def check_holder(holder: str, limits: Limits = LIMITS) -> None:
    """Refuse a name that a log could not keep."""
    check_text("holder", holder, limits.id)


def check_queues(queues: Sequence[str], limits: Limits = LIMITS) -> None:
    """Refuse what cannot be names of queues; a bare name would be taken for its letters."""
    check_texts("queues", queues)
    for queue in queues:
        check_queue(queue, limits)


def check_texts(field: str, texts: Sequence[str]) -> None:
    """Refuse one text where several are asked for."""
    if isinstance(texts, str):
        raise Refused(f"{field} must be several, not one text: write [{texts!r:.60}]", field=field)


def check_word(field: str, word: str, known: Sequence[str]) -> None:
    """Refuse a word that means nothing here."""
    if word not in known:
        raise Refused(f"{field} must be one of {', '.join(known)}", field=field)


def check_settle_action(how: SettleAction, limits: Limits = LIMITS) -> None:
    """Refuse a settlement that breaks a limit, before anything of it is written."""
    # The most frequent first: to tell what a Struct is not costs eight times as much as what it is.
    if isinstance(how, Complete):
        if how.result is not None:
            check_bytes("result", how.result, limits.result)
        check_then(how.then, limits)
    elif isinstance(how, Fail):
        check_then(how.then, limits)
    elif isinstance(how, RetryLater):
        _check_retry(how)
        return
    retention = getattr(how, "retention", None)
    if retention is not None:
        check_retention("retention", retention)


def _check_retry(how: RetryLater) -> None:
    if how.run_at is not None and how.delay is not None:
        raise Refused("run_at and delay exclude each other: give one", field="run_at")
    check_number("run_at", how.run_at, 0, SAFE_INTEGER)
    check_number("delay", how.delay, 0, LONGEST)
    check_word("cause", how.cause, _CAUSES)


def check_patch(patch: JobPatch, limits: Limits = LIMITS) -> None:
    """Refuse a patch that breaks a limit; the size of the merged attributes is for the storage to check."""
    if patch.run_at is not UNSET and patch.delay is not UNSET:
        raise Refused("run_at and delay exclude each other: give one", field="run_at")
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
    """Refuse settings that no queue could have."""
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
    """Refuse a whole id that no storage could have exported: it would break what is here."""
    check_text("id", id, limits.id)
    job, successor, outcome = slot.current, slot.successor, slot.outcome
    if job is not None:
        _check_current(id, job, limits)
    if successor is not None:
        if job is None or job.run is None:
            raise Refused("a successor stands only beside an active current", field="successor")
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
        raise Refused(f"the job of {id!r:.60} says it is {job.id!r:.60}", field="current.id")
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
