"""What a supervisor and a worker say to each other; in one process as values, between two as MessagePack.

Nothing of the user's crosses here but ids and texts: handlers are found by import, payloads are claimed.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from dibs.model.decide import Verdict
from dibs.model.job import Job, Overrides

# -- from a worker -----------------------------------------------------------------------------------


class Ready(Struct, frozen=True, gc=False, array_like=True, tag="ready"):
    """Its handlers are found, its resources are there: it can claim."""

    pid: int


class Held(Struct, frozen=True, gc=False, array_like=True):
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


class Claimed(Struct, frozen=True, gc=False, array_like=True, tag="claimed"):
    """It holds these, and has not started them yet."""

    queue: str
    lease: str
    runs: tuple[Held, ...]


class Ended(Struct, frozen=True, gc=False, array_like=True, tag="ended"):
    """It holds these no longer: for each word of WorkReport, the places of the runs that came to it."""

    queue: str
    ends: dict[str, list[int]]


class Leased(Struct, frozen=True, gc=False, array_like=True, tag="leased"):
    """It claims under this lease now, and no claim under an older one is on its way."""

    lease: str


class LostTrack(Struct, frozen=True, gc=False, array_like=True, tag="lost_track"):
    """The reply to a claim under this lease was lost (promise 7): it claims no more under it."""

    lease: str


class LostLease(Struct, frozen=True, gc=False, array_like=True, tag="lost_lease"):
    """The storage says that this lease is over."""

    lease: str


class Late(Struct, frozen=True, gc=False, array_like=True, tag="late"):
    """A run is over its time and was told to stop; it has so many seconds for that."""

    place: int
    fence: int
    seconds: float


class Overran(Struct, frozen=True, gc=False, array_like=True, tag="overran"):
    """A handler does not stop, though its time is over: let this worker finish its other runs, and go."""

    queue: str
    id: str
    fence: int
    place: int


class Drained(Struct, frozen=True, gc=False, array_like=True, tag="drained"):
    """It was asked to stop, and holds nothing any more but what overran; after Stop, what is on threads."""


class Broken(Struct, frozen=True, gc=False, array_like=True, tag="broken"):
    """It cannot work at all, and why."""

    why: str


FromWorker = Ready | Claimed | Ended | Leased | LostTrack | LostLease | Late | Overran | Drained | Broken

# -- to a worker -------------------------------------------------------------------------------------


class Lease(Struct, frozen=True, gc=False, array_like=True, tag="lease"):
    """Claim under this lease from now on."""

    lease: str


class Cancel(Struct, frozen=True, gc=False, array_like=True, tag="cancel"):
    """Somebody asked for these runs to stop: (queue, id, fence)."""

    runs: tuple[tuple[str, str, int], ...]


class Drain(Struct, frozen=True, gc=False, array_like=True, tag="drain"):
    """Claim no more, finish what you hold, then say Drained."""


class Stop(Struct, frozen=True, gc=False, array_like=True, tag="stop"):
    """The same, but interrupt what can be interrupted and release it."""


ToWorker = Lease | Cancel | Drain | Stop

# -- between a worker and a process that runs one job at a time ---------------------------------------


class Perform(Struct, frozen=True, gc=False, array_like=True, tag="perform"):
    """Run this job; it has so many seconds."""

    queue: str
    job: Job
    seconds: float | None


class Progress(Struct, frozen=True, gc=False, array_like=True, tag="progress"):
    """Report progress for the job it runs, and say whether that was kept."""

    queue: str
    id: str
    fence: int
    value: bytes


class Reported(Struct, frozen=True, gc=False, array_like=True, tag="reported"):
    """What the storage said to the progress; empty when it could not be asked."""

    status: str


class CancelThis(Struct, frozen=True, gc=False, array_like=True, tag="cancel_this"):
    """Somebody asked for the run to stop."""


class Performed(Struct, frozen=True, gc=False, array_like=True, tag="performed"):
    """What came of it."""

    verdict: Verdict


FromChild = Ready | Broken | Progress | Performed
ToChild = Perform | Reported | CancelThis

_encoder: Final = msgspec.msgpack.Encoder()
encode: Final = _encoder.encode
read_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode
read_to_worker: Final = msgspec.msgpack.Decoder(ToWorker).decode
read_from_child: Final = msgspec.msgpack.Decoder(FromChild).decode
read_to_child: Final = msgspec.msgpack.Decoder(ToChild).decode
