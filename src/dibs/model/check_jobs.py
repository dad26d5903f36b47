"""Checks of the jobs of an enqueue: requests, follow-ups, and the data of a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Self, get_args

from msgspec import UNSET

from dibs.errors import BatchRefused, Refused
from dibs.model.check_values import check_attributes, check_bytes, check_number, check_text, check_whole
from dibs.model.job import FAIL_SUFFIX, NO_ATTRIBUTES, EndKind, JobData, NewJob, OutcomeRetention, Overrides
from dibs.model.limits import LIMITS, LONGEST, SAFE_INTEGER, Limits
from dibs.model.requests import (
    DEFAULT_UPDATE,
    EnqueueRequest,
    FollowUp,
    OnConflict,
    Reject,
    RunAtRule,
    Update,
)
from dibs.model.retry import Exponential, Fixed, Immediate

_RULES: Final = get_args(RunAtRule)
_END_KINDS: Final = get_args(EndKind)


class CheckedBatch(tuple[EnqueueRequest, ...]):  # noqa: SLOT001 - below a tuple, slots have to be empty
    """Requests of which none breaks `within`: a door that holds to the same need not look at them again.

    Only who has looked may make one.
    """

    within: Limits
    #: Whether each says nothing but id and payload, as most do.
    plain: bool

    @classmethod
    def found(cls, requests: Iterable[EnqueueRequest], within: Limits, *, plain: bool) -> Self:
        """Return requests that were found good, and plain or not, by check_request."""
        checked = cls(requests)
        checked.within, checked.plain = within, plain
        return checked


def check_batch(requests: Sequence[EnqueueRequest], limits: Limits = LIMITS) -> CheckedBatch:
    """Refuse the batch if any item breaks a limit, naming each such item; return it as what was checked."""
    if len(requests) > limits.batch:
        raise Refused(
            f"{len(requests)} requests in one batch; the limit is {limits.batch}, send several batches",
            field="requests",
        )
    if isinstance(requests, CheckedBatch) and requests.within == limits:
        return requests
    refused, plain = [], True
    for index, request in enumerate(requests):
        try:
            plain = check_request(request, limits) and plain
        except Refused as error:
            error.index = index
            refused.append(error)
    if refused:
        raise BatchRefused(f"{len(refused)} of {len(requests)} requests are refused, none was sent", refused)
    return CheckedBatch.found(requests, limits, plain=plain)


def check_request(request: EnqueueRequest, limits: Limits = LIMITS) -> bool:
    """Refuse a request that breaks a limit; return whether it says nothing but id and payload."""
    if _is_plain(request, limits):
        return True
    check_new(request.job, limits)
    check_conflict(request.on_conflict)
    if request.request_key is not None:
        check_text("request_key", request.request_key, limits.request_key)
    return False


def _is_plain(request: EnqueueRequest, limits: Limits) -> bool:
    """Tell, in a third of the time, that there is nothing to refuse; False says nothing."""
    job = request.job
    id, data = job.id, job.data
    payload = data.payload
    return (
        type(id) is str
        and type(payload) is bytes
        and 0 < len(id) <= limits.id
        and id.isascii()
        and "\0" not in id
        and len(payload) <= limits.payload
        and (data.attributes is NO_ATTRIBUTES or data.attributes == {})
        and type(data.priority) is int
        and data.priority == 0
        and request.on_conflict is DEFAULT_UPDATE
        and job.run_at is None
        and job.delay is None
        and data.overrides is None
        and data.retention is None
        and request.request_key is None
        and request.want_outcome is False
    )


def check_conflict(how: OnConflict) -> None:
    """Refuse a rule for known ids that nobody knows."""
    if how is DEFAULT_UPDATE:
        return
    if isinstance(how, Update):
        if how.run_at not in _RULES:
            raise Refused(
                f"on_conflict.run_at must be one of {', '.join(_RULES)}", field="on_conflict.run_at"
            )
        flags = {"data": how.data, "reset_counts": how.data if how.reset_counts is None else how.reset_counts}
    elif isinstance(how, Reject):
        flags = {"failed": how.failed}
    else:
        raise Refused(
            f"on_conflict must be Update(...) or Reject(...), not {type(how).__name__}", field="on_conflict"
        )
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise Refused(f"on_conflict.{name} must be True or False", field=f"on_conflict.{name}")


def check_new(job: NewJob, limits: Limits = LIMITS) -> None:
    """Refuse a job that breaks a limit."""
    check_text("id", job.id, limits.id)
    check_data(job.data, limits)
    if job.run_at is None and job.delay is None:
        return
    if job.run_at is not None and job.delay is not None:
        raise Refused("run_at and delay exclude each other: give one", field="run_at")
    check_number("run_at", job.run_at, 0, SAFE_INTEGER)
    check_number("delay", job.delay, 0, LONGEST)


def check_data(data: JobData, limits: Limits = LIMITS) -> None:
    """Refuse payload, attributes, priority or terms that break a limit."""
    check_bytes("payload", data.payload, limits.payload)
    if data.priority != 0 or type(data.priority) is not int:
        check_whole("priority", data.priority, -limits.priority, limits.priority)
    if data.attributes is not NO_ATTRIBUTES:
        check_attributes(data.attributes, limits)
    if data.overrides is not None:
        check_overrides(data.overrides)
    if data.retention is not None:
        check_retention("retention", data.retention)


def check_then(then: Iterable[FollowUp], limits: Limits = LIMITS) -> None:
    """Refuse a follow-up that breaks a limit or names a queue nobody may enqueue to."""
    for item in then:
        check_target(item.queue, limits)
        check_new(item.job, limits)
        check_conflict(item.on_conflict)


def check_target(queue: str, limits: Limits = LIMITS) -> None:
    """Refuse a queue name that may not be enqueued to."""
    check_queue(queue, limits)
    if queue.endswith(FAIL_SUFFIX):
        raise Refused(
            f"queue {queue!r}: names ending in {FAIL_SUFFIX!r} belong to failure handlers; "
            "only dibs enqueues there",
            field="queue",
        )


def check_queue(queue: str, limits: Limits = LIMITS) -> None:
    """Refuse what cannot be the name of a queue; a fail queue may be longer by its ending."""
    if isinstance(queue, str) and queue.endswith(FAIL_SUFFIX):
        check_text("queue", queue, limits.queue + len(FAIL_SUFFIX))
    else:
        check_text("queue", queue, limits.queue)


def check_overrides(overrides: Overrides) -> None:
    """Refuse limits of a job's own that no handler could have."""
    if not isinstance(overrides, Overrides):
        raise Refused(f"overrides must be Overrides, not {type(overrides).__name__}", field="overrides")
    _check_times("overrides.timeout", overrides.timeout, 1)
    _check_times("overrides.max_retries", overrides.max_retries, 0)
    _check_times("overrides.max_timeouts", overrides.max_timeouts, 0)
    _check_times("overrides.max_stalls", overrides.max_stalls, 0)
    if overrides.lease is not UNSET:
        check_whole("overrides.lease", overrides.lease, 1, LONGEST)
    if overrides.backoff is not UNSET:
        check_backoff("overrides.backoff", overrides.backoff)


