"""Messages between processes: supervisor and worker, worker and isolated process.

Messages within one process are objects; messages between two processes are MessagePack. Only RunJob and
RunFinished, between a worker and its isolated process, carry the payload and the result of a job.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from dibs.model.job import Job
from dibs.model.overrides import Overrides
from dibs.model.run_outcome import Verdict

# -- from a worker to its supervisor -----------------------------------------------------------------


class ProcessReady(Struct, frozen=True, gc=False, array_like=True, tag="ready"):
    """The process has imported the application and entered its lifespan: it can run jobs."""

    pid: int


class ClaimedRun(Struct, frozen=True, gc=False, array_like=True):
    """One claimed run, with the data by which the supervisor settles it if the process of the worker dies."""

    #: The index of the run in the shared array `started`, where its process writes the start time.
    index: int
    #: The id of the job.
    id: str
    #: The number of this claim; the storage accepts a settlement only with the fence of the latest claim.
    fence: int
    #: The time of the claim, in ms by the clock of the storage.
    claimed_at: int
    #: Milliseconds the run may take after its handler has started; None without limit.
    timeout: int | None
    #: The number of stalls of the job so far.
    stalls: int
    #: The number of timeouts of the job so far.
    timeouts: int
    #: The limits of the job that replace those of its handler.
    overrides: Overrides | None


class RunsClaimed(Struct, frozen=True, gc=False, array_like=True, tag="claimed"):
    """The worker has claimed these runs. It sends this message before it starts the first of them."""

    queue: str
    lease: str
    runs: tuple[ClaimedRun, ...]


class RunsSettled(Struct, frozen=True, gc=False, array_like=True, tag="ended"):
    """The worker has settled these runs, or lost them.

    `indexes_by_counter` groups the indexes of the runs by the counter of QueueReport that each run adds to,
    such as "completed".
    """

    queue: str
    indexes_by_counter: dict[str, list[int]]


class LeaseAdopted(Struct, frozen=True, gc=False, array_like=True, tag="leased"):
    """The worker now claims under this lease, and its claims under older leases have returned."""

    lease: str


class ClaimReplyLost(Struct, frozen=True, gc=False, array_like=True, tag="lost_track"):
    """The reply to a claim under this lease was lost.

    The storage may have claimed jobs that the worker does not know. The worker sends no more claims under
    this lease; the jobs return to their queue when the supervisor drops it.
    """

    lease: str


class LeaseRejected(Struct, frozen=True, gc=False, array_like=True, tag="lost_lease"):
    """The storage refused a claim because this lease has ended."""

    lease: str


class RunTimedOut(Struct, frozen=True, gc=False, array_like=True, tag="late"):
    """A run has exceeded its timeout. The worker has cancelled the handler, which has `seconds` to stop."""

    index: int
    fence: int
    seconds: float


class RunOverran(Struct, frozen=True, gc=False, array_like=True, tag="overran"):
    """A handler still runs after its timeout. Only the exit of the process can stop it.

    The worker must finish its other runs and exit.
    """

    queue: str
    id: str
    fence: int
    index: int


class WorkerDrained(Struct, frozen=True, gc=False, array_like=True, tag="drained"):
    """The worker holds no more runs that it can stop.

    Runs that overran may still run, and after StopWorker also runs on threads.
    """


class WorkerSpent(Struct, frozen=True, gc=False, array_like=True, tag="spent"):
    """The worker has reached a limit of its process: it claims no more, and needs a replacement."""

    #: The reason, as a predicate: "has made 1,000 runs, as max_runs says".
    reason: str
    #: True if the reason is no sign of a fault.
    planned: bool


class StartFailed(Struct, frozen=True, gc=False, array_like=True, tag="broken"):
    """The process cannot run jobs, for example because it could not import the application."""

    reason: str
    #: True if a new process may succeed, because the storage was unavailable.
    passing: bool = False


FromWorker = (
    ProcessReady
    | RunsClaimed
    | RunsSettled
    | LeaseAdopted
    | ClaimReplyLost
    | LeaseRejected
    | RunTimedOut
    | RunOverran
    | WorkerDrained
    | WorkerSpent
    | StartFailed
)

# -- from a supervisor to its worker -----------------------------------------------------------------


class UseLease(Struct, frozen=True, gc=False, array_like=True, tag="lease"):
    """Send all further claims under this lease."""

    lease: str


class CancelRuns(Struct, frozen=True, gc=False, array_like=True, tag="cancel"):
    """Cancel these runs, given as (queue, id, fence)."""

    runs: tuple[tuple[str, str, int], ...]


class DrainWorker(Struct, frozen=True, gc=False, array_like=True, tag="drain"):
    """Send no more claims, finish all runs, then reply with WorkerDrained."""


class StopWorker(Struct, frozen=True, gc=False, array_like=True, tag="stop"):
    """Send no more claims, interrupt and release all runs, then reply with WorkerDrained."""


ToWorker = UseLease | CancelRuns | DrainWorker | StopWorker

# -- between a worker and an isolated process --------------------------------------------------------


class RunJob(Struct, frozen=True, gc=False, array_like=True, tag="perform"):
    """Run this job. Its handler may take `seconds`; None means no timeout."""

    queue: str
    job: Job
    seconds: float | None


class SendReport(Struct, frozen=True, gc=False, array_like=True, tag="progress"):
    """Report the progress, the memo or output of a run to the storage, and reply with ReportAnswered."""

    #: The number of the report in its process. Replies may come in another order than the reports.
    number: int
    queue: str
    id: str
    fence: int
    progress: bytes | None
    memo: bytes | None
    output: tuple[bytes, ...] = ()


class ReportAnswered(Struct, frozen=True, gc=False, array_like=True, tag="reported"):
    """The status that the storage returned for a report; empty if the storage was unavailable."""

    number: int
    status: str


class CancelRun(Struct, frozen=True, gc=False, array_like=True, tag="cancel_this"):
    """Cancel the run that the isolated process runs now."""


class RunEntered(Struct, frozen=True, gc=False, array_like=True, tag="entered"):
    """The handler begins now. Until this message, the death of the process costs the job nothing."""


class RunWaits(Struct, frozen=True, gc=False, array_like=True, tag="waits"):
    """The handler has this number of waits for the ends of other jobs."""

    number: int


class RunSpent(Struct, frozen=True, gc=False, array_like=True, tag="spent"):
    """The handler has spent this amount, in all its calls of `CurrentJob.spent`."""

    amount: int


class RunFinished(Struct, frozen=True, gc=False, array_like=True, tag="performed"):
    """The handler has ended. The verdict holds its result or its error."""

    verdict: Verdict


class ExitIsolated(Struct, frozen=True, gc=False, array_like=True, tag="exit"):
    """Leave the lifespan of the application and exit. Sent only while no run is in the process."""


FromIsolated = ProcessReady | StartFailed | RunEntered | RunWaits | RunSpent | SendReport | RunFinished
ToIsolated = RunJob | ReportAnswered | CancelRun | ExitIsolated

_encoder: Final = msgspec.msgpack.Encoder()
encode: Final = _encoder.encode
decode_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker: Final = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_isolated: Final = msgspec.msgpack.Decoder(FromIsolated).decode
decode_to_isolated: Final = msgspec.msgpack.Decoder(ToIsolated).decode
