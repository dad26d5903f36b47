"""Fixed histories about `rate` and `key_rate`: when a run may start, and the changes that charge no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dibs.model.job import Error
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
    StartRate,
)
from dibs_conformance.sequential.keyed_calls import QUEUE, KeyedCalls
from dibs_conformance.verbs import Lockstep

#: One start each 10 ms.
SLOW: Final = StartRate(1, 10)
#: Two starts at once, then one each 10 ms.
BURST: Final = StartRate(1, 10, 2)
#: Three starts at once, then one each 1/3 ms. Its interval is rounded up from 333.3 µs to 334 µs.
THIRDS: Final = StartRate(3, 1, 3)
MANY: Final = tuple(f"j{n:02}" for n in range(20))
KEYED: Final = tuple(f"{id}:k" for id in MANY)
ACTIONS: Final[tuple[SettleAction, ...]] = (
    Release(),
    RetryLater(),
    Complete(),
    Fail(error=Error(type="Oops")),
    Cancelled(),
    HandOff(),
)


def start_at_a_rate(lockstep: Lockstep) -> None:
    """Claim 1 ms before, at and after each time at which the queue may start a run."""
    calls = KeyedCalls(lockstep, rate=BURST)
    calls.enqueue(*MANY)
    calls.claim()
    for ms in (9, 1, 9, 1, 11, 8, 1):
        calls.pass_time(ms)
        calls.claim()


def start_keys_at_a_rate(lockstep: Lockstep) -> None:
    """Claim jobs of two keys and of none under a rate of each key."""
    calls = KeyedCalls(lockstep, key_rate=BURST)
    calls.enqueue("a:k", "b:k", "c:k", "d:m", "e", "f", "g:m", "h:k")
    calls.claim(3)
    for ms in (0, 9, 1, 9, 1, 10):
        calls.pass_time(ms)
        calls.claim()


def claim_up_to_a_closed_key(lockstep: Lockstep) -> None:
    """Claim as many jobs as the limit allows. `next_due` is when the key of the next job opens."""
    calls = KeyedCalls(lockstep, key_rate=SLOW)
    calls.enqueue("a:k", "b:k")
    calls.enqueue("later:k", delay=50)
    for ms in (0, 9, 1):
        calls.pass_time(ms)
        calls.claim(1)


def round_the_interval(lockstep: Lockstep) -> None:
    """Start runs at a rate whose interval is no whole number of µs, at each ms."""
    for limits in ({"rate": THIRDS, "key_rate": None}, {"rate": None, "key_rate": THIRDS}):
        calls = KeyedCalls(lockstep, **limits)
        calls.enqueue(*KEYED)
        for _ in range(5):
            calls.claim()
            calls.pass_time(1)
        lockstep.forget(QUEUE, MANY)


def save_no_starts(lockstep: Lockstep) -> None:
    """Start no run for a long time. Then no more runs start than the burst, and the next ones at the rate."""
    for limits in ({"rate": BURST, "key_rate": None}, {"rate": None, "key_rate": BURST}):
        calls = KeyedCalls(lockstep, **limits)
        calls.enqueue(*KEYED)
        for ms in (1000, 5, 60_000, 10, 10):
            calls.claim()
            calls.pass_time(ms)
        lockstep.forget(QUEUE, MANY)


def charge_each_start_once(lockstep: Lockstep) -> None:
    """Settle a run in each way at once. Its start stays charged: the next run starts at the rate."""
    for limits in ({"rate": SLOW, "key_rate": None}, {"rate": None, "key_rate": SLOW}):
        for action in ACTIONS:
            calls = KeyedCalls(lockstep, **limits)
            calls.enqueue("a:k", "b:k")
            calls.settle(calls.claim(), action)
            calls.claim()
            calls.pass_time(9)
            calls.claim()
            calls.pass_time(1)
            calls.claim()
            lockstep.forget(QUEUE, ["a", "b"])
            calls.pass_time(100)


def charge_lost_runs(lockstep: Lockstep) -> None:
    """Drop, reap and forget runs. Their starts stay charged."""
    calls = KeyedCalls(lockstep, rate=StartRate(1, 50), key_rate=StartRate(1, 100))
    calls.enqueue("a:k", "b:m")
    lease = lockstep.grant([QUEUE], 1000, "kit")
    calls.claim(lease=lease)
    lockstep.drop([QUEUE], lease, 10)
    calls.claim()
    calls.pass_time(50)
    calls.claim(lease=lockstep.grant([QUEUE], 10, "kit"))
    calls.pass_time(10)
    lockstep.reap(QUEUE, 10)
    calls.claim()
    calls.pass_time(40)
    calls.claim()
    lockstep.forget(QUEUE, ["a", "b"])
    calls.enqueue("a:k", "b:m")
    for _ in range(3):
        calls.claim()
        calls.pass_time(50)


def pass_over_without_charge(lockstep: Lockstep) -> None:
    """Combine all limits. A job that one limit passes over charges no clock of another."""
    calls = KeyedCalls(lockstep, rate=StartRate(1, 10, 3), key_rate=SLOW)
    calls.enqueue("a:k", "b:k", "c", "d:m", "e:m", "f")
    calls.claim()
    for ms in (9, 1, 10, 10):
        calls.pass_time(ms)
        calls.claim()
    calls.limit(rate=None, key_rate=SLOW, per_key=1)
    calls.enqueue("g:n", "h:n", "i:o")
    runs = calls.claim()
    calls.pass_time(10)
    calls.claim()
    calls.settle(runs, Complete())
    calls.claim()


def set_the_same_rate(lockstep: Lockstep) -> None:
    """Set the same rates again, and other settings. The clocks stay. Then change a rate and lift it."""
    calls = KeyedCalls(lockstep, rate=SLOW, key_rate=SLOW)
    calls.enqueue(*KEYED)
    calls.claim()
    calls.limit(rate=StartRate(1, 10), key_rate=StartRate(1, 10, 1))
    calls.claim()
    calls.limit(max_active=5, per_key=4)
    calls.claim()
    for changed in (StartRate(1, 20), StartRate(2, 20), None, StartRate(2, 20), SLOW):
        calls.limit(rate=changed)
        calls.claim()
        calls.limit(key_rate=changed)
        calls.claim()


def lift_the_rate(lockstep: Lockstep) -> None:
    """Lift a rate. All jobs that it held are taken, in order."""
    calls = KeyedCalls(lockstep, key_rate=SLOW)
    calls.enqueue(*KEYED[:4], "x:m", "y:m", "z")
    calls.claim()
    calls.claim()
    calls.limit(key_rate=None)
    calls.claim(2)
    calls.claim()
    calls.limit(rate=SLOW)
    calls.enqueue(*KEYED[5:8])
    calls.claim()
    calls.limit(rate=None)
    calls.claim()


def change_one_of_two_rates(lockstep: Lockstep) -> None:
    """Change one rate. The clock of the other stays."""
    calls = KeyedCalls(lockstep, rate=SLOW, key_rate=StartRate(1, 30))
    calls.enqueue(*KEYED[:5], "x:m", "y")
    calls.claim()
    calls.limit(rate=BURST)
    calls.claim()
    calls.limit(rate=None)
    calls.claim()
    calls.limit(key_rate=SLOW)
    calls.claim()
    calls.limit(rate=SLOW, key_rate=None)
    for _ in range(3):
        calls.claim()
        calls.pass_time(10)


def open_keys_at_other_times(lockstep: Lockstep) -> None:
    """Close several keys at different times. Each opens at its own time; next_due is the first of them."""
    calls = KeyedCalls(lockstep, key_rate=StartRate(1, 20))
    for id in "abcd":
        calls.enqueue(f"{id}1:{id}", f"{id}2:{id}")
        calls.claim()
        calls.pass_time(4)
    calls.enqueue("s:a", delay=2)
    for ms in (3, 1, 4, 4, 3, 1, 20):
        calls.claim()
        calls.pass_time(ms)


def open_a_full_key(lockstep: Lockstep) -> None:
    """Pass the time at which a key opens while it has no room. next_due must not be in the past."""
    calls = KeyedCalls(lockstep, per_key=1, key_rate=SLOW, rate=BURST)
    calls.enqueue("a:k", "b:k")
    runs = calls.claim()
    for ms in (5, 5, 1, 100):
        calls.pass_time(ms)
        calls.claim()
    calls.settle(runs, Complete())
    runs = calls.claim()
    calls.enqueue("c:k")
    calls.pass_time(5)
    calls.settle(runs, Complete())
    calls.claim()
    calls.pass_time(5)
    calls.claim()


def schedule_under_a_rate(lockstep: Lockstep) -> None:
    """Schedule jobs that fall due before and after their key opens."""
    calls = KeyedCalls(lockstep, key_rate=StartRate(1, 20), rate=StartRate(1, 5))
    calls.enqueue("a:k")
    calls.claim()
    calls.enqueue("b:k", delay=10)
    calls.enqueue("c:k", delay=30)
    calls.enqueue("d:m", delay=3)
    for ms in (3, 2, 5, 9, 1, 10, 9, 1, 20):
        calls.claim()
        calls.pass_time(ms)


def limit_a_claim(lockstep: Lockstep) -> None:
    """Claim one job at a time under a burst. The next claim takes a job that the limit left."""
    calls = KeyedCalls(lockstep, rate=StartRate(2, 10, 3), key_rate=BURST)
    calls.enqueue("a:k", "b:m", "c:k", "d:k", "e:m", "f")
    for ms in (0, 0, 0, 4, 1, 5, 5):
        calls.claim(1)
        calls.pass_time(ms)


def change_key_under_a_rate(lockstep: Lockstep) -> None:
    """Update jobs of a closed key with another key, and jobs of another key with the closed one."""
    calls = KeyedCalls(lockstep, key_rate=SLOW)
    calls.enqueue("a:k", "b:k", "c:k")
    runs = calls.claim()
    calls.enqueue("b:m", "a:m")
    calls.claim()
    calls.settle(runs, Complete())
    calls.claim()
    calls.enqueue("d", "e:n")
    calls.enqueue("d:k", "e:m")
    for ms in (9, 1, 9, 1):
        calls.claim()
        calls.pass_time(ms)


def pause_under_a_rate(lockstep: Lockstep) -> None:
    """Claim from a paused queue with a rate. The claim charges no clock."""
    calls = KeyedCalls(lockstep, rate=SLOW, key_rate=SLOW, paused=True)
    calls.enqueue("a:k", "b:k")
    calls.claim()
    calls.limit(paused=False)
    calls.claim()
    calls.limit(paused=True)
    calls.claim()
    calls.pass_time(10)
    calls.limit(paused=False, max_active=1)
    calls.claim()
    calls.limit(max_active=2)
    calls.claim()


def prune_clocks(lockstep: Lockstep) -> None:
    """Prune while clocks are ahead of now. Only the clocks that are not ahead may go."""
    slow = StartRate(1, 50, 2)
    for limits in ({"rate": slow, "key_rate": None}, {"rate": None, "key_rate": slow}):
        calls = KeyedCalls(lockstep, **limits)
        calls.enqueue(*KEYED[:6], *(f"m{n}:m{n}" for n in range(6)))
        for at in range(6, 10):
            calls.claim(9)
            lockstep.prune_all(QUEUE, 2)
            calls.enqueue(KEYED[at])
            calls.claim()
            calls.pass_time(25)
        lockstep.forget(QUEUE, [*MANY, *(f"m{n}" for n in range(6))])


def use_all_of_a_large_rate(lockstep: Lockstep) -> None:
    """Set the slowest and the fastest rates of the contract."""
    day = 86_400_000
    for rate in (
        StartRate(1, 31 * day, 11),
        StartRate(1_000_000, 1000, 1_000_000),
        StartRate(1_000_000, 31 * day),
    ):
        calls = KeyedCalls(lockstep, rate=rate, key_rate=rate)
        calls.enqueue(*KEYED)
        calls.claim(11)
        calls.claim(100)
        for _ in range(3):
            calls.pass_time(31 * day // 2)
            calls.lease = lockstep.grant([QUEUE], 31 * day, "kit")
            calls.claim(100)
        lockstep.forget(QUEUE, MANY)


RATE_HISTORIES: Final[tuple[Callable[[Lockstep], None], ...]] = (
    start_at_a_rate,
    start_keys_at_a_rate,
    claim_up_to_a_closed_key,
    round_the_interval,
    save_no_starts,
    charge_each_start_once,
    charge_lost_runs,
    pass_over_without_charge,
    set_the_same_rate,
    lift_the_rate,
    change_one_of_two_rates,
    open_keys_at_other_times,
    open_a_full_key,
    schedule_under_a_rate,
    limit_a_claim,
    change_key_under_a_rate,
    pause_under_a_rate,
    prune_clocks,
    use_all_of_a_large_rate,
)
