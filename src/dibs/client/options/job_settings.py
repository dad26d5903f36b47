"""The settings of a job as people write them, and the request they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from msgspec import UNSET, UnsetType

from dibs.client.options.durations import Seconds, epoch_ms, ms_of
from dibs.client.options.ids import new_id
from dibs.client.options.retention import Retention, retention_of
from dibs.client.options.serde import JSON
from dibs.errors import Refused
from dibs.model.job import NO_ATTRIBUTES, Data, NewJob, Overrides
from dibs.model.requests import DEFAULT_UPDATE, OnConflict, Request
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


class RunSettings(JobSettings, total=False):
    """The same, and what is about the call and not the job."""

    #: How long `run` waits for the result, in seconds; None waits until the job ends.
    wait: Seconds | None
    #: Enqueue in the transaction of this connection: psycopg's, or SQLAlchemy's.
    connection: Any


JOB_SETTINGS: Final = frozenset(JobSettings.__annotations__)
RUN_SETTINGS: Final = frozenset(RunSettings.__annotations__)
_OWN_LIMITS: Final = ("timeout", "max_retries", "max_timeouts", "max_stalls", "backoff", "lease")


def check_known(given: Iterable[str], known: frozenset[str]) -> None:
    """Refuse a setting that does not exist; a type checker says so earlier."""
    for name in given:
        if name not in known:
            raise Refused(f"there is no setting {name!r}; there are {', '.join(sorted(known))}", field=name)


def request_of(payload: bytes, settings: JobSettings, *, want_outcome: bool = False) -> Request:
    """Return the request that payload and settings make. Raises Refused."""
    if not settings:
        data = Data(payload=payload, attributes=NO_ATTRIBUTES)
        return Request(job=NewJob(id=new_id(), data=data), want_outcome=want_outcome)
    job = NewJob(
        id=settings.get("id") or _generated(settings), data=data_of(payload, settings), **when(settings)
    )
    return Request(
        job=job,
        on_conflict=settings.get("on_conflict", DEFAULT_UPDATE),
        request_key=settings.get("request_key"),
        want_outcome=want_outcome,
    )


def _generated(settings: JobSettings) -> str:
    if settings.get("id") is not None:
        raise Refused("id is empty; leave it out to have one generated", field="id")
    return new_id()


def when(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return run_at or delay as the contract has them. Raises Refused for both."""
    delay, run_at = settings.get("delay"), settings.get("run_at")
    if delay is not None and run_at is not None:
        raise Refused("delay and run_at exclude each other: give one", field="run_at")
    if run_at is not None:
        return {"run_at": epoch_ms("run_at", run_at)}
    return {} if delay is None else {"delay": ms_of("delay", delay)}


def data_of(payload: bytes, settings: JobSettings) -> Data:
    """Return what an Update replaces as one."""
    retention = settings.get("retention", UNSET)
    return Data(
        payload=payload,
        attributes=attributes_of(settings.get("attributes")),
        priority=settings.get("priority", 0),
        overrides=overrides_of(settings),
        retention=None if retention is UNSET else retention_of(retention),
    )


def attributes_of(attributes: Mapping[str, Any] | None) -> Mapping[str, bytes]:
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


def overrides_of(settings: JobSettings) -> Overrides | None:
    """Return the job's own limits, if it has any."""
    if not any(name in settings for name in _OWN_LIMITS):
        return None
    return Overrides(
        timeout=limit_ms("timeout", settings.get("timeout", UNSET)),
        max_retries=limit("max_retries", settings.get("max_retries", UNSET)),
        max_timeouts=limit("max_timeouts", settings.get("max_timeouts", UNSET)),
        max_stalls=limit("max_stalls", settings.get("max_stalls", UNSET)),
        backoff=settings.get("backoff", UNSET),
        lease=limit_ms("lease", settings["lease"]) or UNSET if "lease" in settings else UNSET,
    )


def limit_ms(name: str, value: Seconds | UnsetType | None) -> int | UnsetType | None:
    """Return a length of time that must be more than nothing, as ms."""
    if value is None or value is UNSET:
        return value
    ms = ms_of(name, value)
    if ms <= 0:
        raise Refused(f"{name} is {value}; it must be more than 0 seconds, or None for no limit", field=name)
    return ms


def limit(name: str, value: int | UnsetType | None) -> int | UnsetType | None:
    """Return a number of comebacks, after a look at it."""
    if value is None or value is UNSET:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused(
            f"{name} is {value!r}; it must be a whole number from 0, or None for no limit", field=name
        )
    return value
