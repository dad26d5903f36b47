"""Fixed histories with restarts and compactions, for a storage that claims more than memory.

Some histories of the walkthrough run again, with a restart or a compaction before one call in OFTEN. Others
write so much that a storage compacts its data by itself, and trim a log before a restart.
"""

from __future__ import annotations

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    RetryLater,
    SettingsPatch,
    Settlement,
)
from dibs.storage.abilities import Compaction, ability
from dibs_conformance.lockstep.core import OFTEN
from dibs_conformance.sequential.scripts import QUEUE, claim, enqueue, play_history, settle
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.sequential.walkthrough import INTERRUPTED
from dibs_conformance.strategies import DAY, HOUR
from dibs_conformance.target import Locations
from dibs_conformance.verbs import Lockstep
from dibs_conformance.verbs.events import Reader

#: Bytes of a large payload, and the number of large payloads of `write_until_it_compacts`. Together they are
#: twice the 4 MiB after which the file storage makes a checkpoint.
LARGE, LARGE_JOBS = 512 * 1024, 17


async def offers_compaction(locations: Locations) -> bool:
    """Return whether the storage offers its rare work."""
    async with locations.open(locations.new(), "manual") as storage:
        return ability(storage, Compaction) is not None


def walk_through_restarts(session: ExampleSession) -> None:
    """Run every history that applies. Raise Mismatch for the first wrong result."""
    if session.durable or session.compacts:
        for play in INTERRUPTED:
            play_history(session, play, interruptions=session.interruptions(OFTEN))
        play_history(session, trim_and_compact, handles=2, interruptions=session.interruptions(OFTEN))
    if session.durable:
        play_history(session, trim_and_restart)
        play_history(session, write_until_it_compacts, compare_each=False)


def trim_and_restart(lockstep: Lockstep) -> None:
    """Trim a part of a log, and then the rest. Restart, and read from offsets behind the trimmed events."""
    for at, compacts in enumerate((False, True, False, True)):
        early, late = Reader(), Reader()
        lockstep.skip_to_latest(QUEUE, early)
        enqueue_and_cancel(lockstep, "a")
        lockstep.events(QUEUE, late, 10)
        lockstep.pass_time(2 * DAY)
        if at < 2:
            enqueue_and_cancel(lockstep, "b")
        lockstep.prune(QUEUE, 10)
        kept = lockstep.log_offsets(QUEUE)
        if compacts:
            lockstep.interrupt("compact")
        lockstep.interrupt("restart")
        lockstep.check_offsets(QUEUE, kept)
        lockstep.events(QUEUE, early, 10)
        enqueue_and_cancel(lockstep, "c")
        lockstep.events(QUEUE, late, 10)


def trim_and_compact(lockstep: Lockstep) -> None:
    """Trim the log through one of two handles, compact it, and read an old offset through any of them."""
    for _ in range(4):
        reader = Reader()
        lockstep.skip_to_latest(QUEUE, reader)
        enqueue_and_cancel(lockstep, "a")
        lockstep.pass_time(2 * DAY)
        lockstep.prune(QUEUE, 10)
        kept = lockstep.log_offsets(QUEUE)
        lockstep.interrupt("compact")
        lockstep.check_offsets(QUEUE, kept)
        lockstep.events(QUEUE, reader, 10)


def enqueue_and_cancel(lockstep: Lockstep, id: str) -> None:
    enqueue(lockstep, id)
    lockstep.cancel(QUEUE, [id], running=False)


def write_until_it_compacts(lockstep: Lockstep) -> None:
    """Bring ids into every state, write 8.5 MiB, and change some ids afterwards. Then restart and compare."""
    reader = Reader()
    lockstep.configure(QUEUE, SettingsPatch(log_level="all"))
    lease = lockstep.grant([QUEUE], 3 * DAY, "kit")
    fill_every_state(lockstep, lease)
    lockstep.events(QUEUE, reader, 100)
    for number in range(LARGE_JOBS):
        data = JobData(payload=bytes([number]) * LARGE)
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=f"large {number % 2}", data=data))])
    compare_after_restart(lockstep, reader)
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a"), request_key="k")])
    claim(lockstep, lease, 1)
    enqueue_and_cancel(lockstep, "z")
    compare_after_restart(lockstep, reader)


def fill_every_state(lockstep: Lockstep, lease: str) -> None:
    """Enqueue ids that wait, run, are handed off, have a successor, and have ended in each way."""
    enqueue(lockstep, "done", "failed", "retried", "away", "held", payload=b"1")
    done, failed, retried, away, held = claim(lockstep, lease)
    settle(lockstep, done, Complete(result=b"1"))
    settle(lockstep, failed, Fail(error=Error(type="Oops")))
    settle(lockstep, retried, RetryLater(delay=HOUR))
    settle(lockstep, away, HandOff())
    enqueue(lockstep, held[0], payload=b"2")
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="keyed"), request_key="k")])
    lockstep.configure(QUEUE, SettingsPatch(max_active=3))


def compare_after_restart(lockstep: Lockstep, reader: Reader) -> None:
    """Restart, and compare every slot, the counts, the unread events and the first settlement again."""
    lockstep.interrupt("restart")
    lockstep.compare_slots(QUEUE)
    lockstep.counts([QUEUE])
    lockstep.events(QUEUE, reader, 100)
    lockstep.events(QUEUE, Reader(), 100)
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="other"), request_key="k")])
    lockstep.settle(QUEUE, [Settlement(id="done", fence=1, action=Complete())])
