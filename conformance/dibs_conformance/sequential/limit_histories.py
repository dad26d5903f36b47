"""The fixed histories of the capability `limits`: keys, rates, and what makes room under them.

Each history stops where a simple bug shows: in the claim after the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs_conformance.lockstep import OFTEN
from dibs_conformance.sequential.scripts import (
    QUEUE,
    FixedHistory,
    Player,
    copy_and_compare,
    play_history,
    read_histories,
)
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.verbs import Lockstep

#: The runs of a key that count for `per_key`, and the changes that make room for another.
PER_KEY: Final = """
A claim passes over the jobs of a full key, and takes those behind them. [restarts]
    grant; set per_key=1; enqueue a:k b:k c:m d e:k f g:m; claim 2; runs = claim; claim; complete runs; claim
Each settlement of the run of a full key lets the next job of the key be taken. [handles]
    each $end = complete | fail | cancelled | retry | retry delay=5 | release | release delay=5 | hand_off:
        grant; set per_key=1; enqueue a:k b:k; runs = claim; claim; $end runs; claim 1; wait 5; claim
        forget a b
A run parks its job, and makes room for its key; a wake of the job finds the key full.
    grant; set per_key=1; enqueue a:k b:k; claim; release a delay=5 parked=yes; claim
    enqueue a on_conflict=create:no+run_at:wake; claim; complete b; claim; release a delay=5 parked=yes
    enqueue c:k; wait 5; claim 1; enqueue a on_conflict=create:no+run_at:wake; claim; retry last; claim
A settle_and_claim takes the room that its settlement makes, and no more. [restarts]
    grant; set per_key=1; enqueue a:k b:k c:m d:k e:m; claim
    each $end = complete hand_off retry complete: exchange $end last
The runs of an expired lease count until they are reaped, one at a time.
    grant; set per_key=2; enqueue {a-d}:k; short = grant 10; claim lease=short; wait 10; claim
    times 2: reap 1; claim
A lease with two runs of a key is dropped, one run at a time.
    grant; set per_key=2; enqueue {a-d}:k; short = grant 1000; claim lease=short
    times 2: drop 1 lease=short; claim
Runs are forgotten, handed off and finished, and cancelled while they are handed off or held. [handles]
    grant; set per_key=1; enqueue {a-g}:k; claim; forget a; claim; hand_off last; runs = claim
    cancel b c running=yes; claim; release runs; claim; hand_off last; claim; finish complete d; claim
Handed-off runs do not count, and their end makes no room a second time.
    grant; set per_key=1; enqueue {a-f}:k; first = claim; hand_off first; second = claim; hand_off second
    claim; complete first second; claim
A run that is updated with another key counts under its own key, and its successor under none.
    grant; set per_key=1; enqueue a:k; runs = claim; enqueue a:m b:m c:k d:m; taken = claim; complete runs
    claim; complete last; complete taken; claim
A run that is updated with another key, or with none, comes back with the key of the update.
    each $end = retry release:
        each $update = a:m a:
            grant; set per_key=1; enqueue a:k b:k c:m; runs = claim 1; claim; enqueue $update; $end runs
            claim; forget a b c
Jobs of a full key are updated with another key, with none, and without data; others with the full key.
    grant; set per_key=1; enqueue {a-e}:k; claim; enqueue b:m c; enqueue d on_conflict=data:no; claim
    enqueue f g:n h; enqueue f:k g:k; claim; set per_key=none; claim
Amended jobs of a full key keep their key.
    grant; set per_key=1; enqueue {a-e}:k; runs = claim; claim; amend c priority=1
    amend d run_at=now-5 payload=amended; amend e priority=2 delay=5 attributes=a:1; amend a attributes=a:1
    times 4: claim; runs = exchange complete runs; wait 3
