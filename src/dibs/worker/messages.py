"""What a supervisor and a worker say to each other; in one process as values, between two as MessagePack.

Nothing of the user's crosses here but ids and texts: handlers are found by import, payloads are claimed.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from dibs.model.job import Job, Overrides
from dibs.model.run_outcome import Verdict

# -- from a worker -----------------------------------------------------------------------------------


class ProcessReady(Struct, frozen=True, gc=False, array_like=True, tag="ready"):
    """Its handlers are found, its resources are there: it can claim."""

    pid: int


class ClaimedRun(Struct, frozen=True, gc=False, array_like=True):
    """One run in a worker's hands."""

    #: Its place among the flags that say what was started.
    place: int
    id: str
    fence: int
    claimed_at: int
    #: The ms it may take once it has begun, None without limit.
    timeout: int | None
    #: What decides, beside its handler's limits, when it may come back if its process dies or is ended.
    stalls: int
    timeouts: int
    own: Overrides | None


class RunsClaimed(Struct, frozen=True, gc=False, array_like=True, tag="claimed"):
    """It holds these, and has not started them yet."""

    queue: str
    lease: str
    runs: tuple[ClaimedRun, ...]


class RunsSettled(Struct, frozen=True, gc=False, array_like=True, tag="ended"):
    """It holds these no longer: for each word of WorkReport, the places of the runs that came to it."""

    queue: str
    ends: dict[str, list[int]]


class LeaseAdopted(Struct, frozen=True, gc=False, array_like=True, tag="leased"):
    """It claims under this lease now, and no claim under an older one is on its way."""

    lease: str


class ClaimReplyLost(Struct, frozen=True, gc=False, array_like=True, tag="lost_track"):
    """The reply to a claim under this lease was lost (promise 7): it claims no more under it."""

    lease: str


class LeaseRejected(Struct, frozen=True, gc=False, array_like=True, tag="lost_lease"):
    """The storage says that this lease is over."""

    lease: str


class RunTimedOut(Struct, frozen=True, gc=False, array_like=True, tag="late"):
    """A run is over its time and was told to stop; it has so many seconds for that."""

    place: int
    fence: int
    seconds: float


class RunOverran(Struct, frozen=True, gc=False, array_like=True, tag="overran"):
    """A handler does not stop, though its time is over: let this worker finish its other runs, and go."""

    queue: str
    id: str
    fence: int
    place: int


class WorkerDrained(Struct, frozen=True, gc=False, array_like=True, tag="drained"):
    """It was asked to stop, and holds nothing any more but what overran; after StopWorker, what is on threads."""


class StartFailed(Struct, frozen=True, gc=False, array_like=True, tag="broken"):
    """It cannot work at all, and why."""

    why: str


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

# -- to a worker -------------------------------------------------------------------------------------


class UseLease(Struct, frozen=True, gc=False, array_like=True, tag="lease"):
    """Claim under this lease from now on."""

    lease: str


class CancelRuns(Struct, frozen=True, gc=False, array_like=True, tag="cancel"):
    """Somebody asked for these runs to stop: (queue, id, fence)."""

    runs: tuple[tuple[str, str, int], ...]


class DrainWorker(Struct, frozen=True, gc=False, array_like=True, tag="drain"):
    """Claim no more, finish what you hold, then say Drained."""


class StopWorker(Struct, frozen=True, gc=False, array_like=True, tag="stop"):
    """The same, but interrupt what can be interrupted and release it."""


ToWorker = UseLease | CancelRuns | DrainWorker | StopWorker

# -- between a worker and a process that runs one job at a time ---------------------------------------


class RunJob(Struct, frozen=True, gc=False, array_like=True, tag="perform"):
    """Run this job; it has so many seconds."""

    queue: str
    job: Job
    seconds: float | None


class ReportProgress(Struct, frozen=True, gc=False, array_like=True, tag="progress"):
    """Report progress for the job it runs, and say whether that was kept."""

    queue: str
    id: str
    fence: int
    value: bytes


class ProgressReported(Struct, frozen=True, gc=False, array_like=True, tag="reported"):
    """What the storage said to the progress; empty when it could not be asked."""

    status: str


class CancelRun(Struct, frozen=True, gc=False, array_like=True, tag="cancel_this"):
    """Somebody asked for the run to stop."""


class RunFinished(Struct, frozen=True, gc=False, array_like=True, tag="performed"):
    """What came of it."""

    verdict: Verdict


FromIsolated = ProcessReady | StartFailed | ReportProgress | RunFinished
ToIsolated = RunJob | ProgressReported | CancelRun

_encoder: Final = msgspec.msgpack.Encoder()
encode: Final = _encoder.encode
decode_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker: Final = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_isolated: Final = msgspec.msgpack.Decoder(FromIsolated).decode
decode_to_isolated: Final = msgspec.msgpack.Decoder(ToIsolated).decode
