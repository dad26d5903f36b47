"""The walkthrough: short fixed histories that call every verb, before the random examples.

A level is reached only if the results of each verb were compared. With the walkthrough, even a run of one
example does that, and a simple bug is reported with few calls. Each history runs in a new location. Some
histories run again with a restart or a compaction before one call in OFTEN, if a storage claims more than
memory. Others write so much that a storage compacts its data by itself, and trim a log before a restart.
One history has values of subclasses: a subclass of str, bytes or int counts as its plain value (promise 8).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, cast

from attrs import frozen
from msgspec import Struct

from dibs.model.job import JobData, NewJob
from dibs.model.limits import KIB
from dibs.model.requests import (
    Complete,
    End,
    EnqueueRequest,
    Fail,
    FollowUp,
    QueueStep,
    SettingsPatch,
    Settlement,
    Update,
)
from dibs.model.results import ClaimResult
from dibs.storage.abilities import Compaction, ability
from dibs.storage.protocol import Storage
from dibs_conformance.lockstep import OFTEN
from dibs_conformance.sequential import close_values
from dibs_conformance.sequential.bad_input import replaced
from dibs_conformance.sequential.close_values import CLOSE_VALUES
from dibs_conformance.sequential.output_histories import (
    OUTPUTS,
    import_over_expired_output,
    move_output,
    trim_output_and_restart,
)
from dibs_conformance.sequential.scripts import (
    OOPS,
    QUEUE,
    FixedHistory,
    Player,
    copy_and_compare,
    play_history,
    read_histories,
    unroll,
)
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.strategies import DATA, EVERYWHERE, HOUR
from dibs_conformance.target import Locations
from dibs_conformance.verbs import Lockstep
from dibs_conformance.verbs.events import Reader


class Text(str):
    """A text whose conversions to text are another text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        return "another text"


class Bytes(bytes):
    """A subclass of bytes."""


def with_subclasses(value: Any) -> Any:
    """Return a copy with each text, each bytes and each number replaced by one of a subclass."""
    if isinstance(value, str):
        return Text(str.__str__(value))
    if isinstance(value, bytes):
        return Bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return IntEnum("Number", {"MEMBER": value}).MEMBER  # type: ignore[attr-defined]
    if isinstance(value, list | tuple):
        return type(value)(map(with_subclasses, value))
    if isinstance(value, dict):
        return {with_subclasses(name): with_subclasses(one) for name, one in value.items()}
    if isinstance(value, Struct):
        for field in value.__struct_fields__:
            value = replaced(value, field, with_subclasses(getattr(value, field)))
    return value


@frozen
class SubclassedCalls:
    """A storage whose verbs get values of subclasses."""

    storage: Storage

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.storage, name)
        if not inspect.iscoroutinefunction(verb):
            return verb
        return lambda *args, **named: verb(
            *map(with_subclasses, args), **{name: with_subclasses(one) for name, one in named.items()}
        )


[EACH_VERB] = read_histories("""
Each verb gets values of subclasses: the life of a job, from a repeated enqueue to a prune.
    set max_active=2 log_level=all; enqueue a!1 payload=p attributes=a:1 request_key=key delay=0
    enqueue b request_key=key; enqueue c d:k retention=completed:5+keep:completed; list waiting limit=10
    grant; renew hour; claim 1; report a 1 memo=m; amend a attributes=b:2; cancel a; hand_off a
    finish fail a error=E/m; retry_failed a; claim 1; complete a result=r then=e; claim 1
    exchange complete last; counts; queues; export 10; drop 1; reap 1; forget a; wait 5; prune; events 10
    amend e priority=1
""")


def use_subclasses(lockstep: Lockstep) -> None:
    """Play a history whose calls have values of subclasses, and compare its results as always."""
    handles: Final = lockstep.opened.handles
    handles[:] = [cast("Storage", SubclassedCalls(handle)) for handle in handles]
    Player(lockstep).play(*EACH_VERB.steps)


