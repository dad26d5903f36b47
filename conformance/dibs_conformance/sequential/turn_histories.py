"""The fixed histories of the capability `fair`: the order of keys, shares, and paused keys.

Each history stops where a simple bug shows: in the claim after the change.
"""

from __future__ import annotations

from typing import Final

from dibs_conformance.lockstep import OFTEN
from dibs_conformance.sequential.scripts import QUEUE, Player, copy_and_compare, play_history, read_histories
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.verbs import Lockstep

#: The order of claims in a queue with `fair`.
TURNS: Final = read_histories("""
Keys take turns, also within one claim, and jobs without a key take one together. [restarts, handles]
    set fair=yes; grant; enqueue {a-e}:k; enqueue f:m g:m h i; enqueue j:n k:m l; claim 1; claim 2; claim 5
    enqueue m:k n:n; claim
A key with a flood of jobs beside keys that come later. [restarts, handles]
    set fair=yes; grant; enqueue f{0-19}:flood; claim 3
    each $key = m n o: enqueue a$key:$key b$key:$key; claim 1; claim 2
    claim 3; claim
A key has one place for all its priorities. [restarts]
    set fair=yes; grant; enqueue a:k!1 b:k c:m d:m e:m!-1 f:k!-1; claim 1; claim 2; claim
    enqueue g:k h:m!1 i:n!1 j:k!1
    claim 1; claim 1; claim
The priority comes first, and within a key the time and the seq. [handles]
    set fair=yes; grant; enqueue a:k@5 b:k!5 c:k d:m@3 e:m; wait 5; claim 2; enqueue f:n!3 g:k@3 h:k; wait 3
    claim 1; claim
A key that has lost its last waiting job comes to the back. [restarts, handles]
    each $end = cancel forget:
        set fair=yes; grant; enqueue a:k b:m c:n; $end a; enqueue d:k e:m f:n; claim 3; claim 3
        enqueue g:k h:m i:n; claim 1; enqueue j:k; claim
A key keeps its place while a job of it waits, due or not. [restarts]
    set fair=yes; grant; enqueue a:k@50 b:m c:k@60 d:m; claim 1; enqueue e:k; claim 1; enqueue a:k; cancel c
    enqueue f:m
    claim 1; claim
Jobs are updated with another key, with the same one and with none.
    set fair=yes; grant; enqueue a:k b:m c d:n; enqueue a:m; enqueue e:k; enqueue c:n; enqueue f; enqueue b:m
    claim 2; enqueue d:o g:n; claim
Within a call, requests change keys in order.
    set fair=yes; grant; enqueue a:k b:m; enqueue a:n b:k a:k c:m; claim 1; claim 1; claim
Jobs come back, and their key joins at the back if no other job of it waits. [restarts, handles]
    each $end = retry | retry delay=5 | release | release delay=5:
        set fair=yes; grant; enqueue a:k b:m c:m; runs = claim 1; enqueue d:n; $end runs; wait 5; claim
        forget a b c d
A start counts although its run is released, and a hand-off does not count.
    set fair=yes shares=k:2; grant; enqueue a:k b:k c:m d:k e:m; claim 1; release a; claim 1; claim 1
    hand_off last
    claim 1; claim
Reaped and dropped jobs join, one key after the other. [handles]
    set fair=yes; enqueue a:k b:m c:n; short = grant 10; claim lease=short; enqueue d:m; wait 10; reap 1; reap
    grant; claim 2; short = grant 1000; claim lease=short; drop 1 lease=short; drop lease=short; claim 2
    claim
Two keys are dropped together, and may come back in any order.
    set fair=yes shares=m:2; short = grant 1000; enqueue a:k b:m c:n d:m e:k; claim lease=short
    enqueue f:o; drop lease=short; grant; claim 1; claim 1; enqueue g:k h:m; claim 1; claim 2; claim
A promoted successor, a follow-up, a fail job and a retried job join. [restarts]
    set fair=yes fail_handler=yes; grant; enqueue a:k b:m c:n; claim; enqueue a:k b:o x:p
    complete a then=d:m+e:k
    fail b error=E; fail c error=E; retry_failed c; claim 2; claim
A superseded run that was handed off frees its id for another key.
    set fair=yes; grant; enqueue a:k b:m; claim; hand_off a; enqueue c:n
    enqueue a:m on_conflict=supersede:yes; enqueue d:k; claim 1; claim
Scheduled jobs fall due, and the key has had its place since they were enqueued. [restarts]
    set fair=yes; grant; enqueue a:k@5; enqueue b:m c:m; claim 1; wait 5; claim 1; enqueue d:n@3 e:k@4 f:n
    claim 1
    wait 4; claim 2; claim
A parked job has a place, and a wake moves it not.
    set fair=yes; grant; enqueue a:k; claim; release a delay=50 parked=yes; enqueue b:m c:m d:n; claim 1
    enqueue a on_conflict=create:no+run_at:wake; claim 1; claim
Amended jobs keep the place of their key. [restarts]
    set fair=yes; grant; enqueue a:k b:m c:k d:m; amend a priority=1; amend b delay=5; amend c priority=2
    claim 1
    wait 5; claim 1; claim
Keys move between priorities while claims go on.
    set fair=yes; grant
    each $p = 1 0 -1: enqueue a$p:k!$p b$p:m!$p c$p!$p; claim 2
    claim 1; claim
""")
#: Shares as numbers of starts, and turns after a `configure`.
SHARES: Final = read_histories("""
A key starts as many runs in a turn as its share. [restarts, handles]
    set fair=yes shares=k:3+m:2; grant; enqueue {a-h}:k; enqueue i:m j:m k:m l:m m:n n:n o p; claim 2; claim 3
    claim 4; claim
A turn goes on although the queue has a higher priority meanwhile.
    set fair=yes shares=k:2; grant; enqueue a:k b:k c:k d:m; claim 1; enqueue e:m!1; claim 1; enqueue f:k!1
    claim 1
    claim
A key that leaves begins a new turn when it comes back. [restarts]
    set fair=yes shares=k:3; grant; enqueue a:k; enqueue m{0-3}:m; claim 1; enqueue b:k c:k d:k e:k; claim 2
    claim
    enqueue f:k g:k h:m; claim 2; cancel g; enqueue i:k j:k k:m; claim
A changed share begins the turn of its key anew, in the same place; an equal share changes nothing. [restarts]
    set fair=yes shares=k:3; grant; enqueue j{0-19}:k; enqueue m{0-8}:m; claim 2; set shares=k:2; claim 3
    set shares=k:2+m:3; claim 3; set shares=k:none; claim 4; set shares=m:1+k:1; claim 2; set shares=k:4
    claim
Shares are merged by key; none removes one. Without `fair` they have no weight.
    set shares=k:2+m:0; set shares=n:1000; set shares=k:none+m:3+o:none; grant; enqueue a:k b:m c:k d:m e:m
    claim 3
    set fair=yes; claim; set shares=n:none+m:none; queues
A queue becomes fair several times. Its keys then stand in the order of their first jobs. [restarts, handles]
    grant; enqueue a:k b:k c:m@5 d!1 e:n!2@50 f:m g:m h:o; set fair=yes; claim 2; enqueue i:p!-1; wait 5
    claim 2
    set fair=no; claim 1; enqueue j:q!1 k:m l:k; set fair=yes; claim 2; set fair=yes max_active=5
    set fair=no fair=yes
    set max_active=none; claim
Turns that were lifted leave nothing behind. [restarts]
    set fair=yes; grant; enqueue a:k b:k c:m d; claim 1; set fair=no; enqueue e:k f g:m; claim 2; set fair=yes
    claim 1; set fair=no; cancel g; enqueue h:k i:m; claim
""")
#: Keys with the share 0.
PAUSED: Final = read_histories("""
A key with the share 0 starts no run. Its active runs go on, and so do other keys. [restarts, handles]
    each $fair = no yes:
        grant; set fair=$fair; enqueue a:k b:k c:m d e:k f:m; runs = claim 1; set shares=k:0; claim 1
        complete runs
        claim; enqueue g:k!5 h:m; claim; set shares=k:2; claim 2; claim; set shares=k:none; forget {a-h}
A paused key that has no job yet, and one whose jobs are scheduled. [restarts]
    each $fair = no yes:
        set fair=$fair shares=k:0+m:0; grant; enqueue a:k b:m@5 c:n; claim; wait 5; claim; set shares=m:1
        claim
        enqueue d:m; claim; set shares=k:none; claim; set shares=k:none+m:none; forget {a-d}
A paused key wakes no claim until its share is raised.
    set fair=yes; grant; enqueue a:k b:k; claim 1; set shares=k:0; claim; complete a; enqueue c:k; wait 5
    claim
    set shares=k:5; claim
""")
#: Keys that a limit closes keep their place. These histories need the capability `limits`, too.
CLOSED: Final = read_histories("""
A key that is passed over keeps its place and the rest of its share. [restarts, handles]
    set fair=yes shares=k:2 per_key=1; grant; enqueue a:k b:k c:k d:k e:m f:m g:n h:n; claim 1; claim 1
    complete a
    claim 1; claim; complete last; claim; set per_key=none; claim
A key that its clock closes keeps its place. [restarts]
    set fair=yes key_rate=1/10; grant; enqueue a:k b:k c:m d:m e f; claim 2; claim; wait 9; enqueue g:n
    claim; wait 1
    claim 1; claim; set key_rate=none; claim
Jobs without a key are held to the rate of the queue alone.
    set fair=yes per_key=1 key_rate=1/10 rate=1/10/3; grant; enqueue a b c d e:k f:k; claim; claim; wait 10
    claim 1
    wait 10; claim; set rate=none; claim
A key becomes free by an end in the same call. [handles]
    set fair=yes per_key=1 max_active=2; grant; enqueue a:k b:k c:m d:m e:n; claim
    times 4: exchange complete last limit=1
""")
HISTORIES: Final = (*TURNS, *SHARES, *PAUSED, *CLOSED)


def move_with_turns(lockstep: Lockstep, session: ExampleSession) -> None:
    """Copy a fair queue. The copy has its settings, and keys take turns as their jobs are imported."""
    player = Player(lockstep)
    player.play("grant", "set fair=yes shares=k:2+m:0", "enqueue a:m b:k c:k d:k e f:n", "claim 2")
    copy_and_compare(session, lockstep, QUEUE, 2)


def walk_through_turns(session: ExampleSession) -> None:
    """Run every history about turns, if the storage claims the capability.

    Those with the tag `handles` run again with two handles, and those with `restarts` with interruptions.
    """
    if not session.fair:
        return
    for script in HISTORIES if session.limits else (*TURNS, *SHARES, *PAUSED):
        play_history(session, script, compare_each=True)
        if session.handles and "handles" in script.tags:
            play_history(session, script, handles=2)
        if (session.durable or session.compacts) and "restarts" in script.tags:
            play_history(session, script, interruptions=session.interruptions(OFTEN))
    play_history(session, lambda lockstep: move_with_turns(lockstep, session))
