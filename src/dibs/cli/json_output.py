"""Conversion of jobs, counts, settings and events to the JSON of `--json`.

A test compares the fields with docs/reference/cli.md.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from dibs.model.events import LogEvent
from dibs.model.job import (
    ActiveRun,
    Error,
    Job,
    JobData,
    Origin,
    Outcome,
    OutcomeRetention,
    Slot,
    Successor,
)
from dibs.model.overrides import readable
from dibs.model.requests import Settings, StartRate
from dibs.model.results import Counts


def format_time(ms: int | None) -> str | None:
    """Return a time in ms since the epoch as ISO 8601 text in UTC, with milliseconds."""
    if ms is None:
        return None
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        # A job may be scheduled after the year 9999, the last one of `datetime`.
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def decode_stored(raw: bytes | None) -> dict[str, Any]:
    """Return stored bytes as {"value": ..., "encoding": "json"}, or as base64 text if they are not JSON."""
    if raw is None:
        return {"value": None, "encoding": None}
    try:
        return {"value": msgspec.json.decode(raw), "encoding": "json"}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"value": base64.b64encode(raw).decode(), "encoding": "base64"}


def encode_json_text(value: Any) -> str:
    """Return a value as JSON text on one line, for tables and lines that people read."""
    return msgspec.json.encode(value).decode()


def data_fields(value: JobData) -> dict[str, Any]:
    """Return the data of a job: payload, attributes, priority, key, overrides and retention."""
    return {
        "payload": decode_stored(value.payload),
        "attributes": attribute_fields(value.attributes),
        "priority": value.priority,
        "key": value.key,
        "overrides": msgspec.to_builtins(readable(value.overrides, format_time)),
        "retention": retention_fields(value.retention),
    }


def attribute_fields(attributes: Mapping[str, bytes]) -> dict[str, Any]:
    """Return attributes, decoded from JSON."""
    return {name: decode_stored(raw)["value"] for name, raw in attributes.items()}


def retention_fields(value: OutcomeRetention | None) -> dict[str, Any]:
    """Return how long outcomes are kept, in seconds. None is for ever; kinds without a setting are absent."""
    if value is None:
        return {}
    ages = {kind: getattr(value, kind) for kind in ("completed", "failed", "cancelled")}
    found: dict[str, Any] = {kind: _to_seconds(age) for kind, age in ages.items() if age is not UNSET}
    if value.keep_payload is not UNSET:
        found["keep_payload"] = list(value.keep_payload)
    return found


def _to_seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def error_fields(value: Error | None) -> dict[str, Any] | None:
    """Return an error and, nested in `cause`, the chain of errors that caused it."""
    if value is None:
        return None
    return {
        "type": value.type,
        "kind": value.kind,
        "message": value.message,
        "traceback": value.traceback,
        "cause": error_fields(value.cause),
    }


def origin_fields(value: Origin | None) -> dict[str, Any] | None:
    """Return the failed job that a job of a failure handler is about; None for other jobs."""
    if value is None:
        return None
    fields: dict[str, Any] = {name: getattr(value, name) for name in value.__struct_fields__}
    return fields | {
        "enqueued_at": format_time(value.enqueued_at),
        "error": error_fields(value.error),
        "run_at": format_time(value.run_at),
        "attributes": attribute_fields(value.attributes),
    }


def run_fields(value: ActiveRun | None) -> dict[str, Any] | None:
    """Return the run of an active job; None for a waiting job."""
    if value is None:
        return None
    return {
        "fence": value.fence,
        "handed_off": value.lease is None,
        "holder": value.holder,
        "claimed_at": format_time(value.claimed_at),
        "progress": decode_stored(value.progress)["value"],
        "cancel_requested": value.cancel_requested,
    }


def counter_fields(value: Job | Outcome) -> dict[str, int]:
    """Return how often a job was claimed, retried, stalled and timed out."""
    return {
        "attempts": value.attempts,
        "retries": value.retries,
        "stalls": value.stalls,
        "timeouts": value.timeouts,
    }


def successor_due(value: Successor) -> str | None:
    """Return the time at which a successor is due; None if the successor makes no job."""
    return format_time(value.run_at) if value.creates else None


def schedule_fields(value: Job | Successor) -> dict[str, Any]:
    """Return when a job was enqueued and when it is due, and the enqueues that it contains.

    An enqueue of an id whose job waits does not add a job: it updates that job. `seq` orders jobs
    of equal priority and time.
    """
    return {
        "run_at": successor_due(value) if isinstance(value, Successor) else format_time(value.run_at),
        "enqueued_at": format_time(value.enqueued_at),
        "seq": value.seq,
        "revisions": [value.first, value.revision],
        "enqueues": value.enqueues,
    }


def job_fields(value: Job) -> dict[str, Any]:
    """Return the current job of an id, which waits or runs."""
    return {
        "state": "active" if value.run else "waiting",
        **data_fields(value.data),
        **schedule_fields(value),
        **counter_fields(value),
        "error": error_fields(value.error),
        "origin": origin_fields(value.origin),
        "run": run_fields(value.run),
    }


def successor_fields(value: Successor) -> dict[str, Any]:
    """Return the successor of an active job: a job with the same id that is blocked until that job ends."""
    return {"state": "blocked", **data_fields(value.data), **schedule_fields(value)}


def outcome_fields(value: Outcome) -> dict[str, Any]:
    """Return the outcome of the last job of an id that ended."""
    return {
        "kind": value.kind,
        "result": decode_stored(value.result),
        "error": error_fields(value.error),
        "fence": value.fence,
        "revisions": [value.first, value.revision],
        "enqueues": value.enqueues,
        "enqueued_at": format_time(value.enqueued_at),
        "run_at": format_time(value.run_at),
        "claimed_at": format_time(value.claimed_at),
        "ended_at": format_time(value.ended_at),
        "expires_at": format_time(value.expires_at),
        "holder": value.holder,
        "progress": decode_stored(value.progress)["value"],
        **counter_fields(value),
        "attributes": attribute_fields(value.kept_attributes),
        "data": None if value.data is None else data_fields(value.data),
        "origin": origin_fields(value.origin),
    }


def slot_fields(queue: str, id: str, value: Slot) -> dict[str, Any]:
    """Return everything stored for one id: current job, blocked successor, outcome, dropped revisions."""
    return {
        "queue": queue,
        "id": id,
        "state": slot_state(value),
        "current": None if value.current is None else job_fields(value.current),
        "successor": None if value.successor is None else successor_fields(value.successor),
        "outcome": None if value.outcome is None else outcome_fields(value.outcome),
        "dropped": [list(pair) for pair in value.dropped],
    }


def slot_state(value: Slot) -> str:
    """Return the state of an id: that of its job, else the kind of its kept outcome, else "nothing".

    A job is "waiting", "parked", "active" or "active+blocked".
    """
    if value.current is None:
        return "nothing" if value.outcome is None else value.outcome.kind
    if value.current.run is None:
        return "parked" if value.current.is_parked else "waiting"
    return "active" if value.successor is None else "active+blocked"


def count_fields(value: Counts) -> dict[str, Any]:
    """Return the number of jobs in each state. `approximate` marks estimates, used above 10,000."""
    return {name: getattr(value, name) for name in value.__struct_fields__}


def settings_fields(value: Settings) -> dict[str, Any]:
    """Return the settings of a queue, with ages in seconds."""
    return {
        "paused": value.paused,
        "max_active": value.max_active,
        "retention": retention_fields(value.retention),
        "log_level": value.log_level,
        "log_age": _to_seconds(value.log_age),
        "log_bytes": value.log_bytes,
        "log_results": value.log_results,
        "request_key_age": _to_seconds(value.request_key_age),
        "fail_handler": value.fail_handler,
        "per_key": value.per_key,
        "rate": rate_fields(value.rate),
        "key_rate": rate_fields(value.key_rate),
        "max_waiting": value.max_waiting,
        "when_full": value.when_full,
        "fair": value.fair,
        "shares": dict(value.shares),
    }


def rate_fields(value: StartRate | None) -> dict[str, Any] | None:
    """Return a limit on how often runs start, with its period in seconds; None for no limit."""
    return None if value is None else {"starts": value.starts, "per": value.per / 1000, "burst": value.burst}


def event_fields(queue: str, offset: str, value: LogEvent) -> dict[str, Any]:
    """Return one event of a queue's log; `revisions` are the first and last enqueue that it is about."""
    return {
        "queue": queue,
        "offset": offset,
        "kind": value.kind,
        "id": value.id,
        "at": format_time(value.at),
        "attempt": value.attempt,
        "fence": value.fence,
        "enqueued_at": format_time(value.enqueued_at or None),
        "run_at": format_time(value.run_at or None),
        "claimed_at": format_time(value.claimed_at),
        "finished_at": format_time(value.finished_at),
        "holder": value.holder,
        "revisions": [value.first, value.revision],
        "enqueues": value.enqueues,
        "error": error_fields(value.error),
        "result": decode_stored(value.result),
    }


def counts_by_queue(values: Mapping[str, Counts]) -> dict[str, Any]:
    """Return the output of `dibs counts --json`: the counts of each queue, by its name."""
    return {"queues": {name: count_fields(value) for name, value in values.items()}}
