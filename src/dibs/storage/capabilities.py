"""What a storage can do beyond the contract. The kit holds each claim against the storage, both ways."""

from __future__ import annotations

from msgspec import Struct


class Capabilities(Struct, frozen=True, kw_only=True):
    """Seven questions with one sentence each."""

    #: What it accepted survives the death of every process that uses it.
    durable: bool = False
    #: Several processes may open the same place at once.
    shared: bool = False
    #: The follow-ups of a Complete or Fail may go to other queues, in the same atomic step.
    cross_queue: bool = False
    #: Enqueue and settle can join a transaction of the caller's own connection.
    transactions: bool = False
    #: A wait is woken by a change, not only by a poll.
    push_wakeups: bool = False
    #: It can be opened with clock="manual", and then takes the time from the caller.
    manual_clock: bool = False
    #: A claim can be left with it, to be made as soon as there may be something (protocol.BlockingClaims).
    blocking_claim: bool = False
