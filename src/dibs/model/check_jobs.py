"""The checks of enqueue requests and follow-ups, and of the jobs in them.

Callers check before the storage writes. Each check raises Refused, and `check_batch` raises BatchRefused.
The limits for text count bytes of UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self, get_args

from msgspec import UNSET
from msgspec.structs import replace

from dibs.errors import BatchRefused, Refused
from dibs.model.check_values import (
    check_attributes,
    check_bytes,
    check_duration,
    check_flag,
    check_is_a,
    check_is_list,
    check_text,
    check_time,
    check_whole_number,
)
from dibs.model.job import (
    FAIL_SUFFIX,
    NO_ATTRIBUTES,
    NO_DATA,
    EndKind,
    JobData,
    NewJob,
    OutcomeRetention,
)
from dibs.model.limits import LIMITS, LONGEST_TIME, Limits
from dibs.model.overrides import check_overrides
from dibs.model.requests import (
    DEFAULT_UPDATE,
    EnqueueRequest,
    FollowUp,
    OnConflict,
    Reject,
    RunAtRule,
    Update,
)
from dibs.model.worker_record import WORKERS_QUEUE

_RULES: Final = get_args(RunAtRule)
_END_KINDS: Final = get_args(EndKind)


class CheckedBatch(tuple[EnqueueRequest, ...]):  # noqa: SLOT001 - below a tuple, slots have to be empty
    """A batch of requests that has passed `check_batch`.

    The client and the storage both call `check_batch`. With equal limits, the second call returns at once.
    """

    #: The limits with which the batch was checked.
    within: Limits
    #: True if each request sets only id and payload. Storages have a fast path for such a batch.
    plain: bool

    @classmethod
    def of(cls, requests: Iterable[EnqueueRequest], within: Limits, *, plain: bool) -> Self:
        """Mark requests as checked. Each one must have passed `check_request` with the limits `within`."""
        checked = cls(requests)
        checked.within, checked.plain = within, plain
        return checked


def check_batch(requests: Sequence[EnqueueRequest], limits: Limits = LIMITS) -> CheckedBatch:
    """Return the batch as a CheckedBatch.

    Raise Refused for a batch with too many requests. Raise BatchRefused with one Refused for each bad
    request; its `index` is the position of the request in the batch.
    """
    check_is_list("requests", requests)
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
        raise BatchRefused(
            f"{len(refused)} of {len(requests)} requests were refused, and no request was sent", refused
        )
    return CheckedBatch.of(requests, limits, plain=plain)


def check_request(request: EnqueueRequest, limits: Limits = LIMITS) -> bool:
    """Raise Refused for a bad request. Return whether the request sets only id and payload."""
    try:
        if _sets_only_id_and_payload(request, limits):
            return True
    except AttributeError:
        # Only a value of another class lacks an attribute. This check costs nothing for a good request.
        check_is_a("request", request, EnqueueRequest)
        check_is_new_job(request.job)
        raise
    check_new_job(request.job, limits)
    check_conflict(request.on_conflict, request.job)
    if request.request_key is not None:
        check_text("request_key", request.request_key, limits.request_key)
    check_flag("want_outcome", request.want_outcome)
    return False


def _sets_only_id_and_payload(request: EnqueueRequest, limits: Limits) -> bool:
    """Return True for a valid request that sets only id and payload. For False, run the full check.

    Most requests set only these two. For them this check takes a third of the time of the full check.
    """
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
        and data.key is None
        and data.memo is None
        and request.request_key is None
        and request.want_outcome is False
    )


def check_conflict(on_conflict: OnConflict, job: NewJob | None = None) -> None:
    """Raise Refused unless `on_conflict` is an Update or a Reject with valid fields.

    With a `job`, raise Refused as well for an update-only request with data in its job.
    """
    if on_conflict is DEFAULT_UPDATE:
        return
    if isinstance(on_conflict, Update):
        if on_conflict.run_at not in _RULES:
            raise Refused(
                f"on_conflict.run_at must be one of {', '.join(_RULES)}", field="on_conflict.run_at"
            )
        flags = {
            "create": on_conflict.create,
            "data": on_conflict.replaces,
            "reset_counts": on_conflict.resets,
            "supersede": on_conflict.supersede,
        }
    elif isinstance(on_conflict, Reject):
        flags = {"failed": on_conflict.failed}
    else:
        raise Refused(_describe_bad_conflict(on_conflict), field="on_conflict")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise Refused(f"on_conflict.{name} must be True or False", field=f"on_conflict.{name}")
    if isinstance(on_conflict, Update):
        if on_conflict.run_at == "wake":
            _check_wake(on_conflict, job)
        if not on_conflict.create:
            _check_update_only(on_conflict, job)


def _check_wake(rule: Update, job: NewJob | None) -> None:
    if rule.create:
        raise Refused(
            "on_conflict.run_at is 'wake', which makes a parked job due now, but the request may make a new "
            "job; set on_conflict.create to False",
            field="on_conflict.run_at",
        )
    if job is not None and not (job.run_at is None and job.delay is None):
        raise Refused(
            "on_conflict.run_at is 'wake', which makes a parked job due now, but the job has a time of its "
            "own; leave run_at and delay out",
            field="on_conflict.run_at",
        )


def _check_update_only(rule: Update, job: NewJob | None) -> None:
    if rule.data:
        raise Refused(
            "on_conflict.data is True, but an update with create=False has no data; leave data out",
            field="on_conflict.data",
        )
    if rule.supersede:
        raise Refused(
            "on_conflict.supersede is True, but an update with create=False makes no job that could take the "
            "place of the run; leave create out, or call cancel with running=True",
            field="on_conflict.supersede",
        )
    if job is None or job.data is NO_DATA:
        return
    if replace(job.data, attributes=NO_ATTRIBUTES) != NO_DATA:
        raise Refused(
            "data is set, but an update with create=False changes only run_at, the counts and the attributes "
            "of a live job; leave payload, priority, key, overrides and retention out",
            field="data",
        )


def _describe_bad_conflict(value: object) -> str:
    if value is Update or value is Reject:
        name = "Update" if value is Update else "Reject"
        return f"on_conflict is the class {name}; write {name}()"
    return f"on_conflict is {value!r:.60}; pass Update(...) or Reject(...)"


def check_is_new_job(job: object) -> None:
    """Raise Refused unless `job` is a NewJob with JobData."""
    check_is_a("job", job, NewJob)
    check_is_a("data", getattr(job, "data", None), JobData)


def check_new_job(job: NewJob, limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad id, bad data, a bad time, or both `run_at` and `delay`."""
    check_text("id", job.id, limits.id)
    check_job_data(job.data, limits)
    if job.data.memo is not None:
        raise Refused("memo is set, but only a run stores a memo, with report; leave it out", field="memo")
    if job.run_at is None and job.delay is None:
        return
    if job.run_at is not None and job.delay is not None:
        raise Refused("run_at and delay are both set; set at most one of them", field="run_at")
    if job.run_at is not None:
        check_time("run_at", job.run_at)
    else:
        check_duration("delay", job.delay)