The first jobs of a full key are cancelled and forgotten; the next ones are taken in order.
    grant; set per_key=1; enqueue {a-d}:k; runs = claim; claim; cancel b; forget c; enqueue c:k e:k
    times 3: runs = exchange complete runs
Failed jobs with keys are retried while the key is full.
    grant; set per_key=1; enqueue a:k b:m; claim; fail last; enqueue c:k; runs = claim; retry_failed a b
    claim; complete runs; claim
per_key is lowered below the number of runs, raised, and lifted. [restarts, handles]
    grant; set per_key=3; enqueue {a-i}:k; claim; set per_key=1
    each $id = a b c: claim; complete $id
    claim; set per_key=2; claim; set per_key=none; claim
Runs that began before per_key was set count.
    grant; enqueue a:k b:k c:m d:k; claim 3; set per_key=1; claim
    each $id = a b c: complete $id; claim
A job with room under its key waits for room in the queue.
    grant; set per_key=1 max_active=2; enqueue a:k b:k c:m d e:k f:n; claim; claim; complete a; claim
    hand_off last; claim; set max_active=0; claim; set max_active=none; claim
The first job of a key by priority gets the room.
    grant; set per_key=1; enqueue a:k b:m; enqueue c:k!-5 d!-5; enqueue e:k!5 f:m!5; runs = claim 1; claim 2
    enqueue g:k!1000; enqueue h:k!-1000
    times 4: runs = exchange complete runs limit=2
Scheduled jobs of a key fall due before and after it has room.
    grant; set per_key=1; enqueue a:k; enqueue b:k@5; enqueue c:k@20; enqueue d:m@10; runs = claim; wait 5
    claim; complete runs; runs = claim; wait 1; complete runs; claim
    times 2: wait 7; claim
A key of a paused queue gets room.
    grant; set per_key=1; enqueue a:k b:k c:k; runs = claim; set paused=yes; complete runs; claim
    set paused=no; claim
The jobs behind 1,500 jobs of a full key are taken. A claim must not read all of these at once. [uncompared]
    grant; set per_key=1; enqueue {0-999}:k; enqueue {1000-1499}:k x:m y z:m; runs = claim; claim
    complete runs; claim; set per_key=none; claim 1000
Follow-ups have the key of the run, and an active id.
    grant; set per_key=1; enqueue a:k b:m; claim; complete a then=c:k+d:k+b:k; claim; complete b; claim
"""
MORE_PER_KEY: Final = """
A run is updated with other keys, again and again.
    grant; set per_key=1; enqueue a:k b:k; runs = claim
    each $key = m n k m: enqueue a:$key
    retry runs delay=5; claim; enqueue c:m; claim; wait 5; claim
"""
#: When a run may start under `rate` and `key_rate`, and the changes that charge no clock.
RATES: Final = """
Two runs start at once, then one each 10 ms. Claims come 1 ms before, at and after each time. [restarts]
    grant; set rate=1/10/2; enqueue j{0-19}; claim
    each $ms = 9 1 9 1 11 8 1: wait $ms; claim
Keys start runs at a rate; jobs without a key do not wait. [restarts, handles]
    grant; set key_rate=1/10/2; enqueue a:k b:k c:k d:m e f g:m h:k; claim 3
    each $ms = 0 9 1 9 1 10: wait $ms; claim
After a claim of as many jobs as the limit allows, `next_due` is when the key of the next job opens.
    grant; set key_rate=1/10; enqueue a:k b:k; enqueue later:k@50
    each $ms = 0 9 1: wait $ms; claim 1
An interval of 333.3 µs is rounded up to 334 µs.
    each $limits = rate=3/1/3 key_rate=none | rate=none key_rate=3/1/3:
        grant; set $limits; enqueue j{0-19}:k
        times 5: claim; wait 1
        forget j{0-19}
After a long time without a start, no more runs start than the burst.
    each $limits = rate=1/10/2 key_rate=none | rate=none key_rate=1/10/2:
        grant; set $limits; enqueue j{0-19}:k
        each $ms = 1000 5 60000 10 10: claim; wait $ms
        forget j{0-19}
