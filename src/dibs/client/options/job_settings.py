"""Settings of a job, the arguments of `enqueue`, with `Retention`, and their conversion to a request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, TypedDict

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from dibs.client.options.arguments import Seconds, build_key, duration_ms, epoch_ms, new_id
from dibs.client.options.serde import JSON
from dibs.errors import Refused
from dibs.model import job as model
from dibs.model.job import DEFAULT_RETENTION, NO_ATTRIBUTES, NO_DATA, EndKind, JobData, NewJob
from dibs.model.overrides import COUNT, DECLARATIONS, DURATION, TIME, Overrides
from dibs.model.plain_values import to_plain_text
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, OnConflict, Reject, Update
from dibs.model.retry import Backoff
from dibs.model.transitions import kinds_that_keep_data

#: The kinds of end, which are also the names of the fields of a retention.
ENDS: tuple[EndKind, ...] = ("completed", "failed", "cancelled")

#: Ms that an outcome is kept beyond the deadline of a waiter, because the waiter may read it late.
WAIT_SLACK_MS = 60_000
#: The retention of a job that leaves all kinds of end to its queue.
NO_RETENTION = model.OutcomeRetention()


class Retention(Struct, frozen=True, kw_only=True):
    """Seconds that the outcome of a job is kept, for each kind of end.

    None keeps the outcome for ever, 0 does not keep it, and UNSET uses the queue's setting. The default of a
    queue is 1 hour for completed, 7 days for failed and 1 hour for cancelled jobs (contract 3, Retention).
    """

    completed: Seconds | UnsetType | None = UNSET
    failed: Seconds | UnsetType | None = UNSET
    cancelled: Seconds | UnsetType | None = UNSET
    keep_payload: tuple[EndKind, ...] | UnsetType = UNSET
    """The kinds of end whose outcome keeps payload, attributes, priority, overrides and retention."""

    def to_model(self) -> model.OutcomeRetention:
        """Return the retention in ms. Raises Refused if a duration is negative."""
        return model.OutcomeRetention(
            completed=_age_ms("completed", self.completed),
            failed=_age_ms("failed", self.failed),
            cancelled=_age_ms("cancelled", self.cancelled),
            keep_payload=self.keep_payload,
        )

    @classmethod
    def from_model(cls, stored: model.OutcomeRetention) -> Retention:
        """Return a stored retention in seconds."""
        return cls(
            completed=_age_seconds(stored.completed),
            failed=_age_seconds(stored.failed),
            cancelled=_age_seconds(stored.cancelled),
            keep_payload=stored.keep_payload,
        )


def build_retention(value: Retention | Seconds | None) -> model.OutcomeRetention:
    """Return the value of a `retention=` parameter in ms. Seconds and None apply to every kind of end."""
    if isinstance(value, Retention):
        return value.to_model()
    return Retention(completed=value, failed=value, cancelled=value).to_model()


@lru_cache(256)
def retention_for_wait(queue: model.OutcomeRetention, wait: int) -> model.OutcomeRetention:
    """Return the retention of a new job that sets none and whose caller waits for `wait` ms.

    Equal calls return the same object: most calls of a program have the same arguments.
    """
    return extend_retention(queue, wait, NO_RETENTION)


def extend_retention(
    queue: model.OutcomeRetention, wait: int, own: model.OutcomeRetention, *others: model.OutcomeRetention
) -> model.OutcomeRetention:
    """Return the retention `own` of a job, extended to outlive a wait of `wait` ms; `own` if long enough.

    `queue` is the retention of the queue, which applies to kinds of end that `own` leaves UNSET. The caller
    may pass the result to `Storage.amend`. An amend sets one retention on the current job of an id, on the
    blocked job after it and on the outcome; `others` are the retentions of the other two. So the result is at
    least as long as each of `others`.
    """
    if not any(_is_shorter(_effective_age(kind, own, queue), wait + WAIT_SLACK_MS) for kind in ENDS):
        return own
    retentions = (own, *others)
    ages = {kind: _extended_age(kind, retentions, queue, wait + WAIT_SLACK_MS) for kind in ENDS}
    return model.OutcomeRetention(keep_payload=_merge_keep_payload(retentions, queue), **ages)


def _extended_age(
    kind: EndKind, retentions: Sequence[model.OutcomeRetention], queue: model.OutcomeRetention, least: int
) -> int | UnsetType | None:
    given: set[int | UnsetType | None] = {getattr(retention, kind) for retention in retentions}
    ages = [_effective_age(kind, retention, queue) for retention in retentions]
    if len(given) == 1 and not _is_shorter(ages[0], least):
        return given.pop()
    return None if None in ages else max(least, *(age for age in ages if age is not None))


def _merge_keep_payload(
    retentions: Sequence[model.OutcomeRetention], queue: model.OutcomeRetention
) -> tuple[EndKind, ...] | UnsetType:
    if len({retention.keep_payload for retention in retentions}) == 1:
        return retentions[0].keep_payload
    kept = {kind for retention in retentions for kind in kinds_that_keep_data((retention, queue))}
    return tuple(kind for kind in ENDS if kind in kept)


def _is_shorter(age: int | None, least: int) -> bool:
    return age is not None and age < least


def _effective_age(kind: EndKind, *retentions: model.OutcomeRetention) -> int | None:
    """Return the ms for which outcomes of `kind` are kept; None is for ever.

    The first of `retentions` with a value for `kind` decides, else DEFAULT_RETENTION.
    """
    for retention in (*retentions, DEFAULT_RETENTION):
        age: int | UnsetType | None = getattr(retention, kind)
        if age is not UNSET:
            return age
    raise AssertionError(f"bug in dibs: DEFAULT_RETENTION has no value for the kind of end {kind!r}")


def _age_ms(kind: EndKind, age: Seconds | UnsetType | None) -> int | UnsetType | None:
    if age is None or age is UNSET:
        return age
    ms = duration_ms(f"retention.{kind}", age)
    if ms < 0:
        raise Refused(
            f"retention.{kind} is {age}; pass 0 or more seconds, or None for ever", field="retention"
        )
    return ms


def _age_seconds(age: int | UnsetType | None) -> float | UnsetType | None:
    return age if age is None or age is UNSET else age / 1000


class JobSettings(TypedDict, total=False):
    """Settings of one job. A missing setting takes its value from the handler, the queue or the default."""

    id: str
    """The job's id, 1 to 512 bytes of text. Default: a new id that sorts by time."""
    delay: Seconds
    """Seconds from the storage's current time until the job is due. Excludes `run_at`."""
    run_at: datetime
    """The time when the job is due, with a time zone. Excludes `delay`."""
    priority: int
    """-1000 to 1000; jobs of a higher priority run first. Default: 0."""
    on_conflict: OnConflict
    """The rule for an id that is already stored: `Update(...)` or `Reject(...)`. Default: `Update()`."""
    supersede: bool
    """True to ask the active run of the id to end, so that the new job replaces it. The same as
    `on_conflict=Update(supersede=True)`, and refused with a Reject. Default: False, the run goes on."""
    request_key: str
    """A key that makes the enqueue idempotent. A repeat with the same key, within the queue's
    `request_key_age` (default: one hour), changes no job and returns the first answer."""
    key: str | int | None
    """The key to which the limits `per_key` and `key_rate` of the queue apply: text of 1 to 128 bytes, or a
    whole number. None is no key. Default: the key that the task derives, else no key."""
    attributes: Mapping[str, Any]
    """JSON values by name. `current_job().attributes` and `Status.attributes` return them."""
    retention: Retention | Seconds | None
    """Seconds that the outcome is kept; None is for ever. Default: the queue's retention."""
    timeout: Seconds | None
    """Seconds that one run may take; None is without limit. Replaces the handler's timeout."""
    max_retries: int | None
    """Most retries after errors; None is without limit. Replaces the handler's max_retries."""
    max_timeouts: int | None
    """Most retries after timeouts; None is without limit. Replaces the handler's max_timeouts."""
    max_stalls: int | None
    """Most retries after expired leases (the worker died or hung); None is without limit. Replaces the
    handler's max_stalls."""
    backoff: Backoff
    """The delays between retries. Replaces the handler's backoff."""
    start_by: datetime | Seconds | None
    """The time from which no run may start, with a time zone, or seconds from now by the clock of this
    machine. A worker that claims the job later cancels it. None is no deadline, the default."""
    lease: Seconds
    """Least seconds of the lease when `queue.receive()` claims the job, counted from the claim. A shorter
    lease than the receiver's changes nothing, and a worker ignores it: a worker renews its lease itself."""