FIRST: Final = read_histories("""
An id is updated during its run, and the next run has the update. Repeated ends change no job. [restarts]
    grant; enqueue a payload=1; enqueue a payload=2; first = claim; enqueue a payload=3; enqueue a payload=4
    times 3: complete first result=1
    second = claim; retry first; complete second result=2; compare
Jobs of two priorities are claimed in order, and a job with a delay after the delay.
    grant; enqueue late@5 a b c!1; claim; wait 5; claim
In the same ms, a promoted and a released job keep their places among the others; a retry goes last.
    grant; enqueue a b c d; claim 3; enqueue a e; complete a; release b; retry c; claim
A queue is paused, and has max_active 0, 1 and 2.
    grant; enqueue a b c; set paused=yes; claim
    each $most = 0 1 2: set paused=no max_active=$most; claim
    counts; list waiting limit=1
Two active runs are cancelled, one with a successor. They end when they are retried and reaped.
    grant 10; enqueue a b; claim; enqueue a; cancel a b running=yes; renew 10; retry a; wait 10; reap; compare
A lease is renewed 1 ms before its expiry and at its expiry. Its job returns, and the old fence is lost.
    grant 10; enqueue a; late = claim; wait 9; renew 2; wait 2; renew 10; reap; grant; claim; complete late
A request_key is repeated while the queue remembers it, also with another id, and after that. [restarts]
    times 2: enqueue a request_key=k
    enqueue b request_key=k; wait hour; enqueue a request_key=k
A run fails under `fail_handler`, its fail job fails, and the failed job is retried. [restarts]
    set fail_handler=yes; grant hour q q!fail; enqueue a payload=\x00\xff; claim; fail a; claim in=q!fail
    fail last error=Again in=q!fail; retry_failed a; claim
An ended id is rejected, its retention extended, a failed job retried, and all is exported. [restarts]
    grant; enqueue a b payload=1 attributes=a:1 priority=1; claim
    complete a result=1 then=c+d+e retention=completed:10; fail b retention=failed:10
    enqueue a b on_conflict=reject_failed; wait 5; amend b retention=completed:10+failed:10+cancelled:10
    wait 9; enqueue a on_conflict=reject_failed; retry_failed b; claim; fail b; enqueue b on_conflict=reject
    export 1 parts=3
Progress is reported with the fence of a reaped run, and with that of the active run.
    grant 10; enqueue a; late = claim; wait 10; reap; grant; claim; report late 0.5; report a 0.1
The log is read after each attempt: one event for each attempt. [restarts]
    grant
    each $end = retry complete: enqueue a; claim; $end last; events 1
    forget a; enqueue a; claim
An empty log is read, and events are trimmed before the reader reads on: it gets `fell_off`. [restarts]
    events 10; enqueue a b; cancel a; wait 2day; cancel b; prune; events 10
More events are written in one ms than `log_bytes` holds: a reader from before them gets `fell_off`.
    set log_level=all log_bytes=300; enqueue a; events 10
    each $payload = 1 2 3 4 5 6 7 8 9: enqueue a payload=$payload
    prune; events 10
Batches are passed to several verbs. Each item has a result of its own, and some ids are repeated.
    grant; enqueue a!0 b!1 c!2 d!0 e!1 f!2 g!0; claim 3
    times 2: settle complete f result=1, cancelled c, fail b, complete c
    claim 2; retry_failed b unknown c g b f; cancel b unknown c g b f a d; forget b unknown c g b f
    enqueue g payload=g, a payload=a, g payload=g, a payload=a, g payload=g
Changes are made at the log level `all`. [restarts]
    set log_level=all; grant; enqueue a a b; claim; wait 5; enqueue a; amend a attributes=a:1; hand_off a
    retry b delay=5 error=Oops; complete a; amend b priority=1; forget a b; events
Three runs are handed off and finished twice. The follow-ups of the second update those of the first.
    set fail_handler=yes; grant; enqueue a b c; claim
    hand_off a
    times 2: finish complete a result=1 then=d:k@4+e:k@4+f:k@4
    hand_off b
    times 2: finish fail b then=d:m@5+e:m@5+f:m@5
    hand_off c
    times 2: finish cancelled c
    compare q q!fail; wait 5; claim
Three successors of a job that is updated after each are cancelled. All stay known as cancelled.
    grant; enqueue a
    times 3: claim; enqueue a a; cancel a; retry a; enqueue a
    compare
Three outcomes and five request_keys expire and are pruned, two at a time. One id has a new job. [restarts]
    grant 3day; enqueue a request_key=0, b request_key=1, c request_key=2, a request_key=3, b request_key=4
    claim
    each $id = a b c: complete $id retention=completed:5
    wait 2day; enqueue a; export 10 parts=2; prune_all 2
    each $id = a b c: complete $id
""")
UPDATE, RESET = "on_conflict=create:no", "on_conflict=create:no+run_at:never+reset_counts:yes"
#: Update-only requests: on an empty id, in a waiting job, and in the list of a run.
UPDATES: Final = read_histories(f"""
Update-only requests for an id without a job, with and without an outcome, and with a request_key.
    grant; enqueue a {UPDATE} request_key=k want_outcome=yes, b, a {UPDATE} request_key=k want_outcome=yes
    enqueue a; enqueue a {UPDATE} request_key=k want_outcome=yes
    each $end = complete result=1 | fail | cancelled:
        claim; $end last; enqueue a {UPDATE} want_outcome=yes; enqueue a
    enqueue c {UPDATE}, c, c {RESET}, c {UPDATE}; counts; queues
They move the run_at of a job that waits for a retry, and reset its counts. Its data stays.
    grant; enqueue a payload=1; claim; retry a delay=hour error=Oops; enqueue a@5 {UPDATE}+run_at:later
    enqueue a@5 {UPDATE}+run_at:earlier; enqueue a {RESET}; wait 5; claim
Runs end in each way with update-only requests alone. Nothing is promoted; each range is joined. [restarts]
    grant hour q q!fail; set fail_handler=yes log_level=all
    each $end = complete result=1 | fail | cancelled:
        enqueue a b; claim
        each $id = a b: enqueue $id delay=hour {UPDATE}; enqueue $id {RESET}
        counts; export 10 parts=1; $end a; $end a; exchange $end b; events
    claim in=q!fail
A handed-off run is finished by the revision of its enqueue, then by that of an update-only request.
    grant; enqueue a; claim; hand_off a; later = enqueue a {UPDATE}; finish complete a revision=later
    finish complete a; finish complete a revision=later; finish cancelled a revision=later
A job enqueued after update-only requests counts whole, at its own place, and moves after that.
    grant
    each $rule = data:no+run_at:later run_at:earlier run_at:never:
        enqueue a payload=1; claim; enqueue a delay=hour {UPDATE}; enqueue a delay=2hour {UPDATE}+run_at:later
        wait 1; enqueue b; enqueue a payload=2 run_at=now on_conflict=$rule
        enqueue a run_at=now+1 {UPDATE}+run_at:earlier; complete a; claim; complete last
Runs come back in each way with update-only requests alone: their time and their reset count. [restarts]
    grant
    each $back = retry error=Oops | release | release delay=1 | retry delay=hour:
        enqueue a; claim; enqueue a delay=5 {UPDATE}+run_at:later; enqueue a delay=7 {UPDATE}+run_at:earlier
        $back a; wait 7; claim; enqueue a {RESET}; $back a; forget a
Successors of update-only requests are cancelled, before the run ends and before it is retried.
    set log_level=all; grant
    each $ends = cancel a; complete a | cancel a; retry a | cancel a running=yes; retry a:
        enqueue a; claim; enqueue a delay=hour {UPDATE}; enqueue a {UPDATE}; $ends; forget a
    events
An active job is amended before and after a request that creates a job.
    grant
    each $end = complete retry:
        enqueue a; claim; enqueue a {UPDATE}; amend a attributes=a:1
        enqueue a payload=2 attributes=b:2 on_conflict=data:no; amend a attributes=c:3; $end a; forget a
Update-only follow-ups for an id without a job, for a waiting and for an active one.
    grant; enqueue a b; claim; enqueue c delay=hour; complete a then=update+a+b+c; fail b then=update+a+b+c
    claim
""")
NEW = "on_conflict=supersede:yes"
#: Requests that ask the run they meet to end.
SUPERSEDED: Final = read_histories(f"""
A request supersedes nothing, a waiting job, a scheduled job and an outcome: it is a plain update. [restarts]
    set log_level=all; grant; enqueue a {NEW} want_outcome=yes; enqueue a payload=2 {NEW}
    enqueue b delay=5; enqueue b payload=2 {NEW}+run_at:never; claim; wait 5; claim; complete a
    enqueue a {NEW} want_outcome=yes, a {NEW} want_outcome=yes; fail b; enqueue b payload=3 {NEW}
    claim; events
A superseded run ends in each way. Its data never comes back, and the new job begins with counts 0. [restarts]
    set log_level=all fail_handler=yes; grant hour q q!fail
    each $back = retry error=Oops | retry cause=timeout delay=hour | release | release delay=5 | hand_off:
        enqueue a payload=1 attributes=a:1; claim; report a 0.5 memo=m; retry a; claim
        enqueue a payload=2 {NEW}; renew hour; $back a; claim; complete a; forget a
    each $end = complete result=1 | fail | cancelled error=Oops:
        enqueue a payload=1; claim; enqueue a payload=2 {NEW}; $end a; claim; complete a
    events
A superseded run loses its lease by a reap and by a drop, with due and scheduled successors. [restarts]
    set log_level=all
    each $new = {NEW} | delay=hour {NEW} | data:no+{NEW}:
        grant 10; enqueue a; claim; enqueue a {NEW}; wait 10; reap; grant; claim; enqueue a delay=hour {NEW}
        drop; forget a
    events
A request joins the list of a run: before, between and after plain and update-only requests.
    set log_level=all; grant
    each $first = payload=2 | delay=hour {UPDATE} | payload=2 {NEW}:
        each $last = payload=4 | {RESET} | payload=4 {NEW} | payload=4 on_conflict=data:no:
            enqueue a payload=1; claim; enqueue a $first; enqueue a payload=3 delay=5 {NEW}; enqueue a $last
            retry a; wait 5; claim; cancelled a; forget a
    events
A cancel drops the successor of a superseded run, and the run is still asked to end.
    set log_level=all; grant
    each $back = retry release complete:
        enqueue a; claim; enqueue a payload=2 {NEW}; cancel a; enqueue a payload=3; cancel a; renew hour
        $back a; enqueue a payload=4; claim; enqueue a {NEW}; cancel a running=yes; enqueue a {NEW}; release a
        forget a
    events
A handed-off run is superseded, alone and with successors, and its older outcome was kept. [restarts]
    set log_level=all; grant
    enqueue a payload=1; claim; hand_off a; old = enqueue a payload=2 {NEW} want_outcome=yes; claim
    hand_off a; enqueue a payload=3; enqueue a payload=4 {NEW} want_outcome=yes
    finish complete a revision=old
    complete a; claim; hand_off a; enqueue a delay=hour {UPDATE}; enqueue a payload=5 {NEW}; events
A handed-off run is superseded in one batch with requests that want the outcome before them.
    grant; enqueue a; claim; complete a result=1; enqueue a; claim; hand_off a
    enqueue a want_outcome=yes, a {NEW} want_outcome=yes, a want_outcome=yes, a {NEW} request_key=k
    enqueue a {NEW} request_key=k; claim; enqueue a {NEW} request_key=k
A handed-off run is superseded in queues that keep no outcome, and in one without a log.
    grant
    each $kept = retention=cancelled:0 | log_level=off | log_level=runs:
        set $kept; enqueue a payload=1; claim; hand_off a; enqueue a payload=2 {NEW}; claim; complete a
    events
Superseded runs of a queue with `max_active`: a handed-off one has no place in it.
    set max_active=1; grant; enqueue a b; claim; enqueue a {NEW}; claim; hand_off a; claim; hand_off b
    enqueue b {NEW}; claim
""")
WAKE = "on_conflict=create:no+run_at:wake"
SIGNAL = f"{WAKE} attributes=s:1"
PARK = "delay=hour parked=yes"
#: Jobs that are parked, and the requests that wake them.
SIGNALS: Final = read_histories(f"""
A run parks its job. It is claimed at the end of the wait, parked again, woken, and ends. [restarts]
    set log_level=all; grant; enqueue a payload=1; claim; release a delay=5 parked=yes; counts; claim
    list scheduled limit=10; wait 5; claim; release a run_at=now+5 parked=yes; enqueue a {SIGNAL}; counts
    claim; complete a; events
A wake moves no other job: it meets nothing, outcomes, and jobs that wait or are retried. [restarts]
    set log_level=all; grant; enqueue a {SIGNAL} want_outcome=yes request_key=k; enqueue a
    enqueue a {SIGNAL} want_outcome=yes; enqueue b delay=5; enqueue b {SIGNAL}; claim; enqueue a {SIGNAL}
    retry a delay=5 error=Oops; enqueue a {WAKE}; claim; wait 5; claim; release a delay=5; enqueue a {SIGNAL}
    claim; wait 5; claim; fail a; enqueue a {SIGNAL} want_outcome=yes; retry_failed a delay=5
    enqueue a {SIGNAL} request_key=k; claim; wait 5; claim; reap; complete a; enqueue a {WAKE}; events
A request of each kind meets a run that then parks: its job is due now, with the request. [restarts]
    set log_level=all; grant
    each $met = {SIGNAL} | {WAKE}+reset_counts:yes | {UPDATE}+run_at:never | payload=2 attributes=b:2 | {NEW}:
        enqueue a payload=1 attributes=a:1; claim; retry a; claim; enqueue a $met
        release a {PARK}; claim; complete a; claim; forget a
    each $met = delay=5 | delay=5 {UPDATE}+run_at:later | payload=2 on_conflict=data:no:
        enqueue a payload=1; claim; enqueue a $met; enqueue a {SIGNAL}; release a {PARK}; claim; wait 5; claim
        forget a
    events
A cancel drops what met a run that then parks. Its job is due now; the next run parks it. [restarts]
    grant
    each $met = {SIGNAL} | payload=2:
        enqueue a payload=1; claim; enqueue a $met; cancel a; release a {PARK}; claim; release a {PARK}; claim
        enqueue a {SIGNAL}; claim; enqueue a $met; cancel a; enqueue a $met; cancel a
        release a delay=5 parked=yes; claim; enqueue a $met; retry a
        claim; release a delay=5 parked=yes; claim; wait 5; claim; forget a
A request of each kind meets a parked job, then a wake. Its data, time, counts and place are compared.
    grant
    each $met = payload=2 | payload=2 delay=2 | attributes=b:2 on_conflict=run_at:never | {NEW}:
        enqueue a payload=1; claim; retry a; claim; release a delay=5 parked=yes; enqueue a $met; enqueue b
        enqueue a {SIGNAL}; claim; wait 5; claim; forget a b
    each $met = {UPDATE} | {RESET} | delay=9 {UPDATE}+run_at:later | delay=2 {UPDATE}+run_at:earlier | {WAKE}:
        enqueue a payload=1; claim; retry a; claim; release a delay=5 parked=yes; enqueue a $met; claim
        enqueue a {SIGNAL}; claim; wait 9; claim; forget a
    each $time = now now+5 now+9:
        enqueue a payload=1; claim; release a run_at=now+5 parked=yes; enqueue a run_at=$time {UPDATE}; claim
        enqueue a {SIGNAL}; claim; wait 9; claim; forget a
A parked job is amended: it stays parked. Its time is the end of the wait.
    set log_level=all; grant
    each $patch = run_at=now+2 delay=9 priority=3 attributes=b:2 lease=5 delay=0:
        enqueue a; claim; release a delay=5 parked=yes; amend a $patch; claim; enqueue a {SIGNAL}; claim
        wait 9; claim; forget a
        enqueue a; claim; release a delay=5 parked=yes; amend a $patch; wait 9; claim; forget a
    events
A job that was claimed while it was parked comes back in each way. It is parked no longer. [restarts]
    grant 10; enqueue x
    each $back = release a | retry a | retry a delay=5 | release a delay=5 | reap | drop 1:
        grant 10; enqueue a; claim; release a run_at=now parked=yes; claim 1; wait 1; enqueue b run_at=now
        wait 10; $back; grant; enqueue c run_at=now; enqueue a {SIGNAL}; claim; wait 9; claim; forget a b c
A run parks its job after its wait has ended; a wake of this due job does not move it back.
    grant; enqueue a; claim; release a run_at=now parked=yes; wait 3; enqueue b; wait 3; enqueue a {SIGNAL}
    claim; release a delay=0 parked=yes; enqueue a {UPDATE}; claim
Runs that were asked to end, and handed-off runs, are not parked; a release without a time is refused.
    set log_level=all; grant; enqueue a b c d; claim; cancel a running=yes; release a {PARK}
    enqueue b payload=2 {NEW}; release b {PARK}; claim; hand_off c; release c {PARK}; finish cancelled c
    release d parked=yes; release d delay=5 run_at=now parked=yes
    enqueue b {SIGNAL}; release b {PARK}; claim; release b {PARK}; cancel b; release b {PARK}; events
Parked jobs of one time are claimed before others of this time, and after those of an earlier one.
    grant; enqueue a b c; claim; release a b delay=5 parked=yes; release c delay=5; enqueue d@5; enqueue e@4
    enqueue f!1@5; wait 5; claim
    release a b delay=5 parked=yes; wait 5; claim 1; claim 1; claim
Signals are handed over: by the current, and by a job that a later end promotes, but never by an earlier one.
    set retention=keep:completed/failed/cancelled log_level=all; grant
    each $end = complete fail cancelled:
        enqueue a payload=1 attributes=s:0+t:0; claim; enqueue a {SIGNAL}; enqueue a payload=2 attributes=u:2
        enqueue a {WAKE} attributes=v:3; amend a attributes=s:4; enqueue a {WAKE} attributes=s:5; $end a
        claim; $end a; enqueue a {SIGNAL}; forget a
        enqueue a payload=1; claim; enqueue a {SIGNAL}; $end a; enqueue a payload=2; claim; forget a
        enqueue a payload=1; claim; enqueue a {SIGNAL}; enqueue a payload=3 attributes=w:1 on_conflict=data:no
        enqueue a {WAKE} attributes=v:3; retry a; claim; enqueue a {WAKE} attributes=x:1; $end a; forget a
    events
Signals are repeated with a request_key, and come in one batch with other requests.
    grant; enqueue a; claim; release a {PARK}
    enqueue a {SIGNAL} request_key=k
    enqueue a {SIGNAL} request_key=k, b {SIGNAL} request_key=k, b, b {SIGNAL}
    claim; enqueue a {SIGNAL}, a payload=2, a {WAKE} attributes=t:2 want_outcome=yes; release a {PARK}; claim
Jobs with a key are parked and woken, with `max_active` 1.
    set max_active=1; grant; enqueue a:k b:k; claim; release a {PARK}; claim; enqueue a {SIGNAL}; claim
    complete b; claim; release a run_at=now parked=yes; enqueue c:k; claim; retry a
    enqueue a {SIGNAL}; claim; complete last; claim
A memo, counts and an error stay with a parked job, and with the key that its data has. [restarts]
    grant; enqueue a payload=1 attributes=a:1 key=k; claim; report a 0.5 memo=m; retry a error=Oops; claim
    release a {PARK}; counts; enqueue a {SIGNAL}; claim; release a delay=5 parked=yes; enqueue a {UPDATE}
    counts; claim; release a {PARK}; enqueue a payload=2 key=m; claim
""")
#: A memo that is no text, to find a storage that decodes it.
MEMO = "memo=\x00\xffmemo"
RUN = f"enqueue a payload=1 attributes=a:1; claim; report a {MEMO}"
KEEP = "keep:completed/failed/cancelled"
#: Who may store a memo, what keeps it, and what removes it.
MEMOS: Final = read_histories(f"""
A run with a memo comes back in each way. The next run gets it, also beside an amend and progress. [restarts]
    grant; {RUN}
    each $back = retry error=Oops | release | release run_at=now:
        $back a; amend a attributes=b:2 priority=1; claim; report a 0.5; amend a attributes=c:3
    drop 1; grant 10; claim; wait 10; reap 1; grant; claim; export 1; report a 1 memo=; retry a; grant; claim
A memo is reported under the fence of a reaped run, a settled run, and a handed-off run.
    grant 10; enqueue a payload=1 attributes=a:1; late = claim; report late {MEMO}; wait 10; reap
    report late memo=late; grant; claim; report late memo=late; report late 0.5 memo=; hand_off a
    report a 0.5 memo=handed-off; fail a; report a memo=late; retry_failed a; claim
A job with a memo is updated in place, and during a run that comes back. New data has no memo.
    grant
    each $new = payload=2 on_conflict=data:no | {UPDATE} | payload=2 | payload=2 on_conflict=reset_counts:no:
        {RUN}; release a; enqueue a $new; claim; report a {MEMO}; enqueue a $new; retry a; claim
        report a {MEMO}; enqueue a $new; complete a; forget a
Only a failed outcome with its data keeps a memo, and `retry_failed` returns it. [restarts]
    set fail_handler=yes; grant hour q q!fail
    each $end = complete retention={KEEP} | complete | cancelled error=Oops retention={KEEP}:
        {RUN}; $end a; retry_failed a
    each $end = fail retention=keep:none | fail: {RUN}; $end a; retry_failed a
    claim; fail a; enqueue a; claim; claim in=q!fail; report last memo=fail-job in=q!fail
A waiting job with a memo is cancelled, and a run with a memo and a successor.
    set retention={KEEP}; grant; {RUN}; release a; cancel a; {RUN}; enqueue a; cancel a running=yes
    release a delay=5
""")
KEEP_RESULT = "retention=keep:completed"
NOT_KEPT = "retention=completed:0+failed:0+cancelled:0"
WHOLE = "retention=completed:hour+failed:hour+cancelled:hour+keep:failed"
COMPLETE = """enqueue a b c; claim 3; complete a $end; exchange complete b $end limit=1; hand_off c
        finish complete c $end"""