def check_backoff(field: str, backoff: object) -> None:
    """Refuse what says no delay, or one that is no time."""
    if isinstance(backoff, Immediate):
        return
    if isinstance(backoff, Fixed):
        _check_seconds(f"{field}.seconds", backoff.seconds)
    elif isinstance(backoff, Exponential):
        _check_seconds(f"{field}.first", backoff.first)
        _check_seconds(f"{field}.cap", backoff.cap)
    else:
        raise Refused(
            f"{field} must be Immediate, Fixed or Exponential, not {type(backoff).__name__}", field=field
        )


def check_retention(field: str, retention: OutcomeRetention) -> None:
    """Refuse a retention that is no time: whole ms, 0 for none, None for ever."""
    if not isinstance(retention, OutcomeRetention):
        raise Refused(f"{field} must be a Retention, not {type(retention).__name__}", field=field)
    for kind in _END_KINDS:
        _check_times(f"{field}.{kind}", getattr(retention, kind), 0)
    kept: object = retention.keep_payload
    if kept is not UNSET and not (isinstance(kept, tuple) and set(kept) <= set(_END_KINDS)):
        where = f"{field}.keep_payload"
        raise Refused(f"{where} must be a tuple of some of {', '.join(_END_KINDS)}", field=where)


def _check_times(field: str, value: object, low: int) -> None:
    if value is not UNSET and value is not None:
        check_whole(field, value, low, LONGEST)


def _check_seconds(field: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refused(f"{field} must be a number of seconds, not {type(value).__name__}", field=field)
    most = LONGEST // 1000
    if not math.isfinite(value) or not 0 <= value <= most:
        raise Refused(f"{field} must be 0 to {most} seconds", field=field)
