"""The settings of a job as people write them, and the request they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from msgspec import UNSET, UnsetType

from dibs.client.options.durations import Seconds, duration_ms, epoch_ms
from dibs.client.options.ids import new_id
from dibs.client.options.retention import Retention, build_retention
from dibs.client.options.serde import JSON
from dibs.errors import Refused
from dibs.model.job import NO_ATTRIBUTES, JobData, NewJob, Overrides
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, OnConflict
from dibs.model.retry import Backoff


class JobSettings(TypedDict, total=False):
    """What a single job may be given; what is left out is as the handler, queue or contract says."""

    #: 1 to 512 bytes; generated and time-ordered when left out.
    id: str
    #: Seconds from the storage's now; not together with run_at.
    delay: Seconds
    #: A moment with a time zone.
    run_at: datetime
    #: -1000 to 1000, higher first.
    priority: int
    #: What happens if the id is known: Update(...) or Reject(...).
    on_conflict: OnConflict
    #: A repeat with the same key within an hour changes nothing and gets the first answer.
    request_key: str
    #: Text to any JSON value each; to find and to route by.
    attributes: Mapping[str, Any]
    #: How long the outcome is kept.
    retention: Retention | Seconds | None
    #: In place of the handler's; seconds. None is without limit.
    timeout: Seconds | None
    max_retries: int | None
    max_timeouts: int | None
    max_stalls: int | None
    backoff: Backoff
    #: In place of the one of a receive by hand; seconds.
    lease: Seconds


class CallSettings(JobSettings, total=False):
    """The same, and what is about the call and not the job."""

    #: How long `run` waits for the result, in seconds; None waits until the job ends.
    wait: Seconds | None
    #: Enqueue in the transaction of this connection: psycopg's, or SQLAlchemy's.
    connection: Any


JOB_SETTINGS: Final = frozenset(JobSettings.__annotations__)
CALL_SETTINGS: Final = frozenset(CallSettings.__annotations__)
_OWN_LIMITS: Final = ("timeout", "max_retries", "max_timeouts", "max_stalls", "backoff", "lease")


def check_setting_names(given: Iterable[str], known: frozenset[str]) -> None:
    """Refuse a setting that does not exist; a type checker says so earlier."""
    for name in given:
        if name not in known:
            raise Refused(f"there is no setting {name!r}; there are {', '.join(sorted(known))}", field=name)


def build_request(payload: bytes, settings: JobSettings, *, want_outcome: bool = False) -> EnqueueRequest:
    """Return the request that payload and settings make. Raises Refused."""
    if not settings:
        data = JobData(payload=payload, attributes=NO_ATTRIBUTES)
        return EnqueueRequest(job=NewJob(id=new_id(), data=data), want_outcome=want_outcome)
    job = NewJob(
        id=settings.get("id") or _generated(settings),
        data=build_data(payload, settings),
        **due_fields(settings),
    )
    return EnqueueRequest(
        job=job,
        on_conflict=settings.get("on_conflict", DEFAULT_UPDATE),
        request_key=settings.get("request_key"),
        want_outcome=want_outcome,
    )


def _generated(settings: JobSettings) -> str:
    if settings.get("id") is not None:
        raise Refused("id is empty; leave it out to have one generated", field="id")
    return new_id()


def due_fields(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return run_at or delay as the contract has them. Raises Refused for both."""
    delay, run_at = settings.get("delay"), settings.get("run_at")
    if delay is not None and run_at is not None:
        raise Refused("delay and run_at exclude each other: give one", field="run_at")
    if run_at is not None:
        return {"run_at": epoch_ms("run_at", run_at)}
    return {} if delay is None else {"delay": duration_ms("delay", delay)}


def build_data(payload: bytes, settings: JobSettings) -> JobData:
    """Return what an Update replaces as one."""
    retention = settings.get("retention", UNSET)
    return JobData(
        payload=payload,
        attributes=encode_attributes(settings.get("attributes")),
        priority=settings.get("priority", 0),
        overrides=build_overrides(settings),
        retention=None if retention is UNSET else build_retention(retention),
    )


def encode_attributes(attributes: Mapping[str, Any] | None) -> Mapping[str, bytes]:
    """Return attributes as encoded JSON. Raises Refused naming the one at fault."""
    if attributes is None:
        return NO_ATTRIBUTES
    if not isinstance(attributes, Mapping):
        raise Refused(f"attributes must map text to JSON values, not be {attributes!r}", field="attributes")
    return {name: _attribute(name, value) for name, value in attributes.items()} or NO_ATTRIBUTES


def _attribute(name: str, value: Any) -> bytes:
    try:
        return JSON.encode(value)
    except Refused as error:
        raise Refused(f"attributes[{name!r}]: {error}", field=f"attributes[{name!r}]") from error


def build_overrides(settings: JobSettings) -> Overrides | None:
    """Return the job's own limits, if it has any."""
    if not any(name in settings for name in _OWN_LIMITS):
        return None
    return Overrides(
        timeout=check_duration_limit("timeout", settings.get("timeout", UNSET)),
        max_retries=check_count_limit("max_retries", settings.get("max_retries", UNSET)),
        max_timeouts=check_count_limit("max_timeouts", settings.get("max_timeouts", UNSET)),
        max_stalls=check_count_limit("max_stalls", settings.get("max_stalls", UNSET)),
        backoff=settings.get("backoff", UNSET),
        lease=check_duration_limit("lease", settings["lease"]) or UNSET if "lease" in settings else UNSET,
    )


def check_duration_limit(name: str, value: Seconds | UnsetType | None) -> int | UnsetType | None:
    """Return a length of time that must be more than nothing, as ms."""
    if value is None or value is UNSET:
        return value
    ms = duration_ms(name, value)
    if ms <= 0:
        raise Refused(f"{name} is {value}; it must be more than 0 seconds, or None for no limit", field=name)
    return ms


def check_count_limit(name: str, value: int | UnsetType | None) -> int | UnsetType | None:
    """Return a number of comebacks, after a look at it."""
    if value is None or value is UNSET:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused(
            f"{name} is {value!r}; it must be a whole number from 0, or None for no limit", field=name
        )
    return value