The start of a run stays charged when the run is settled at once. [restarts]
    each $limits = rate=1/10 key_rate=none | rate=none key_rate=1/10:
        each $end = release retry complete fail cancelled hand_off:
            grant; set $limits; enqueue a:k b:k; claim; $end last; claim; wait 9; claim; wait 1; claim
            forget a b; wait 100
The starts of dropped, reaped and forgotten runs stay charged.
    grant; set rate=1/50 key_rate=1/100; enqueue a:k b:m; short = grant 1000; claim lease=short
    drop lease=short; claim; wait 50; short = grant 10; claim lease=short; wait 10; reap; claim; wait 40
    claim; forget a b; enqueue a:k b:m
    times 3: claim; wait 50
A job that one limit passes over charges no clock of another. [restarts]
    grant; set rate=1/10/3 key_rate=1/10; enqueue a:k b:k c d:m e:m f; claim
    each $ms = 9 1 10 10: wait $ms; claim
    set rate=none key_rate=1/10 per_key=1; enqueue g:n h:n i:o; runs = claim; wait 10; claim; complete runs
    claim
The clocks stay when the same rates are set again. Then a rate is changed and lifted. [restarts, handles]
    grant; set rate=1/10 key_rate=1/10; enqueue j{0-19}:k; claim; set rate=1/10 key_rate=1/10/1; claim
    set max_active=5 per_key=4; claim
    each $rate = 1/20 2/20 none 2/20 1/10: set rate=$rate; claim; set key_rate=$rate; claim
When a rate is lifted, all jobs that it held are taken, in order.
    grant; set key_rate=1/10; enqueue j{0-3}:k x:m y:m z; claim; claim; set key_rate=none; claim 2; claim
    set rate=1/10; enqueue j{5-7}:k; claim; set rate=none; claim
When one rate is changed, the clock of the other stays.
    grant; set rate=1/10 key_rate=1/30; enqueue j{0-4}:k x:m y; claim; set rate=1/10/2; claim; set rate=none
    claim; set key_rate=1/10; claim; set rate=1/10 key_rate=none
    times 3: claim; wait 10
Keys that closed at different times open at different times, and next_due is the first of them.
    grant; set key_rate=1/20
    each $key = a b c d: enqueue $key1:$key $key2:$key; claim; wait 4
    enqueue s:a@2
    each $ms = 3 1 4 4 3 1 20: claim; wait $ms
A key opens while it has no room; next_due is not in the past.
    grant; set per_key=1 key_rate=1/10 rate=1/10/2; enqueue a:k b:k; runs = claim
    each $ms = 5 5 1 100: wait $ms; claim
    complete runs; runs = claim; enqueue c:k; wait 5; complete runs; claim; wait 5; claim
Scheduled jobs fall due before and after their key opens.
    grant; set key_rate=1/20 rate=1/5; enqueue a:k; claim; enqueue b:k@10; enqueue c:k@30; enqueue d:m@3
    each $ms = 3 2 5 9 1 10 9 1 20: claim; wait $ms
Claims of one job under a burst: the next claim takes a job that the limit left.
    grant; set rate=2/10/3 key_rate=1/10/2; enqueue a:k b:m c:k d:k e:m f
    each $ms = 0 0 0 4 1 5 5: claim 1; wait $ms
Jobs of a closed key are updated with another key, and jobs of another key with the closed one.
    grant; set key_rate=1/10; enqueue a:k b:k c:k; runs = claim; enqueue b:m a:m; claim; complete runs; claim
    enqueue d e:n; enqueue d:k e:m
    each $ms = 9 1 9 1: claim; wait $ms