#: Releases with a time, fail handlers, logged results, attributes and progress.
ENDS: Final = read_histories(f"""
A released run with a delay or a time goes behind the others, also those with an equal time. [restarts]
    grant; enqueue a b c d; claim; release a run_at=now; release b; release c delay=5; release d run_at=0
    claim; enqueue a; enqueue b delay=3 on_conflict=run_at:later
    each $id = d b a: release $id delay=2
    wait 5; claim
A release with a delay and a time, of a run that was asked to stop, and of a handed-off run.
    grant; enqueue a b c; claim; release a run_at=now delay=1; release a delay=1; release a delay=1
    cancel b running=yes; release b delay=1; release b delay=1; hand_off c; release c delay=1; release c
Runs fail by each verb while `fail_handler` changes. A repeat makes no second fail job.
    grant hour q q!fail
    each $before $after = no yes | yes no | no yes:
        set fail_handler=$before; enqueue a b c payload=1; claim 3; hand_off c; set fail_handler=$after
        fail a; fail a; exchange fail b limit=1, fail b; finish fail c; finish fail c; counts q q!fail
    claim in=q!fail
A fail job fails, although its queue has `fail_handler`: a fail queue has no fail queue.
    grant hour q q!fail; set fail_handler=yes; set fail_handler=yes in=q!fail; enqueue a; claim; fail a
    claim in=q!fail; fail last in=q!fail; counts q!fail; queues
Results at and above `log_results`, by each verb, with and without retention.
    grant; set log_results=0
    each $end = result=rrrr {NOT_KEPT} | result=none:
        {COMPLETE}
    events; set log_level=all; set log_results=4
    each $end = result=r | result=rrrr {NOT_KEPT} | result=rrrrr | result=none:
        {COMPLETE}
    events; set log_level=all; set log_results=4096
    each $end = result=r*4096 {NOT_KEPT} | result=r*4097 | result=none:
        {COMPLETE}
    events; set log_level=all; set log_results=0
    each $end = result=r | result=none:
        {COMPLETE}
    events
Attributes of outcomes of each kind are patched, and failed jobs retried. [restarts]
    grant day
    each $end = complete result=1 | cancelled | fail | fail retention=keep:none | complete {KEEP_RESULT}:
        enqueue a payload=1 attributes=a:1; claim; amend a attributes=b:2; $end a; amend a attributes=a:3+c:4
        amend a attributes=d:5 {WHOLE}; amend a; amend a priority=1; amend a attributes=e:6 payload=2
        retry_failed a; enqueue a; amend a attributes=f:7; cancel a; wait hour; amend a attributes=g:8
Failed jobs are retried with and without a delay, and once more while they wait. [restarts]
    grant; enqueue a b c payload=1; claim; wait 1; fail last; retry_failed a b delay=5
    retry_failed a delay=hour; retry_failed c; claim; wait 5; claim
A live job that has an outcome beside it is amended: waiting, active, and with a successor.
    grant; enqueue a payload=1 attributes=a:1; claim; fail a; enqueue a; amend a attributes=b:2; claim
    amend a attributes=c:3; enqueue a; amend a attributes=d:4; complete a
""")
MORE_ENDS: Final = read_histories(f"""
Runs end as cancelled with a reason, also with one above 16 KiB.
    grant
    each $why = Late/no Long/m*20000:
        enqueue a b; claim 2; cancelled a error=$why; cancelled a error=$why; hand_off b
        finish cancelled b error=$why
    events
Runs with progress end in each way, by each verb, after a return, and beside an older outcome.
    grant
    each $end = complete | complete {NOT_KEPT} | fail | cancelled:
        enqueue a b c; claim 3; report a 1; report b 1; report c 1; release a; claim; report b [3,2]
        settle $end a, $end b; hand_off c; report c 2; finish $end c; amend b attributes=a:1; export 10
A run under a lease is finished: only its holder may end it. Then its outcome expires, and is retried.
    grant; enqueue a; claim; finish complete a; fail a retention=failed:5; wait 5; retry_failed a
Six runs stall and are reaped in portions. The jobs count as retrying, and each stall is logged.
    grant 10; enqueue {{a-f}}; claim; wait 10; reap 3; reap 5; counts; events
A lease is dropped with one of its two runs, renewed and used: it is lost, and its other run is reaped.
    grant 10; enqueue a b; claim; drop 1; renew 10; claim; reap; wait 10; renew 10; claim; reap
A scheduled job fails, and its fail job names the time at which it was due.
    grant hour q q!fail; set fail_handler=yes; enqueue a@5; wait 6; claim; fail a; claim in=q!fail
A run is asked to stop twice, and handed off twice: it ends as cancelled.
    set log_level=all; grant; enqueue a; claim; cancel a running=yes; cancel a running=yes; events
    hand_off a; hand_off a
""")


