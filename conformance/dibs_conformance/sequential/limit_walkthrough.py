"""The walkthrough of the capability `limits`: fixed histories, also with two handles and with restarts."""

from __future__ import annotations

from dibs.model.requests import Complete, HandOff, StartRate
from dibs_conformance.lockstep.core import OFTEN
from dibs_conformance.sequential import per_key_histories, rate_histories
from dibs_conformance.sequential.keyed_calls import QUEUE, KeyedCalls
from dibs_conformance.sequential.moving import copy_and_compare
from dibs_conformance.sequential.per_key_histories import PER_KEY_HISTORIES
from dibs_conformance.sequential.rate_histories import RATE_HISTORIES
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.sequential.walkthrough import play_history
from dibs_conformance.verbs import Lockstep

#: The histories that run again, with restarts and compactions.
INTERRUPTED = (
    per_key_histories.pass_over_a_full_key,
    per_key_histories.make_room_by_settle_and_claim,
    per_key_histories.change_the_key_of_a_waiting_job,
    per_key_histories.lower_and_raise,
    rate_histories.start_at_a_rate,
    rate_histories.start_keys_at_a_rate,
    rate_histories.charge_each_start_once,
    rate_histories.pass_over_without_charge,
    rate_histories.set_the_same_rate,
    rate_histories.prune_clocks,
)
#: The histories whose calls also go through two handles.
SHARED = (
    per_key_histories.make_room_by_settling,
    per_key_histories.make_room_by_id,
    per_key_histories.lower_and_raise,
    rate_histories.start_keys_at_a_rate,
    rate_histories.set_the_same_rate,
)


def walk_through_limits(session: ExampleSession) -> None:
    """Run every history about keys and limits, if the storage claims the capability."""
    if not session.limits:
        return
    for play in (*PER_KEY_HISTORIES, *RATE_HISTORIES):
        play_history(session, play)
    for play in SHARED if session.handles else ():
        play_history(session, play, handles=2)
    for play in INTERRUPTED if session.durable or session.compacts else ():
        play_history(session, play, interruptions=session.interruptions(OFTEN))
    play_history(session, lambda lockstep: move_with_limits(lockstep, session))


def move_with_limits(lockstep: Lockstep, session: ExampleSession) -> None:
    """Copy a queue with full and closed keys. The copy has its keys and settings, and no clocks."""
    calls = KeyedCalls(lockstep, per_key=2, key_rate=StartRate(1, 10, 2), rate=StartRate(1, 10, 5))
    calls.enqueue("a:k", "b:k", "c:k", "d:m", "e:m", "f", "g:n")
    runs = calls.claim()
    calls.enqueue("a:m")
    calls.settle({"b": runs["b"]}, HandOff())
    calls.settle({"d": runs["d"]}, Complete())
    copy_and_compare(session, lockstep, QUEUE, 2)
