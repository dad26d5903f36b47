"""A job queue for Python. Every public name is imported from here: `from dibs import Dibs, Retry`."""

from typing import TYPE_CHECKING

from dibs.app import Dibs
from dibs.client.calls.bound_job import Bound
from dibs.client.calls.bulk import current_jobs
from dibs.client.calls.current_job import CurrentJob, current_job
from dibs.client.calls.failure import Failure
from dibs.client.calls.handler import Ending
from dibs.client.calls.handler_registry import HandlerSettings, TaskSettings
from dibs.client.claim import Claim
from dibs.client.feed import Event, Feed
from dibs.client.listing import Listing
from dibs.client.options.arguments import content_id
from dibs.client.options.job_settings import CallSettings, JobSettings, Retention
from dibs.client.options.queue_settings import QueueSettings, Rate
from dibs.client.options.serde import EncryptedSerde, JsonSerde, MessagePackSerde, Serde, SignedSerde
from dibs.client.output import Chunk
from dibs.client.queue import Queue
from dibs.client.receiver import Receiver
from dibs.client.schedules import Schedules, ScheduleStatus
from dibs.client.status import SignalWait, Status
from dibs.client.task import AsyncTask, Task, TaskEnqueuer
from dibs.client.ticket import Ticket
from dibs.client.work_report import QueueReport, WorkReport
from dibs.client.worker_info import WorkerInfo, WorkerRun
from dibs.errors import (
    BadHandler,
    BatchClosed,
    BatchRefused,
    BulkFailed,
    ConfigurationError,
    DibsError,
    DuplicateHandler,
    JobAbsent,
    JobCancelled,
    JobDropped,
    JobEnded,
    JobFailed,
    LeaseLost,
    NoStorage,
    NotRunning,
    OutcomeNotKept,
    OutcomeUnknown,
    PermanentError,
    QueueFull,
    Refused,
    Retry,
    SignalTimeout,
    Snooze,
    StorageBusy,
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
from dibs.model.requests import EnqueueRequest, Reject, Update
from dibs.model.results import Counts, PruneResult
from dibs.model.retry import Exponential, Fixed, Immediate
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.version import VERSION as __version__  # noqa: F401, N811 - the name that tools look for

if TYPE_CHECKING:
    from dibs.client.sync.app import BlockingDibs
    from dibs.client.sync.claim import BlockingClaim, BlockingFeed, BlockingReceiver
    from dibs.client.sync.flow import (
        BlockingBatch,
        BlockingChain,
        BlockingFlow,
        BlockingStoredBatch,
        BlockingStoredFlow,
    )
    from dibs.client.sync.queue import BlockingListing, BlockingQueue, BlockingSchedules, BlockingTicket
    from dibs.client.sync.task import BlockingTask, BlockingTaskEnqueuer
    from dibs.flow.batch.batch import Batch
    from dibs.flow.batch.plan import BatchSummary
    from dibs.flow.batch.stored_batch import MemberResult, StoredBatch
    from dibs.flow.builder import Chain, Flow
    from dibs.flow.context import Node
    from dibs.flow.stored_flow import FlowStatus, NodeStatus, StoredFlow
else:
    # Python calls this function for a name that is not defined above. It imports a blocking class, or a class
    # of flows, at the first use, so that other programs never load these modules.
    from dibs.client.sync import __getattr__ as __getattr__

__all__ = [
    "AsyncTask",
    "BadHandler",
    "Batch",
    "BatchClosed",
    "BatchRefused",
    "BatchSummary",
    "BlockingBatch",
    "BlockingChain",
    "BlockingClaim",
    "BlockingDibs",
    "BlockingFeed",
    "BlockingFlow",
    "BlockingListing",
    "BlockingQueue",
    "BlockingReceiver",
    "BlockingSchedules",
    "BlockingStoredBatch",
    "BlockingStoredFlow",
    "BlockingTask",
    "BlockingTaskEnqueuer",
    "BlockingTicket",
    "Bound",
    "BulkFailed",
    "CallSettings",
    "Chain",
    "Chunk",
    "Claim",
    "ConfigurationError",
    "Counts",
    "CurrentJob",
    "Dibs",
    "DibsError",
    "DuplicateHandler",
    "EncryptedSerde",
    "Ending",
    "EnqueueRequest",
    "Error",
    "Event",
    "Exponential",
    "Failure",
    "Feed",
    "Fixed",
    "Flow",
    "FlowStatus",
    "HandlerSettings",
    "Immediate",
    "JobAbsent",
    "JobCancelled",
    "JobDropped",
    "JobEnded",
    "JobFailed",
    "JobSettings",
    "JsonSerde",
    "LeaseLost",
    "Listing",
    "MemberResult",
    "MessagePackSerde",
    "NoStorage",
    "Node",
    "NodeStatus",
    "NotRunning",
    "OutcomeNotKept",
    "OutcomeUnknown",
    "PermanentError",
    "PruneResult",
    "Queue",
    "QueueFull",
    "QueueReport",
    "QueueSettings",
    "Rate",
    "Receiver",
    "Refused",
    "Reject",
    "Retention",
    "Retry",
    "ScheduleStatus",
    "Schedules",
    "Serde",
    "SignalTimeout",
    "SignalWait",
    "SignedSerde",
    "Snooze",
    "Status",
    "Storage",
    "StorageBusy",
    "StorageDamaged",
    "StorageError",
    "StorageFull",
    "StorageReadOnly",
    "StorageTooNew",
    "StorageUnavailable",
    "StoredBatch",
    "StoredFlow",
    "Task",
    "TaskEnqueuer",
    "TaskSettings",
    "Ticket",
    "UnknownOption",
    "UnknownScheme",
    "UnknownTask",
    "Update",
    "WaitTimeout",
    "WorkReport",
    "WorkerInfo",
    "WorkerRun",
    "content_id",
    "current_job",
    "current_jobs",
    "open_storage",
]