class CallSettings(JobSettings, total=False):
    """Settings of one call of a task: the settings of the job, and two for the call itself."""

    wait: Seconds | None
    """Seconds that `enqueue_and_wait` waits for the result. None waits until the job ends."""
    connection: Any
    """A connection of psycopg, SQLAlchemy or Django. The enqueue becomes part of its transaction."""


JOB_SETTINGS: Final = frozenset(JobSettings.__annotations__)
CALL_SETTINGS: Final = frozenset(CallSettings.__annotations__)
#: The settings of an update-only request, which has no data.
_UPDATE_SETTINGS: Final = frozenset(
    {"id", "delay", "run_at", "on_conflict", "request_key", "wait", "connection"}
)


def check_setting_names(given: Iterable[str], known: frozenset[str]) -> None:
    """Raise Refused for an unknown name, for example a misspelled one. The error lists the `known` names."""
    for name in given:
        if name not in known:
            like = get_close_matches(name, known, n=1)
            hint = f"did you mean {like[0]!r}? The" if like else "the"
            if name in CALL_SETTINGS:
                hint = f"it is a setting of one job: task.options({name}=...). Here the"
            raise Refused(
                f"unknown setting {name!r}; {hint} settings are {', '.join(sorted(known))}", field=name
            )


def is_update_only(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings make an update-only request: `on_conflict=Update(create=False)`."""
    rule = settings.get("on_conflict")
    return isinstance(rule, Update) and rule.create is False


def build_request(payload: bytes, settings: JobSettings, *, want_outcome: bool = False) -> EnqueueRequest:
    """Return the request for a job with this payload and these settings. Raises Refused.

    `want_outcome` asks for the outcome that may refuse the request, so it has effect with a Reject only.
    """
    if not settings:
        data = JobData(payload=payload, attributes=NO_ATTRIBUTES)
        return EnqueueRequest(job=NewJob(id=new_id(), data=data))
    id = to_plain_text(settings.get("id")) or _generated_id(settings)
    return _with_rule(id, build_data(payload, settings), settings, want_outcome=want_outcome)


def build_update(settings: JobSettings, *, want_outcome: bool = False) -> EnqueueRequest:
    """Return an update-only request. Raises Refused for a missing id, and for a setting that is data."""
    for name in settings:
        if name not in _UPDATE_SETTINGS:
            raise Refused(
                f"{name} is set, but an update with create=False changes only run_at and the counts of a "
                f"live job; leave {name} out",
                field=name,
            )
    id = to_plain_text(settings.get("id"))
    if not id:
        raise Refused("id is missing; an update with create=False needs the id of a job", field="id")
    return _with_rule(id, NO_DATA, settings, want_outcome=want_outcome)


def _with_rule(id: str, data: JobData, settings: JobSettings, *, want_outcome: bool) -> EnqueueRequest:
    rule = settings.get("on_conflict", DEFAULT_UPDATE)
    if "supersede" in settings:
        rule = _superseding(rule, settings["supersede"])
    return EnqueueRequest(
        job=NewJob(id=id, data=data, **due_fields(settings)),
        on_conflict=rule,
        request_key=to_plain_text(settings.get("request_key")),
        want_outcome=want_outcome and isinstance(rule, Reject),
    )


def _superseding(rule: OnConflict, supersede: object) -> OnConflict:
    """Return the rule with `supersede`. Raises Refused if the rule is a Reject, which replaces nothing."""
    if not isinstance(supersede, bool):
        raise Refused(f"supersede is {supersede!r:.60}; pass True or False", field="supersede")
    if not supersede:
        return rule
    if not isinstance(rule, Update):
        raise Refused(
            "supersede is True and on_conflict is no Update(...), but a Reject leaves the run of a known id "
            "as it is; leave one of them out",
            field="supersede",
        )
    return replace(rule, supersede=True)


def _generated_id(settings: JobSettings) -> str:
    if settings.get("id") is not None:
        raise Refused("id is empty; pass 1 to 512 bytes of text, or leave it out to generate one", field="id")
    return new_id()


def due_fields(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the time of a job as fields of a request: `run_at` in ms since the epoch, `delay` in ms, or {}.

    Raises Refused if both are set.
    """
    delay, run_at = settings.get("delay"), settings.get("run_at")
    if delay is not None and run_at is not None:
        raise Refused("delay and run_at are both set; pass only one", field="run_at")
    if run_at is not None:
        return {"run_at": epoch_ms("run_at", run_at)}
    return {} if delay is None else {"delay": duration_ms("delay", delay)}


def build_data(payload: bytes, settings: JobSettings) -> JobData:
    """Return payload, attributes, priority, key, limits and retention: an `Update` replaces them together."""
    retention = settings.get("retention", UNSET)
    return JobData(
        payload=payload,
        attributes=encode_attributes(settings.get("attributes")),
        priority=settings.get("priority", 0),
        overrides=build_overrides(settings),
        retention=None if retention is UNSET else build_retention(retention),
        key=build_key(settings.get("key")),
    )


def encode_attributes(attributes: Mapping[str, Any] | None) -> Mapping[str, bytes]:
    """Return each attribute as encoded JSON. Raises Refused with the name of the invalid attribute."""
    if attributes is None:
        return NO_ATTRIBUTES
    if not isinstance(attributes, Mapping):
        raise Refused(
            f"attributes is {attributes!r}; pass a mapping of text to JSON values", field="attributes"
        )
    return {
        to_plain_text(name): _encode_attribute(name, value) for name, value in attributes.items()
    } or NO_ATTRIBUTES


def _encode_attribute(name: str, value: Any) -> bytes:
    try:
        return JSON.encode(value)
    except Refused as error:
        raise Refused(f"attributes[{name!r}]: {error}", field=f"attributes[{name!r}]") from error


def build_overrides(settings: Mapping[str, Any]) -> Overrides | None:
    """Return what this job sets in place of its handler; None if it sets nothing. Raises Refused."""
    given = {name: to_stored(name, settings[name]) for name in DECLARATIONS if name in settings}
    return Overrides(**given) if given else None


def to_stored(name: str, value: Any) -> Any:
    """Return a setting as the field of Overrides of this name: durations and times in ms. Raises Refused."""
    declared = DECLARATIONS[name]
    if declared.kind is DURATION:
        ms = check_duration_limit(name, value)
        return UNSET if ms is None and not declared.may_be_none else ms
    if declared.kind is COUNT:
        return check_count_limit(name, value)
    return deadline_ms(name, value) if declared.kind is TIME else to_plain_text(value)


def deadline_ms(name: str, value: datetime | Seconds | None) -> int | None:
    """Return a deadline in ms since the epoch; None is no deadline.

    A duration counts from now, by the clock of this machine. Raises Refused.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        return epoch_ms(name, value)
    ms = duration_ms(name, value)
    if ms <= 0:
        raise Refused(
            f"{name} is {value}; pass more than 0 seconds, or a datetime with a time zone", field=name
        )
    return time.time_ns() // 1_000_000 + ms


def check_duration_limit(name: str, value: Seconds | UnsetType | None) -> int | UnsetType | None:
    """Return a positive duration in ms; None (no limit) and UNSET stay. Raises Refused."""
    if value is None or value is UNSET:
        return value
    ms = duration_ms(name, value)
    if ms <= 0:
        raise Refused(f"{name} is {value}; pass more than 0 seconds, or None for no limit", field=name)
    return ms


def check_count_limit(name: str, value: int | UnsetType | None) -> int | UnsetType | None:
    """Return `value` if it is a number of retries, None (no limit) or UNSET. Raises Refused otherwise."""
    if value is None or value is UNSET:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused(f"{name} is {value!r}; pass a whole number from 0, or None for no limit", field=name)
    return value