#: More entries than fit on a page or into one step of a storage, and reads without a limit.
LARGE: Final = read_histories("""
A listing, an export and a log of 101 entries are read without a limit: in pages of at most 100. [uncompared]
    set log_level=all; enqueue j{0-100}
    list waiting limit=100; export 100; wait 1; export 100; wait 1; list waiting limit=100; events 100
1,100 events expire and are pruned, 100 at a time. [uncompared]
    set log_level=all
    times 550: set paused=yes; set paused=no
    wait 2day; prune_all 100 patience=0; events 100
100 jobs are moved 21 times, claimed in two parts, and ended 12 times, half of them once more. [uncompared]
    grant 3day; set retention=completed:hour
    times 7: enqueue j{100-199} priority=1; enqueue j{100-199} delay=hour; enqueue j{100-199} priority=-1
    counts; claim 60; complete last; claim 60; complete last
    times 11: wait 1; enqueue j{100-199}; claim 100; complete last
    wait 1; enqueue j{100-149}; claim 100; complete last
    compare; counts; wait hour; counts; list completed limit=100; prune_all 100; compare
A retention of a job and of a queue is replaced completely by one with a single field.
    enqueue a retention=completed:5000+failed:77; amend a retention=failed:10
    set retention=completed:5000+failed:77; set retention=failed:10
queues() names each queue that got a job: by an enqueue, by a failed settlement, and by a failed finish.
    grant hour q r; set fail_handler=yes; set fail_handler=yes in=r; enqueue a; enqueue a in=r; claim; fail a
    claim in=r; hand_off a in=r; finish fail a in=r; queues
A follow-up of a settlement, and one of a finish, is the first job of another queue.
    grant; enqueue a b; claim; complete a then=c>a+c>b; hand_off b; finish complete b then=d>a; compare q c d
    queues
""")
#: Single changes of one job, a call that logs three events, and single changes of another job. An amend draws
#: no seq, revision or fence, from which an offset could be made.
CHANGES: Final = """
enqueue a; amend a attributes=n:0; amend a attributes=n:1; amend a attributes=n:2
enqueue b c d payload=1; forget c; enqueue e; amend e attributes=n:0; amend e attributes=n:1
"""


