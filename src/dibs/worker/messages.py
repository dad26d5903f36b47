"""Messages between processes: supervisor and worker, worker and isolated process.

Within one process they are passed as objects, between two as MessagePack. Payloads and results of handlers
travel only in RunJob and RunFinished, between a worker and its isolated process.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from dibs.model.job import Job, Overrides
from dibs.model.run_outcome import Verdict

# -- from a worker to its supervisor -----------------------------------------------------------------


class ProcessReady(Struct, frozen=True, gc=False, array_like=True, tag="ready"):
    """The application is imported and its lifespan entered: the process can take jobs."""

    pid: int


class ClaimedRun(Struct, frozen=True, gc=False, array_like=True):
    """One claimed run, with the data that settles it if its process dies."""

    #: The index of the run in the `started` array of its process.
    index: int
    id: str
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
    """The worker has claimed these runs; it sends this before it starts the first of them."""

    queue: str
    lease: str
    runs: tuple[ClaimedRun, ...]


class RunsSettled(Struct, frozen=True, gc=False, array_like=True, tag="ended"):
    """The worker no longer holds these runs: for each counter of QueueReport, the indexes of its runs."""

    queue: str
    indexes_by_counter: dict[str, list[int]]


class LeaseAdopted(Struct, frozen=True, gc=False, array_like=True, tag="leased"):
    """The worker claims under this lease now, and no claim under an older lease is in flight."""

    lease: str


class ClaimReplyLost(Struct, frozen=True, gc=False, array_like=True, tag="lost_track"):
    """The reply to a claim under this lease was lost (promise 7), so the worker claims no more under it."""

    lease: str


class LeaseRejected(Struct, frozen=True, gc=False, array_like=True, tag="lost_lease"):
    """The storage refused a claim because this lease has ended."""

    lease: str


class RunTimedOut(Struct, frozen=True, gc=False, array_like=True, tag="late"):
    """The timeout of a run is over. The worker has cancelled the run; it has `seconds` to stop."""

    index: int
    fence: int
    seconds: float


class RunOverran(Struct, frozen=True, gc=False, array_like=True, tag="overran"):
    """A handler still runs after its timeout: the worker must finish its other runs and end."""

    queue: str
    id: str
    fence: int
    index: int


class WorkerDrained(Struct, frozen=True, gc=False, array_like=True, tag="drained"):
    """The worker holds no run, except runs that overran and, after StopWorker, runs on threads."""


class StartFailed(Struct, frozen=True, gc=False, array_like=True, tag="broken"):
    """The process cannot work, for this reason."""

    reason: str


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
    | StartFailed
)

# -- from a supervisor to its worker -----------------------------------------------------------------


class UseLease(Struct, frozen=True, gc=False, array_like=True, tag="lease"):
    """Claim under this lease from now on."""

    lease: str


class CancelRuns(Struct, frozen=True, gc=False, array_like=True, tag="cancel"):
    """Cancel these runs: (queue, id, fence)."""

    runs: tuple[tuple[str, str, int], ...]


class DrainWorker(Struct, frozen=True, gc=False, array_like=True, tag="drain"):
    """Claim no more, finish the runs you hold, then send WorkerDrained."""


class StopWorker(Struct, frozen=True, gc=False, array_like=True, tag="stop"):
    """Claim no more, interrupt and release the runs you hold, then send WorkerDrained."""


ToWorker = UseLease | CancelRuns | DrainWorker | StopWorker

# -- between a worker and an isolated process --------------------------------------------------------


class RunJob(Struct, frozen=True, gc=False, array_like=True, tag="perform"):
    """Run this job; it may take `seconds`, None without limit."""

    queue: str
    job: Job
    seconds: float | None


class ReportProgress(Struct, frozen=True, gc=False, array_like=True, tag="progress"):
    """Report the progress of a run to the storage, and reply with ProgressReported."""

    queue: str
    id: str
    fence: int
    value: bytes


class ProgressReported(Struct, frozen=True, gc=False, array_like=True, tag="reported"):
    """The status that the storage returned for a report; empty if the storage was unavailable."""

    status: str


class CancelRun(Struct, frozen=True, gc=False, array_like=True, tag="cancel_this"):
    """Cancel the run that the isolated process runs now."""


class RunFinished(Struct, frozen=True, gc=False, array_like=True, tag="performed"):
    """The verdict on the run."""

    verdict: Verdict


FromIsolated = ProcessReady | StartFailed | ReportProgress | RunFinished
ToIsolated = RunJob | ProgressReported | CancelRun

_encoder: Final = msgspec.msgpack.Encoder()
encode: Final = _encoder.encode
decode_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker: Final = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_isolated: Final = msgspec.msgpack.Decoder(FromIsolated).decode
decode_to_isolated: Final = msgspec.msgpack.Decoder(ToIsolated).decode
