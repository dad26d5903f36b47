"""The records that workers keep of themselves, and the queue that holds them.

A record is a completed outcome in the queue WORKERS_QUEUE: an outcome has an expiry, so the record of a dead
worker disappears by itself (docs/decisions/worker-records.md). The id is a random text, the result has
the parts that stay the same, and one attribute has the parts that change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from dibs.model.job import Outcome
from dibs.model.limits import LIMITS
from dibs.model.results import QueueInfo

#: The queue of the records. Nobody enqueues into it, and lists of queues leave it out.
WORKERS_QUEUE: Final = "dibs.workers"
#: The attribute of a record with the WorkerState.
STATE_ATTRIBUTE: Final = "state"
#: The longest encoded WorkerRecord, in bytes, with room for names of any kind beside the queues.
MOST_RECORD: Final = LIMITS.result - 65_536


class WorkerRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a record that stay the same. Times are in ms, and `started_at` since the epoch."""

    name: str
    host: str
    pid: int
    version: str
    python: str
    started_at: int
    #: The length of the lease, and the time from one refresh of the record to its expiry.
    lease: int
    ttl: int
    #: The names of the served queues; only the first ones if all of them are too long for a record.
    queues: tuple[str, ...] = ()
    queue_count: int = 0
    #: The settings that tasks declare for their queues, by queue and name, as plain values.
    settings: Mapping[str, Mapping[str, Any]] = {}


class WorkerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a record that each refresh writes."""

    #: The process ids of the worker processes; empty if the supervisor runs the jobs in its own process.
    processes: tuple[int, ...] = ()
    #: Capacity units of all processes, and those that the held runs take.
    capacity: int = 0
    busy: int = 0
    #: The number of runs that are held.
    running: int = 0
    ready: bool = False
    stopping: bool = False
    #: The ids of its leases, by which its runs are told from those of a worker with the same name.
    leases: tuple[str, ...] = ()


_record_decoder: Final = msgspec.json.Decoder(WorkerRecord)
_state_decoder: Final = msgspec.json.Decoder(WorkerState)


def encode_record(record: WorkerRecord) -> bytes:
    """Return the record as JSON. Beyond MOST_RECORD bytes leave out the settings and the last queues."""
    encoded = msgspec.json.encode(record)
    if len(encoded) <= MOST_RECORD:
        return encoded
    room, queues = MOST_RECORD - 4096, list[str]()
    for queue in record.queues:
        room -= len(msgspec.json.encode(queue)) + 1
        if room < 0:
            break
        queues.append(queue)
    return msgspec.json.encode(msgspec.structs.replace(record, queues=tuple(queues), settings={}))


def state_attributes(state: WorkerState) -> Mapping[str, bytes]:
    """Return the attributes of a record with this state."""
    return {STATE_ATTRIBUTE: msgspec.json.encode(state)}


def decode_record(outcome: Outcome) -> tuple[WorkerRecord, WorkerState] | None:
    """Return the parts of a record, or None for an outcome that is no record of this form."""
    try:
        record = _record_decoder.decode(outcome.result or b"")
        return record, _state_decoder.decode(outcome.kept_attributes.get(STATE_ATTRIBUTE, b"{}"))
    except msgspec.DecodeError:
        return None


def without_reserved(infos: Iterable[QueueInfo]) -> list[QueueInfo]:
    """Return the queues of a storage without WORKERS_QUEUE, for lists that people read."""
    return [info for info in infos if info.name != WORKERS_QUEUE]