def read_log_in_pages(lockstep: Lockstep) -> None:
    """Log events with equal times. Readers with pages of 1, 2, 3 and 100 events get each of them once."""
    player, readers = Player(lockstep), {limit: Reader() for limit in (1, 2, 3, 100)}
    player.play("set log_level=all")
    for reader in readers.values():
        lockstep.skip_to_latest(QUEUE, reader)
    player.play(*unroll(CHANGES.splitlines()))
    for limit, reader in readers.items():
        lockstep.events(QUEUE, reader, limit)


def amend_the_lease(lockstep: Lockstep) -> None:
    """Amend the lease of jobs with and without other overrides: twice while they wait, and during the run."""
    player = Player(lockstep)
    player.play("grant")
    for data in DATA:
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a", data=data))])
        player.play("amend a lease=5", "amend a lease=70000 attributes=b:2", "claim", "amend a lease=9")
        player.play("amend a lease=9 attributes=c:3", "complete a", "amend a lease=9")


def serve_two_queues(lockstep: Lockstep) -> None:
    """Claim in two queues with one call, then fail and end the runs of both and claim the rest."""
    queues = sorted((QUEUE, EVERYWHERE[1]))
    lease = lockstep.grant(queues, HOUR, "kit")
    for queue in queues:
        lockstep.configure(queue, SettingsPatch(fail_handler=True))
        lockstep.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ("a", "b", "c")])
    claims = lockstep.serve([QueueStep(queue, limit=2) for queue in queues], lease)
    lockstep.serve(
        [QueueStep(queue, ends_of(one), 2) for queue, one in zip(queues, claims, strict=True)], lease
    )