The claim of a paused queue charges no clock.
    grant; set rate=1/10 key_rate=1/10 paused=yes; enqueue a:k b:k; claim; set paused=no; claim
    set paused=yes; claim; wait 10; set paused=no max_active=1; claim; set max_active=2; claim
A prune removes only the clocks that are not ahead of now. [restarts]
    each $limits = rate=1/50/2 key_rate=none | rate=none key_rate=1/50/2:
        grant; set $limits; enqueue j{0-5}:k m0:m0 m1:m1 m2:m2 m3:m3 m4:m4 m5:m5
        each $id = j06 j07 j08 j09: claim 9; prune_all 2; enqueue $id:k; claim; wait 25
        forget j{0-19} m0 m1 m2 m3 m4 m5
The slowest and the fastest rates of the contract are used up.
    each $rate = 1/2678400000/11 1000000/1000/1000000 1000000/2678400000:
        grant; set rate=$rate key_rate=$rate; enqueue j{0-19}:k; claim 11; claim 100
        times 3: wait 1339200000; grant 31day; claim 100
        forget j{0-19}
"""
#: Settlements with costs. A start is 1,000; a dear run holds the next ones back, a cheap one lets them start.
COSTS: Final = """
Runs that were worth more than a start are paid by the queue and by their key. [restarts]
    each $limits = rate=1/10 key_rate=none | rate=none key_rate=1/10 | rate=2/10/2 key_rate=1/10/2:
        each $cost = 1001 2500 3000:
            grant; set $limits; enqueue a:k b:k c:m d; claim; complete last cost=$cost; claim
            each $ms = 9 1 5 9 1 1 10 20: wait $ms; claim
            forget a b c d; set rate=none key_rate=none
Runs that were worth less give the rest of their start back, each once. [restarts, handles]
    each $limits = rate=1/10 key_rate=none | rate=none key_rate=1/10 | rate=1/10/3 key_rate=1/10/2:
        each $cost = 0 1 500 999 1000:
            grant; set $limits; enqueue {a-f}:k; runs = claim; complete runs cost=$cost
            complete runs cost=$cost; claim
            each $ms = 4 1 4 1 10: wait $ms; claim
            forget {a-f}; set rate=none key_rate=none
The cost of a run moves the clocks with each action that takes effect. [restarts]
    each $limits = rate=1/10/2 | key_rate=1/10/2:
        each $end = complete | fail | cancelled | retry delay=5 | release | release delay=5 | hand_off:
            each $cost = 0 2000:
                grant; set $limits; enqueue a:k b:k c:k d:k; claim; $end a cost=$cost; claim 1
                each $ms = 9 1 9 1: wait $ms; claim
                forget a b c d; wait 100
A run whose cancellation was requested ends instead of returning, and pays.
    grant; set rate=1/10; enqueue a b c; claim; cancel a running=yes; retry a cost=0; claim
    cancel b running=yes; release b cost=3000; claim; wait 29; claim; wait 1; claim
A settlement that is lost, refused or repeated moves no clock, or that of a handed-off run. [restarts]
    grant; set rate=1/10/4 key_rate=1/10/4; enqueue {a-d}:k e:k f:k; runs = claim; complete a cost=0
    claim; complete a cost=0; complete a cost=9000; claim; hand_off b; complete b cost=0; claim
    hand_off c cost=500; release c cost=0; complete c cost=0; claim; forget d; complete d cost=0; claim
    wait 5; claim; wait 5; claim
A cost out of range is refused, the settlements beside it are not.
    grant; set rate=1/10/2; enqueue a b c d; claim
    settle complete a cost=1000000001, complete b cost=0; claim; retry a cost=-1; claim; complete a cost=0
    claim
A late run saves nothing up: its clock lies behind now. [restarts]
    each $limits = rate=1/10/2 key_rate=none | rate=none key_rate=1/10/2:
        grant; set $limits; enqueue {a-h}:k; claim 2; wait 100; complete a b cost=0; claim
        complete last cost=0; claim; wait 10; claim
        forget {a-h}; wait 100
