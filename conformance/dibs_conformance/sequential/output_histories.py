"""The fixed histories of the capability `output`: who appends, what readers get, and what becomes of chunks.

Each history stops where a simple bug shows: in the reading after the change.
"""

from __future__ import annotations

from typing import Final

from dibs.model.job import Job, JobData, Slot
from dibs.model.results import ExportRecord
from dibs_conformance.sequential.scripts import QUEUE, Player, copy_and_compare, read_histories, unroll
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.verbs import Lockstep
from dibs_conformance.verbs.actions import START

RUN: Final = "enqueue a payload=1; claim"
#: 15 chunks that leave 64,576 bytes of what an id keeps.
FILL: Final = "times 3: report a output=" + "+".join(["x*65536"] * 5)
OUTPUTS: Final = read_histories(f"""
Only the run with the fence appends: no late holder, no reaped run and no settled one. [restarts]
    grant 10; enqueue a; late = claim; report late output=one; wait 10; report late output=two; reap
    report late output=late; output a; grant; claim; report late 0.5 memo=late output=late
    report a output=three
    cancel a running=yes; report a output=four; complete a; report a output=late; forget a
    report a output=late
    output a
A handed-off run appends until it is finished.
    grant; {RUN}; report a output=one; hand_off a; report a 0.5 memo=m output=two+three; finish complete a
    report a output=late; output a
Readers with small and large pages follow two runs, and get each chunk once. [restarts, handles]
    set log_level=all; grant; enqueue a b; claim; output a; report a output=1+2; report a output=3
    report b output=other; output a 1; output a 2 reader=late; report a output=4+\x00\xff+6+; output a 1
    output a 2 reader=late; output a reader=end latest=yes; retry a; claim; report a 0.5 output=7
    report a output=8+9
    output a 1; output a reader=late; output a 2 reader=end; output b; complete a; output a; events
A report above the bound removes the oldest chunks, and the next read says that chunks are missing. [restarts]
    grant; {RUN}; output a reader=none; report a output=1; output a reader=one; report a output=2+3+4
    output a reader=all
    {FILL}
    report a output=x*64252; output a reader=fits; report a output=y
    each $reader = none one all fits new: output a reader=$reader
    report a output=z*65536; output a reader=none; output a reader=all
A report of as much as an id keeps removes all that was before it.
    grant; {RUN}; report a output=1+2; output a
    report a output={"+".join(["x*65536"] * 15)}+x*64512; output a; report a output=3; output a; complete a
    output a
    output a reader=new
Small chunks count 64 bytes more than they have: 1,000 empty ones have room beside large ones.
    grant; {RUN}; output a
    {FILL}
    report a output={"+" * 999}; output a reader=late; report a output=x*500; output a
    output a 10 reader=late
The output of a job stays while it comes back, in each way. [restarts]
    set log_level=all; grant
    each $back = retry | retry delay=5 | release | release delay=5:
        {RUN}; report a output=1; $back a; output a; amend a priority=1; wait 5; claim; report a output=2
        enqueue a payload=2; $back a; wait 5; enqueue a payload=3; claim; report a output=3; complete a
        forget a
    drop 1; grant 10; {RUN}; report a output=1; drop 1; grant 10; claim; report a output=2; wait 10; reap
    grant
    claim; report a output=3; export 1; events
A failed job comes back with its output, once and again. [restarts]
    grant; {RUN}; report a output=1; fail a; output a; retry_failed a; output a; claim; report a output=2
    fail a
    retry_failed a; cancel a; output a; {RUN}; report a output=3; fail a; retry_failed a; enqueue a payload=2
    claim; report a output=4; fail a retention=failed:5; wait 5; retry_failed a; output a; {RUN}; output a
An end keeps the output of its own job, and removes that of an older one. [restarts]
    grant
    each $end = complete | fail | cancelled:
        {RUN}; report a output=1; $end a; output a; {RUN}; output a; report a output=2; output a; release a
        output a; claim; $end a; output a; {RUN}; $end a; output a
    {RUN}; report a output=3; release a; cancel a; output a; enqueue a; cancel a; output a
A promoted job does not show the output of the run before it as its own. [restarts]
    grant
    each $end = complete | fail | cancelled | hand_off:
        {RUN}; report a output=1; enqueue a payload=2; $end a; finish complete a; claim; output a
        report a output=2
        retry a; claim; complete a; output a; forget a
A run that ends with an update-only request, one that is superseded, and one that is cancelled by another.
    grant; {RUN}; report a output=1; enqueue a on_conflict=create:no; complete a; output a; {RUN}
    report a output=2
    hand_off a; enqueue a on_conflict=supersede:yes; output a; claim; complete a; output a; {RUN}
    report a output=3; hand_off a; cancel a running=yes; output a; {RUN}; report a output=4
    enqueue a on_conflict=supersede:yes; retry a; output a
Output is gone with its outcome: by its expiry, by a later retention, and without any. [restarts]
    set retention=completed:5; grant; {RUN}; report a output=1; complete a; output a; wait 4; output a; wait 1
    output a; {RUN}; output a; report a output=2; output a; output a reader=new; prune; output a; complete a
    output a reader=late; amend a retention=completed:9; wait 8; output a reader=later; wait 1
    output a reader=last
    prune; output a; {RUN}; report a output=3; output a; complete a retention=completed:0; output a; {RUN}
    report a output=4; output a; output a reader=late
Removed chunks of an outcome are told to a reader, until they are gone with it.
    grant; {RUN}; output a; output a reader=late; report a output=1
    {FILL}
    fail a; {RUN}; report a output=x*65536; output a; output a reader=new; complete a; output a reader=late
    output a reader=new; forget a; output a
An id comes back after a forget. Its chunks are behind all that readers have received. [restarts]
    grant
    times 3: {RUN}; report a output=1+2; output a; forget a; output a; output a reader=end latest=yes
    {RUN}; output a; report a output=3; output a; output a reader=end
Output is in no log and no export, and changes nothing else of its job. [restarts]
    set log_level=all log_results=4096; grant; {RUN}; report a 0.5 memo=m; report a output=1; compare
    export 1
    events; complete a result=1; export 1; events
""")