def ends_of(claim: ClaimResult) -> list[Settlement]:
    """Return settlements of the claimed runs. The run of `a` fails."""
    ends: dict[str, End] = {"a": Fail(error=OOPS)}
    runs = [(job.id, job.run.fence) for job in claim.jobs if job.run is not None]
    return [Settlement(id=id, fence=fence, action=ends.get(id, Complete())) for id, fence in runs]


def serve_each_state(lockstep: Lockstep) -> None:
    """Serve a free, a full and a paused queue, and one with a dropped lease, with the limits 0, 1 and 5."""
    player, queues = Player(lockstep), ("dropped", "free", "full", "paused")
    player.play(f"grant hour {' '.join(queues)}", *(f"enqueue a b in={queue}" for queue in queues))
    player.play("set max_active=1 in=full", "set paused=yes in=paused", "drop 1 in=dropped")
    for limit, lease in (
        (0, player.calls.lease),
        (0, "unknown"),
        (1, player.calls.lease),
        (5, player.calls.lease),
    ):
        lockstep.serve([QueueStep(queue, limit=limit) for queue in queues], lease)


def serve_wide(lockstep: Lockstep) -> None:
    """Serve 1,000 queues, of which few have a job or a run, and then 1,500 jobs in each of two queues."""
    if not lockstep.storage.capabilities.many_queues:
        return
    player, queues, wide = (
        Player(lockstep),
        [f"many{number:03}" for number in range(1_000)],
        ("wide", "wider"),
    )
    player.play(f"grant hour {' '.join((*queues, *wide))}")
    lease, ends = player.calls.lease, dict[str, list[Settlement]]()
    for queue in queues[::250]:
        lockstep.enqueue(queue, [EnqueueRequest(job=NewJob(id="b"))])
        ends[queue] = ends_of(lockstep.claim(queue, lease, 1))
    for queue in queues[100::300]:
        lockstep.enqueue(queue, [EnqueueRequest(job=NewJob(id="b"))])
    lockstep.serve([QueueStep(queue, ends.get(queue, ()), 2) for queue in queues], lease)
    for queue in wide:
        player.play(f"enqueue {{0-999}} in={queue}", f"enqueue {{1000-1499}} in={queue}")
    claims = lockstep.serve([QueueStep(queue, limit=1_500) for queue in wide], lease)
    lockstep.serve([QueueStep(queue, ends_of(one)) for queue, one in zip(wide, claims, strict=True)], lease)


