"""The optional abilities that a storage declares. The conformance kit tests each flag, true or false."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Capabilities:
    """The abilities of a storage beyond the contract. Each flag is False unless the storage sets it."""

    #: Accepted jobs survive the death of every process that uses the storage.
    durable: bool = False
    #: Several processes may open the same storage at once.
    shared: bool = False
    #: The follow-ups of Complete and Fail may go to other queues, in the same atomic step.
    cross_queue: bool = False
    #: Enqueue and settle can run inside a transaction of the caller's connection (protocol.Transactions).
    transactions: bool = False
    #: A change in a queue ends `Storage.wait` at once; without this ability `wait` polls.
    push_wakeups: bool = False
    #: The storage can be opened with clock="manual", and then takes the time from the caller.
    manual_clock: bool = False
    #: The time is that of a server: the clock of a client has no influence. Without this ability, the storage
    #: takes the clock of the machine.
    server_clock: bool = False
    #: A claim can wait at the server until a job is due (protocol.BlockingClaims).
    blocking_claim: bool = False
    #: Claims obey the settings `per_key`, `rate` and `key_rate`. Without this ability, `configure` refuses
    #: them.
    limits: bool = False
    #: Claims obey the settings `fair` and `shares`. Without this ability, `configure` refuses them.
    fair: bool = False
    #: A report takes chunks of output, and `events` reads the output of an id. Without this ability, both are
    #: refused.
    output: bool = False
    #: One request serves several queues (many_queues.ManyQueues). `wait` then sends requests for all queues
    #: together.
    many_queues: bool = False