A dear run that ends late pays from now on, and each of several runs from its own end. [restarts]
    each $limits = rate=1/10/2 key_rate=none | rate=none key_rate=1/10/2:
        grant; set $limits; enqueue {a-h}:k; claim 2; wait 100; complete a cost=3000; claim; wait 9; claim
        wait 1; claim; complete last cost=4000; wait 100; complete b cost=2000; wait 9; claim; wait 1; claim
        forget {a-h}; wait 100
A changed rate forgets the costs that were charged to it, and the other rate keeps them. [restarts]
    grant; set rate=1/10/4 key_rate=1/10/4; enqueue {a-j}:k m:m n:n; claim 3; complete a cost=4000
    set key_rate=1/20/2; claim 1; complete b cost=5000; set rate=1/20/3; claim; wait 19; claim; wait 1; claim
    wait 60; claim
The costs of one call are charged in order.
    each $limits = rate=3/10/5 key_rate=none | rate=none key_rate=3/10/5:
        grant; set $limits; enqueue j{0-19}:k; claim 5
        settle complete j00 cost=0, complete j01 cost=2500, complete j02 cost=100, complete j03 cost=0; claim
        each $ms = 1 1 1 3 3 3: wait $ms; claim
        forget j{0-19}; wait 1000
A part of an interval is rounded up when it is charged, and down when it is given back.
    each $limits = rate=3/1/3 key_rate=none | rate=none key_rate=3/1/3:
        each $cost = 1 333 667 1001 1334 4001:
            grant; set $limits; enqueue j{0-29}:k
            times 6: claim 3; complete last cost=$cost; wait 1
            forget j{0-29}; wait 100
A settle_and_claim claims by the clocks that its settlements have moved.
    grant; set rate=1/10 key_rate=1/10; enqueue a:k b:k c:k; claim; exchange complete last cost=0
    exchange complete last cost=3000; wait 10; claim; wait 19; claim; wait 1; claim
A run pays as its key, which an update meanwhile changes, and for the rates that are set then.
    grant; set key_rate=1/10; enqueue a:k b:k c:m; claim; enqueue a:m; complete a cost=5000; claim; wait 10
    claim; wait 40; claim; set key_rate=1/20; complete last cost=0; claim; set rate=1/10; claim
    set key_rate=none; enqueue x:k y:k; claim 1; set rate=1/5; complete last cost=4000; claim; wait 15; claim
A clock is at most 366 days ahead, also by the slowest rates.
    each $limits = rate=1/60000 key_rate=none | rate=1/2678400000/11 key_rate=1/2678400000/11:
        grant; set $limits; enqueue {a-c}:k; claim 1; complete a cost=1000000000; claim 1
        wait 31622399999; grant 31day; claim 1; wait 1; claim 1; forget {a-c}; set rate=none key_rate=none
A full key with a dear run opens when both limits allow it; a cheap run opens it at once. [handles]
    grant; set per_key=1 key_rate=1/10; enqueue a:k b:k c:k; enqueue d:k!5@3; runs = claim; claim
    complete runs cost=2500; claim; wait 24; claim; wait 1; runs = claim; wait 1; complete runs cost=0
    runs = claim; complete runs cost=0; claim
Jobs of several keys wait for runs that turn out cheap and dear. Prunes remove no clock that counts.
    grant; set key_rate=1/20 rate=1/2/4
    each $key = k m n: enqueue {a-c}$key:$key; claim
    complete ak cost=0; complete am cost=7000; prune_all 2; claim; complete an cost=500; claim
    each $ms = 3 7 10 20 90: wait $ms; prune_all 2; claim
A holder whose run is gone pays nothing.
    grant; set rate=1/10; enqueue a b c; short = grant 5; runs = claim lease=short; wait 5; reap
    complete runs cost=0; claim; complete runs cost=9000; wait 5; claim; forget b; complete b cost=0; claim
    wait 10; claim