def signal_to_the_limit(lockstep: Lockstep) -> None:
    """Signal jobs up to the limit of attributes, and beyond it: as they wait, run, and have a successor.

    The name and the value of a signal have 32 KiB together; two fit into one job.
    """
    wide, signals = b'"' + b"x" * (32 * KIB - 3) + b'"', Update(create=False, run_at="wake")

    def signal(name: str, value: bytes = wide, key: str | None = None) -> EnqueueRequest:
        job = NewJob(id="a", data=JobData(attributes={name: value}))
        return EnqueueRequest(job=job, on_conflict=signals, request_key=key, want_outcome=True)

    def send_all() -> None:
        lockstep.enqueue(QUEUE, [signal("s"), signal("u", b"1" + b"0"), signal("t"), signal("u", b"1", "k")])
        lockstep.enqueue(
            QUEUE, [signal("s", b"1"), signal("u", b"2", "k"), signal("u", b"2", "k"), signal("v")]
        )

    player = Player(lockstep)
    player.play("set log_level=all", "grant", "enqueue a", "claim", f"release a {PARK}")
    send_all()
    player.play("claim", "forget a", "enqueue a", "claim")
    send_all()
    player.play(f"release a {PARK}", "claim", "forget a", "enqueue a", "claim", "enqueue a payload=2")
    lockstep.enqueue(QUEUE, [signal("s")])
    player.play("amend a attributes=a:1", "enqueue a payload=3 attributes=b:2")
    send_all()
    player.play("enqueue b", "claim")
    then = [FollowUp(queue=QUEUE, job=signal(name).job, on_conflict=signals) for name in ("w", "x")]
    for id, fence in player.calls.saved["b"].items():
        end = Complete(then=(*then, FollowUp(queue=QUEUE, job=NewJob(id="c"))))
        lockstep.settle(QUEUE, [Settlement(id=id, fence=fence, action=end)])
    player.play("complete a", "claim", "events")