def check_job_data(data: JobData, limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad payload, attributes, priority, overrides, retention, key or memo."""
    check_bytes("payload", data.payload, limits.payload)
    if data.priority != 0 or type(data.priority) is not int:
        check_whole_number("priority", data.priority, -limits.priority, limits.priority)
    if data.attributes is not NO_ATTRIBUTES:
        check_attributes(data.attributes, limits)
    if data.overrides is not None:
        check_overrides(data.overrides)
    if data.retention is not None:
        check_retention("retention", data.retention)
    if data.key is not None:
        check_text("key", data.key, limits.key)
    if data.memo is not None:
        check_bytes("memo", data.memo, limits.memo)


def check_follow_ups(then: Iterable[FollowUp], limits: Limits = LIMITS) -> None:
    """Raise Refused for the first bad queue, job or `on_conflict` among the follow-ups of a run."""
    check_is_list("then", then)
    for item in then:
        check_is_a("then", item, FollowUp)
        check_is_new_job(item.job)
        check_enqueue_queue(item.queue, limits)
        check_new_job(item.job, limits)
        check_conflict(item.on_conflict, item.job)


def check_enqueue_queue(queue: str, limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad queue name, and for the queues that only dibs fills.

    These are the fail queues, such as "emails!fail", and the queue with the records of workers.
    """
    check_queue(queue, limits)
    if queue == WORKERS_QUEUE:
        raise Refused(
            f"queue {queue!r} is reserved for the records of workers, so no job goes there; use another name",
            field="queue",
        )
    if queue.endswith(FAIL_SUFFIX):
        raise Refused(
            f"queue {queue!r} is a fail queue, because its name ends in {FAIL_SUFFIX!r}: only dibs enqueues "
            "there; use another name",
            field="queue",
        )


def check_queue(queue: str, limits: Limits = LIMITS) -> None:
    """Raise Refused for a bad queue name. The limit does not count the ending "!fail" of a fail queue."""
    if isinstance(queue, str) and queue.endswith(FAIL_SUFFIX):
        check_text("queue", queue, limits.queue + len(FAIL_SUFFIX))
    else:
        check_text("queue", queue, limits.queue)


def check_retention(field: str, retention: OutcomeRetention) -> None:
    """Raise Refused unless each time is a number of whole ms, None (for ever) or UNSET (not set)."""
    if not isinstance(retention, OutcomeRetention):
        raise Refused(f"{field} must be a Retention, not {type(retention).__name__}", field=field)
    if _is_plain_retention(retention):
        return
    for kind in _END_KINDS:
        _check_optional_duration(f"{field}.{kind}", getattr(retention, kind), 0)
    kept: object = retention.keep_payload
    if kept is not UNSET and not (isinstance(kept, tuple) and all(kind in _END_KINDS for kind in kept)):
        name = f"{field}.keep_payload"
        raise Refused(f"{name} must be a tuple of some of {', '.join(_END_KINDS)}", field=name)


def _is_plain_retention(retention: OutcomeRetention) -> bool:
    """Return True for a valid retention without `keep_payload`. For False, run the full check.

    Each `enqueue_and_wait` sets a retention. This check makes no call, and the full check makes fourteen.
    """
    completed, failed, cancelled = retention.completed, retention.failed, retention.cancelled
    return (
        retention.keep_payload is UNSET
        and (
            completed is UNSET
            or completed is None
            or (type(completed) is int and 0 <= completed <= LONGEST_TIME)
        )
        and (failed is UNSET or failed is None or (type(failed) is int and 0 <= failed <= LONGEST_TIME))
        and (
            cancelled is UNSET
            or cancelled is None
            or (type(cancelled) is int and 0 <= cancelled <= LONGEST_TIME)
        )
    )


def _check_optional_duration(field: str, value: object, low: int) -> None:
    if value is not UNSET and value is not None:
        check_duration(field, value, low)
