"""The public names of dibs; nothing is defined here."""

from dibs.client.app import Dibs
from dibs.client.calls.bound_job import Bound
from dibs.client.calls.current_job import CurrentJob, current_job
from dibs.client.calls.failure import Failure
from dibs.client.calls.handler import Ending
from dibs.client.claim import Claim
from dibs.client.feed import Event
from dibs.client.options.ids import content_id
from dibs.client.options.retention import Retention
from dibs.client.options.serde import JsonSerde, MessagePackSerde, Serde
from dibs.client.queue import Queue
from dibs.client.status import Status
from dibs.client.task import Task
from dibs.client.ticket import Ticket
from dibs.errors import (
    BadHandler,
    BatchRefused,
    ConfigurationError,
    DibsError,
    DuplicateHandler,
    JobCancelled,
    JobEnded,
    JobFailed,
    LeaseLost,
    NoStorage,
    NotRunning,
    OutcomeNotKept,
    OutcomeUnknown,
    PermanentError,
    Refused,
    Retry,
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
    UnknownOption,
    UnknownScheme,
    UnknownTask,
    WaitTimeout,
)
from dibs.model.job import Error
from dibs.model.requests import Reject, Update
from dibs.model.results import Counts
from dibs.model.retry import Exponential, Fixed, Immediate
from dibs.storage.registry import open_storage

__all__ = [
    "BadHandler",
    "BatchRefused",
    "Bound",
    "Claim",
    "ConfigurationError",
    "Counts",
    "CurrentJob",
    "Dibs",
    "DibsError",
    "DuplicateHandler",
    "Ending",
    "Error",
    "Event",
    "Exponential",
    "Failure",
    "Fixed",
    "Immediate",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JsonSerde",
    "LeaseLost",
    "MessagePackSerde",
    "NoStorage",
    "NotRunning",
    "OutcomeNotKept",
    "OutcomeUnknown",
    "PermanentError",
    "Queue",
    "Refused",
    "Reject",
    "Retention",
    "Retry",
    "Serde",
    "Status",
    "StorageDamaged",
    "StorageError",
    "StorageFull",
    "StorageReadOnly",
    "StorageTooNew",
    "StorageUnavailable",
    "Task",
    "Ticket",
    "UnknownOption",
    "UnknownScheme",
    "UnknownTask",
    "Update",
    "WaitTimeout",
    "content_id",
    "current_job",
    "open_storage",
]