def use_two_handles(lockstep: Lockstep) -> None:
    """Make each call through one of two handles. Each change must show in the other one."""
    player = Player(lockstep)
    for _ in range(3):
        player.play("grant", "enqueue a b", "set paused=yes", "claim", "set paused=no", "claim")
        for id in player.calls.saved["last"]:
            player.play(f"enqueue {id}", f"cancel {id}", f"complete {id}")
        player.play("enqueue a b")
        player.play(
            *("set paused=yes", "enqueue a b", "claim", "set paused=no", "claim", "complete last") * 3
        )
        # A time before that of the last write counts as the time of the write, also of another handle.
        player.play(*("wait 1", "enqueue c", "claim 1 now=now-10") * 8, "cancel a b", "wait 1", "counts")


def move_each_state(lockstep: Lockstep, session: ExampleSession) -> None:
    """Copy a queue whose jobs wait, run, are handed off and have successors and outcomes, with memos."""
    player = Player(lockstep)
    player.play("grant", "enqueue {a-h} payload=1 attributes=a:1", "claim 7", f"report last 0.5 {MEMO}")
    player.play("retry a delay=hour error=Oops", "release b", "hand_off c", "enqueue d payload=2", "fail e")
    player.play("enqueue i j", "claim", f"release i {PARK}", "release j delay=0 parked=yes", "claim 1")
    player.play(f"fail f retention={KEEP}", "complete g result=1", "enqueue d", "cancel d running=yes")
    # The run j has no seq, and draws one in the copy, above that of k, which is due at the same time.
    player.play("enqueue k")
    copy_and_compare(session, lockstep, QUEUE, 3)


#: The histories that compare the state only where they say so.
UNCOMPARED: Final = (*close_values.UNCOMPARED, serve_wide)
LAST: Final[tuple[Callable[[Lockstep], None], ...]] = (
    *(*UPDATES, *SUPERSEDED, *SIGNALS, *MEMOS, *OUTPUTS, *ENDS),
    amend_the_lease,
    signal_to_the_limit,
    *MORE_ENDS,
    *LARGE,
    use_subclasses,
    read_log_in_pages,
    serve_two_queues,
    serve_each_state,
    serve_wide,
)
#: The fixed histories that a durable storage runs again with restarts and compactions.
INTERRUPTED: Final[tuple[FixedHistory, ...]] = tuple(
    history
    for history in FIRST + UPDATES + SUPERSEDED + SIGNALS + MEMOS + OUTPUTS + ENDS
    if "restarts" in history.tags
)


def walk_through(session: ExampleSession) -> None:
    """Run every history. Raise Mismatch for the first wrong result."""
    for first in FIRST:
        play_history(session, first)
    play_history(session, use_two_handles, handles=2)
    play_history(session, lambda lockstep: move_each_state(lockstep, session))
    if session.output:
        play_history(session, lambda lockstep: move_output(lockstep, session))
        play_history(session, import_over_expired_output)
    for play in CLOSE_VALUES + LAST:
        play_history(session, play, compare_each=is_compared(play))


def is_compared(play: Callable[[Lockstep], None]) -> bool:
    """Return whether the state is compared after each call of a history."""
    return play not in UNCOMPARED and "uncompared" not in getattr(play, "tags", ())


#: Bytes of a large payload, and the number of large payloads of `write_until_it_compacts`. Together they are
#: twice the 4 MiB after which the file storage makes a checkpoint.
LARGE_BYTES, LARGE_JOBS = 512 * 1024, 17


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
        if session.output:
            play_history(session, trim_output_and_restart)
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
        data = JobData(payload=bytes([number]) * LARGE_BYTES)
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
