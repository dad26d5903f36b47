"""`Status`, which `queue.get`, `queue.list` and `ticket.status` return, and its construction from a slot.

A slot is everything that the storage keeps for one id: the current job, a blocked successor that runs after
an active job, and the outcome of the last job that ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dibs.client.calls.signals import current_wait
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.arguments import utc_datetime, utc_datetime_or_none
from dibs.client.options.job_settings import Retention
from dibs.model.job import Error, Job, JobData, Outcome, Slot, Successor
from dibs.model.limits import LATEST_TIME
from dibs.model.overrides import readable
from dibs.model.results import State
from dibs.model.rules import ticket_state

#: State of a job in a Status. `not_kept` is the state of an enqueue whose outcome has expired, `absent`
#: that of an `Update(create=False)` that found no live job, and `dropped` that of a job that a queue at its
#: `max_waiting` did not take.
JobState = Literal[
    "waiting",
    "parked",
    "active",
    "handed_off",
    "blocked",
    "completed",
    "failed",
    "cancelled",
    "not_kept",
    "absent",
    "dropped",
]


class SignalWait(Struct, frozen=True, kw_only=True):
    """The wait of a parked job for a signal."""

    name: str
    """Name of the signal that `queue.signal(id, name)` sends."""
    number: int
    """1 for the first wait of the job for this name."""
    until: datetime | None
    """Time of the SignalTimeout, in UTC; None for a wait without an end."""


class Status(Struct, frozen=True, kw_only=True):
    """The status of a job. Times are in UTC; a field that does not apply is None, 0 or empty."""

    queue: str
    """Name of the queue."""
    id: str
    """Id of the job."""
    state: JobState
    """State of the job; `parked` if its handler waits for a signal (in listings such a job is `waiting`);
    `not_kept` if the outcome of an enqueue has expired, `absent` for an
    `Update(create=False)` that found no live job, `dropped` for a job that a full queue did not take."""
    revision: int = 0
    """Number of the latest enqueue that this job contains: `ticket.revision` of that enqueue."""
    run_at: datetime | None = None
    """Time from which the job may start. A waiting job with a future time counts as `scheduled`."""
    enqueued_at: datetime | None = None
    """Time of the enqueue."""
    claimed_at: datetime | None = None
    """Time at which a worker claimed the latest run."""
    ended_at: datetime | None = None
    """Time at which the job ended."""
    expires_at: datetime | None = None
    """Time until which the outcome is kept; None for an outcome that is kept for ever."""
    enqueues: int = 0
    """Number of enqueues that this job contains: later ones may have updated it."""
    attempts: int = 0
    """Number of claims so far."""
    retries: int = 0
    """Number of times the job returned to the queue after an error."""
    stalls: int = 0
    """Number of times the job returned to the queue because its worker was gone."""
    timeouts: int = 0
    """Number of times the job returned to the queue after a timeout."""
    priority: int = 0
    """Priority, -1000 to 1000; a higher number starts first."""
    key: str | None = None
    """Key of the job, to which `per_key` and `key_rate` of its queue apply. None for a job without a key,
    and after the end of the job, unless the outcome keeps the data; see Retention.keep_payload."""
    attributes: Mapping[str, Any] = {}
    """Attributes of the job. They stay after its end, while its outcome is kept."""
    data: Any = None
    """Data of the job, decoded by the queue's serde; bytes if the serde cannot decode it.

    For a task {"args": [...], "kwargs": {...}}. None after the end of the job, unless the outcome keeps the
    data; see Retention.keep_payload."""
    result: Any = None
    """Result of a completed job, decoded by the queue's serde. `ticket.result()` also converts it to the
    return type of the task."""
    limits: Mapping[str, Any] = {}
    """Limits that the job itself sets, by the names of the settings of `enqueue`: `timeout` and `lease` in
    seconds, `max_retries`, `max_timeouts`, `max_stalls`, `backoff`; `start_by` as a datetime. Limits of
    the handler are absent."""
    retention: Retention | None = None
    """Retention that the job itself sets, in seconds; None for the retention of its queue."""
    lease: str = ""
    """Id of the lease that holds an active job; empty in other states and after a hand-off."""
    holder: str = ""
    """Name of the worker of the latest run."""
    fence: int = 0
    """Number of the latest run, which grows with each claim of the id."""
    progress: Any = None
    """Progress that the active run, or the run of a kept outcome, reported last; None for none."""
    cancel_requested: bool = False
    """True if the active run was asked to stop."""
    waits_for: SignalWait | None = None
    """The signal for which a parked job waits; None for every other job."""
    error: Error | None = None
    """Error of a failed job, reason of a cancelled one, or error of the latest run of a job that returned to
    the queue."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments of a task, without conversion to type hints; empty for other data."""
        return tuple(self.data["args"]) if _is_call(self.data) else ()

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of a task, without conversion to type hints; empty for other data."""
        return dict(self.data["kwargs"]) if _is_call(self.data) else {}


def _is_call(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and data.keys() == {"args", "kwargs"}
        and isinstance(data["args"], list)
        and isinstance(data["kwargs"], dict)
    )


def slot_status(client: QueueClient, id: str, slot: Slot) -> Status | None:
    """Return the status of the current job, else of the outcome; None for a slot without both."""
    if slot.current is not None:
        return _job_status(client, slot.current)
    return None if slot.outcome is None else _outcome_status(client, id, slot.outcome)


def listed_status(client: QueueClient, id: str, slot: Slot, state: State) -> Status:
    """Return the status of an id in a listing of `state`.

    The id may have an active job, a blocked successor and an outcome at the same time; `state` selects one.
    """
    if state == "blocked" and slot.successor is not None:
        return _successor_status(client, id, slot.successor)
    if state in ("completed", "failed", "cancelled") and slot.outcome is not None:
        return _outcome_status(client, id, slot.outcome)
    if slot.current is not None:
        return _job_status(client, slot.current)
    return Status(queue=client.name, id=id, state="not_kept")


def enqueue_status(client: QueueClient, id: str, slot: Slot, revision: int) -> Status:
    """Return the status of the enqueue with the number `revision` (contract 1, Done).

    It differs from the status of the id if the id was enqueued again after this enqueue had ended.
    """
    found = ticket_state(slot, revision)
    if found.outcome is not None:
        return _outcome_status(client, id, found.outcome)
    if found.kind != "pending":
        return Status(queue=client.name, id=id, state=found.kind, revision=revision)
    if slot.current is not None and revision <= slot.current.revision:
        return _job_status(client, slot.current)
    assert slot.successor is not None, "bug in dibs: neither job contains the pending revision"  # noqa: S101
    return _successor_status(client, id, slot.successor)


def _job_status(client: QueueClient, job: Job) -> Status:
    run = job.run
    return Status(
        queue=client.name,
        id=job.id,
        state="parked"
        if job.is_parked
        else "waiting"
        if run is None
        else "active"
        if run.lease is not None
        else "handed_off",
        revision=job.revision,
        run_at=utc_datetime(job.run_at),
        enqueued_at=utc_datetime(job.enqueued_at),
        claimed_at=utc_datetime(run.claimed_at) if run else None,
        enqueues=job.enqueues,
        attempts=job.attempts,
        retries=job.retries,
        stalls=job.stalls,
        timeouts=job.timeouts,
        lease=run.lease or "" if run else "",
        holder=run.holder if run else "",
        fence=run.fence if run else 0,
        progress=_decode_progress(run.progress if run else None),
        cancel_requested=bool(run and run.cancel_requested),
        waits_for=_signal_wait(job),
        error=job.error,
        **_data_fields(client, job.data),
    )


def _signal_wait(job: Job) -> SignalWait | None:
    wait = current_wait(job.data.memo) if job.is_parked else None
    if wait is None:
        return None
    until = utc_datetime(wait.until) if wait.until < LATEST_TIME else None
    return SignalWait(name=wait.name, number=wait.number, until=until)


def _successor_status(client: QueueClient, id: str, successor: Successor) -> Status:
    return Status(
        queue=client.name,
        id=id,
        state="blocked",
        revision=successor.revision,
        run_at=utc_datetime(successor.run_at) if successor.creates else None,
        enqueued_at=utc_datetime(successor.enqueued_at),
        enqueues=successor.enqueues,
        **_data_fields(client, successor.data if successor.creates else None),
    )


def _outcome_status(client: QueueClient, id: str, outcome: Outcome) -> Status:
    return Status(
        queue=client.name,
        id=id,
        state=outcome.kind,
        revision=outcome.revision,
        run_at=utc_datetime(outcome.run_at),
        enqueued_at=utc_datetime(outcome.enqueued_at),
        claimed_at=utc_datetime_or_none(outcome.claimed_at),
        ended_at=utc_datetime(outcome.ended_at),
        expires_at=utc_datetime_or_none(outcome.expires_at),
        enqueues=outcome.enqueues,
        attempts=outcome.attempts,
        retries=outcome.retries,
        stalls=outcome.stalls,
        timeouts=outcome.timeouts,
        holder=outcome.holder,
        fence=outcome.fence,
        progress=_decode_progress(outcome.progress),
        error=outcome.error,
        result=None if outcome.result is None else decode_or_raw(client, outcome.result),
        **{**_data_fields(client, outcome.data), "attributes": decode_attributes(outcome.kept_attributes)},
    )


def _decode_progress(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def _data_fields(client: QueueClient, data: JobData | None) -> dict[str, Any]:
    if data is None:
        return {}
    return {
        "data": decode_or_raw(client, data.payload),
        "attributes": decode_attributes(data.attributes),
        "priority": data.priority,
        "key": data.key,
        "limits": readable(data.overrides, utc_datetime),
        "retention": None if data.retention is None else Retention.from_model(data.retention),
    }


def decode_or_raw(client: QueueClient, raw: bytes) -> Any:
    """Return stored bytes, decoded by the serde of the queue, or unchanged if it cannot decode them."""
    try:
        return client.serde.decode(raw)
    except ValueError:
        return raw


def decode_attributes(attributes: Mapping[str, bytes]) -> dict[str, Any]:
    """Return attributes, decoded from JSON."""
    return {name: msgspec.json.decode(raw) for name, raw in attributes.items()}