"""
#: The waiting jobs that count for `max_waiting`, what it stops, and what may exceed it.
BOUNDS: Final = """
The last place goes to the first request of a call, and the jobs of the call itself count. [restarts]
    each $when = refuse drop_new:
        set max_waiting=2 when_full=$when; enqueue a b c d want_outcome=yes; enqueue e; cancel a
        enqueue e f; enqueue g; forget b e f
Scheduled and keyed jobs count, of each priority; active and blocked ones do not. [restarts, handles]
    grant; set max_waiting=4 per_key=1; enqueue a:k; runs = claim; enqueue a b:k!5 c@50 d!-5; enqueue e f
    claim; enqueue e f; wait 50; enqueue g; claim; enqueue g h i j k
Retrying and released jobs count, handed-off runs do not. [restarts, handles]
    grant; set max_waiting=2; enqueue a b; claim; enqueue c d e; retry a delay=9; enqueue f; release b
    enqueue f; claim; enqueue f g; hand_off last; enqueue g h; wait 9; enqueue i; claim; enqueue i j k
A queue at its bound accepts updates, duplicates and successors, and answers what it kept. [restarts]
    grant; enqueue x y z; claim; complete x; fail y error=E; enqueue a b; set max_waiting=1
    enqueue a payload=2, z, z, b on_conflict=reject, x y on_conflict=reject_failed, x y on_conflict=reject
    enqueue a x none on_conflict=create:no, x want_outcome=yes, z on_conflict=reject; claim 1; enqueue a b x
An id occurs twice in a call, with a place for one.
    set max_waiting=2; enqueue a; enqueue b c b a c; cancel b; enqueue c payload=1, c payload=2, b
Jobs come back, are promoted, follow, fail and are retried above the bound. [restarts]
    each $when = refuse drop_new:
        grant; set fail_handler=yes; enqueue {a-f}; claim; enqueue a b; set max_waiting=1 when_full=$when
        complete a then=g+h+i; enqueue new; fail b error=E then=j; retry c delay=7; release d
        enqueue new; fail e error=E; retry_failed e; enqueue new; claim; enqueue new; compare
        forget a b c d e f g h i j new; set max_waiting=none fail_handler=no
A successor that an update promotes counts for the later requests of its call. [restarts]
    grant; enqueue a b; claim; hand_off a; hand_off b; set max_waiting=2
    enqueue c, a b on_conflict=supersede:yes, d; enqueue e
A lease ends, and its jobs come back above the bound.
    short = grant 5; set max_waiting=2; enqueue a b; claim lease=short; enqueue c d e; wait 5; enqueue f
    reap 9; enqueue f; grant; claim 3; enqueue f; claim 1; enqueue f g
The bound of one queue is not that of another, and does not stop a follow-up from there.
    set max_waiting=1 in=other; grant; enqueue a b c; enqueue a b in=other; claim
    complete a then=other>a+other>c; enqueue d in=other; counts q other
A request key is remembered from the first request on that is not stopped. [restarts]
    each $when = refuse drop_new:
        set max_waiting=1 when_full=$when; enqueue a; enqueue b request_key=$when
        enqueue b request_key=$when; forget a; enqueue c request_key=$when; enqueue b request_key=$when
        enqueue d; forget c; prune_all 9
A full queue remembers the request key of an update, and takes an expired one again.
    set max_waiting=1; enqueue a request_key=k; wait hour; enqueue b request_key=k; enqueue a request_key=k
    enqueue b request_key=k; prune_all 9
The bound is lowered, raised and lifted. [restarts, handles]
    enqueue a b; set max_waiting=1; enqueue c; set max_waiting=3; enqueue c d; set when_full=drop_new
    enqueue d; set max_waiting=none; enqueue d e f; set max_waiting=6; enqueue g h
    set when_full=refuse max_waiting=1; enqueue h
