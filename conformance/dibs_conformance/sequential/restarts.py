"""Fixed histories with restarts and compactions, for a storage that claims more than memory.

Some histories of the walkthrough run again, with a restart or a compaction before one call in OFTEN. Others
write so much that a storage compacts its data by itself, and trim a log before a restart.
"""

from __future__ import annotations

from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.abilities import Compaction, ability
from dibs_conformance.lockstep import OFTEN
from dibs_conformance.sequential.scripts import QUEUE, Player, play_history, unroll
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.sequential.walkthrough import INTERRUPTED
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
    player = Player(lockstep)
    for at, compacts in enumerate((False, True, False, True)):
        early, late = Reader(), Reader()
        lockstep.skip_to_latest(QUEUE, early)
        player.play("enqueue a", "cancel a")
        lockstep.events(QUEUE, late, 10)
        player.play("wait 2day", *(("enqueue b", "cancel b") if at < 2 else ()), "prune")
        kept = lockstep.log_offsets(QUEUE)
        if compacts:
            lockstep.interrupt("compact")
        lockstep.interrupt("restart")
        lockstep.check_offsets(QUEUE, kept)
        lockstep.events(QUEUE, early, 10)
        player.play("enqueue c", "cancel c")
        lockstep.events(QUEUE, late, 10)


def trim_and_compact(lockstep: Lockstep) -> None:
    """Trim the log through one of two handles, compact it, and read an old offset through any of them."""
    player = Player(lockstep)
    for _ in range(4):
        reader = Reader()
        lockstep.skip_to_latest(QUEUE, reader)
        player.play("enqueue a", "cancel a", "wait 2day", "prune")
        kept = lockstep.log_offsets(QUEUE)
        lockstep.interrupt("compact")
        lockstep.check_offsets(QUEUE, kept)
        lockstep.events(QUEUE, reader, 10)


#: Ids that wait, run, are handed off, have a successor, and have ended in each way.
EVERY_STATE = """
grant 3day; enqueue done failed retried away held payload=1; claim; complete done result=1; fail failed
retry retried delay=hour; hand_off away; enqueue held payload=2; enqueue keyed request_key=k; set max_active=3
"""


def write_until_it_compacts(lockstep: Lockstep) -> None:
    """Bring ids into every state, write 8.5 MiB, and change some ids afterwards. Then restart and compare."""
    player = Player(lockstep)
    player.play("set log_level=all", *unroll(EVERY_STATE.split("\n")), "events")
    for number in range(LARGE_JOBS):
        data = JobData(payload=bytes([number]) * LARGE)
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=f"large {number % 2}", data=data))])
    compare_after_restart(player)
    player.play("enqueue a request_key=k", "claim 1", "enqueue z", "cancel z")
    compare_after_restart(player)


def compare_after_restart(player: Player) -> None:
    """Restart, and compare every slot, the counts, the unread events and the first settlement again."""
    player.lockstep.interrupt("restart")
    player.play("compare", "counts", "events")
    player.lockstep.events(QUEUE, Reader(), 100)
    player.play("enqueue other request_key=k")
    player.lockstep.settle(QUEUE, [Settlement(id="done", fence=1, action=Complete())])