def move_output(lockstep: Lockstep, session: ExampleSession) -> None:
    """Copy a queue with the output of a run and of an outcome. The copy has none."""
    player = Player(lockstep)
    player.play("grant", "enqueue a b", "claim", "report a output=1+2", "report b output=3", "complete b")
    copy_and_compare(session, lockstep, QUEUE, 3)


def import_over_expired_output(lockstep: Lockstep) -> None:
    """Import an id whose outcome has expired and was not pruned. The imported job has no output."""
    player = Player(lockstep)
    player.play("set retention=completed:5", "grant", "enqueue a", "claim", "report a output=1", "output a")
    player.play("complete a", "wait 5")
    job = Job(id="a", data=JobData(), run_at=START, enqueued_at=START, seq=7, first=7, revision=7)
    lockstep.import_(QUEUE, [ExportRecord(id="a", slot=Slot(current=job))])
    player.play("output a", "claim", "report a output=2", "output a", "complete a", "output a reader=late")


def trim_output_and_restart(lockstep: Lockstep) -> None:
    """Remove chunks, do the rare work and restart. The storage tells readers that they missed chunks."""
    player = Player(lockstep)
    player.play("grant", "enqueue a", "claim", "output a")
    for kind in ("restart", "compact", "restart"):
        player.play("report a output=1", "output a reader=late", *unroll([FILL]), "report a output=x*65536")
        lockstep.interrupt(kind)
        player.play("output a reader=late", "output a", "output a reader=new")
    player.play("fail a", "retry_failed a")
    lockstep.interrupt("restart")
    player.play("claim", "report a output=2", "complete a", "output a")