A stopped request makes no event, and the older outcome of its id stays.
    grant; set log_level=all; enqueue a b; claim 1; complete a; set max_waiting=1
    enqueue a c want_outcome=yes; events 50; compare; claim; complete b; enqueue c; events 50; queues
The batch that fills a queue of a thousand jobs gets its last places in order. [uncompared]
    set max_waiting=990; enqueue {0-900}; enqueue {850-949} a {950-999} b; enqueue c; cancel 07
    enqueue d {0-9} e
"""


def close_many_keys(lockstep: Lockstep) -> None:
    """Fill 12 keys, and free them in another order. Then fill 600 keys at once."""
    player = Player(lockstep)
    keys = [f"k{n}" for n in range(12)]
    jobs = " ".join(f"{key}{n}:{key}" for n in range(3) for key in keys)
    player.play("grant", "set per_key=1", f"enqueue {jobs}", "runs = claim 100", "claim 100")
    player.play(*(f"complete {id}" for id in sorted(player.calls.saved["runs"], reverse=True)[:6]))
    player.play("claim 4", "claim 100", "set per_key=none", "claim 100", "set per_key=1")
    more = [" ".join(f"{n}-{at}:m{at}" for at in range(600)) for n in range(2)]
    player.play(*(f"enqueue {ids}" for ids in more), "claim 1000", "claim 1000")


def take_keys_of_all_lengths(lockstep: Lockstep) -> None:
    """Use keys with special characters, of 128 bytes, and keys that differ only in case or in their ends."""
    player = Player(lockstep)
    player.play("grant", "set per_key=1")
    keys = ("k", "K", "k ", 'k{"}\n\\%', "é" * 64, "é" * 63 + "e", "0", "None")
    jobs = [(f"{n}{at}", key) for n in range(2) for at, key in enumerate(keys)]
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, data=JobData(key=key))) for id, key in jobs])
    player.play("runs = claim 100", "claim 100", "complete runs", "claim 100")


SCRIPTS: Final[tuple[FixedHistory, ...]] = (
    *read_histories(PER_KEY),
    *read_histories(MORE_PER_KEY),
    *read_histories(RATES),
    *read_histories(COSTS),
    *read_histories(BOUNDS),
)
HISTORIES: Final[tuple[Callable[[Lockstep], None], ...]] = (
    *read_histories(PER_KEY),
    close_many_keys,
    take_keys_of_all_lengths,
    *read_histories(MORE_PER_KEY),
    *read_histories(RATES),
    *read_histories(COSTS),
    *read_histories(BOUNDS),
)


def walk_through_limits(session: ExampleSession) -> None:
    """Run every history about keys and limits, if the storage claims the capability.

    Those with the tag `handles` run again with two handles, and those with `restarts` with interruptions.
    """
    if not session.limits:
        return
    for play in HISTORIES:
        play_history(session, play, compare_each="uncompared" not in getattr(play, "tags", ()))
    for script in SCRIPTS:
        if session.handles and "handles" in script.tags:
            play_history(session, script, handles=2)
    for script in SCRIPTS:
        if (session.durable or session.compacts) and "restarts" in script.tags:
            play_history(session, script, interruptions=session.interruptions(OFTEN))
    play_history(session, lambda lockstep: move_with_limits(lockstep, session))


def move_with_limits(lockstep: Lockstep, session: ExampleSession) -> None:
    """Copy a queue with full and closed keys. The copy has its keys and settings, and no clocks."""
    player = Player(lockstep)
    player.play("grant", "set per_key=2 key_rate=1/10/2 rate=1/10/5", "enqueue a:k b:k c:k d:m e:m f g:n")
    player.play("claim", "enqueue a:m", "hand_off b", "complete d")
    player.play("set max_waiting=3 when_full=drop_new")
    copy_and_compare(session, lockstep, QUEUE, 2)
