"""The linearizability check of one id: some order of its calls explains every answer.

The steps of a history are applied to the oracle, with the numbers that the storage drew. A history is cut at
each time without a call in flight, so only the number of overlapping calls matters. Outcomes may expire, and
be pruned, at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from math import inf

from attrs import evolve, field, frozen
from msgspec.structs import replace

from dibs.model.job import Error, Job, JobData, NewJob, Outcome, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    HandOff,
    JobPatch,
    Release,
    RetryLater,
    Settings,
    SettleAction,
    Settlement,
    Update,
)
from dibs_conformance.history.by_id import IdSteps, RecordedHistory
from dibs_conformance.oracle import IdRecord, OneOf, Oracle
from dibs_conformance.oracle.ending import end_kind, return_to_waiting
from dibs_conformance.oracle.enqueueing import accept, activate
from dibs_conformance.oracle.ids import AcceptedEnqueue
from dibs_conformance.oracle.numbering import NumberSource
from dibs_conformance.oracle.possible_world import copy_record
from dibs_conformance.oracle.queue import OracleQueue
from dibs_conformance.order_search import OrderSearch, UndecidedOrder
from dibs_conformance.steps import FOLLOWED, RecordedSlot, RecordedStep
from dibs_conformance.verbs.amend import step as amend
from dibs_conformance.verbs.cancel import cancel
from dibs_conformance.verbs.finish import finish_current
from dibs_conformance.verbs.forget import forget
from dibs_conformance.verbs.settle import settle

#: The most calls of an id without an answer, and the tries of a search for each of its steps.
MAX_UNANSWERED, TRIES_PER_STEP = 12, 500
LEAST_TRIES = 5_000
ID, QUEUE = "id", "queue"
FOREVER = OutcomeRetention(completed=None, failed=None, cancelled=None)


def is_linearizable(history: RecordedHistory, id_steps: IdSteps) -> bool:
    """Return whether an order of the calls on an id explains all their answers. Raises UndecidedOrder."""
    steps = calls_on(history, id_steps)
    unanswered = [StepPart(step) for step in steps if step.unknown]
    if len(unanswered) > MAX_UNANSWERED:
        raise UndecidedOrder(f"{len(unanswered)} calls have no answer")
    windows = [*split_into_windows([step for step in steps if not step.unknown], unanswered)]
    tries = LEAST_TRIES + TRIES_PER_STEP * len(steps)
    return OrderSearch(windows, apply, tries, key=key_of).explains(IdWorld())


def calls_on(history: RecordedHistory, id_steps: IdSteps) -> list[RecordedStep]:
    """Return all calls that may have changed the id, in the order they were sent. Raises UndecidedOrder."""
    queue = id_steps.key[0]
    if history.first_unanswered_claim(queue) < inf or queue in history.unanswered_reaps:
        raise UndecidedOrder("a claim or a reap has no answer, so it may have taken any job")
    leases = {claim.lease for claim in id_steps.claims}
    drops = [s for lease in leases for s in history.leases.get(lease, ()) if s.op == "drop"]
    steps = [*id_steps.steps(), *(drop for drop in drops if drop.queue == queue)]
    steps = [step for step in steps if step.status != "refused" or step.op in ("settle", "finish")]
    for step in steps:
        unknown_numbers = step.unknown and step.op in ("enqueue", "retry_failed")
        if unknown_numbers or step.status == FOLLOWED or (step.op, step.status) == ("retry_failed", "queued"):
            raise UndecidedOrder(f"{step.op} {step.status} returned no numbers to the client")
    # settle_and_claim settles first, and then claims.
    return sorted(steps, key=lambda step: (step.began, step.op == "claim"))


@frozen(eq=False)
class StepPart:
    """A step as a part of the search."""

    step: RecordedStep
    #: Position among the steps of the id.
    index: int = 0
    times: tuple[int, ...] = (0,)
    is_pure: bool = False

    @property
    def name(self) -> str:
        return f"{self.step.client}: {self.step.op}"

    @property
    def invoked(self) -> float:
        return self.step.began

    @property
    def returned(self) -> float:
        return inf if self.step.ended is None else self.step.ended

    @property
    def unanswered(self) -> bool:
        return self.step.unknown

    def follows(self, other: object) -> bool:
        return (
            isinstance(other, StepPart)
            and other.index < self.index
            and self.step.call != 0
            and (other.step.client, other.step.call) == (self.step.client, self.step.call)
        )


@frozen
class StepWindow:
    """The steps between two times without a call in flight, and unanswered ones sent until its end."""

    parts: tuple[StepPart, ...]

    def open_parts(self, pending: tuple[StepPart, ...]) -> tuple[StepPart, ...]:
        return (*self.parts, *pending)

    def check(self, world: IdWorld) -> IdWorld:
        return world


def split_into_windows(steps: list[RecordedStep], unanswered: list[StepPart]) -> Iterator[StepWindow]:
    """Cut the answered steps at each time when every call sent before had been answered."""
    window: list[StepPart] = []
    latest = -inf
    waiting = sorted(unanswered, key=lambda part: part.invoked)
    for index, step in enumerate(steps):
        part = StepPart(step, index)
        if window and latest < part.invoked:
            started = [one for one in waiting if one.invoked <= latest]
            yield StepWindow((*window, *started))
            window, waiting = [], waiting[len(started) :]
        window.append(part)
        latest = max(latest, part.returned)
    yield StepWindow((*window, *(one for one in waiting if one.invoked <= latest)))


# -- the oracle of one id ----------------------------------------------------------------------------


@frozen
class IdWorld:
    """The state of one id, with the newest fence and the newest revision it ever had. It never changes."""

    record: IdRecord = field(factory=IdRecord)
    newest_fence: int = 0
    newest_revision: int = 0


def key_of(world: IdWorld) -> Hashable:
    """Return what tells two states of the id apart."""
    job, outcome = world.record.current, world.record.outcome
    run = job.run if job else None
    return (
        (job.first, job.revision, job.data.payload, job.attempts) if job else None,
        (run.fence, run.lease, run.cancel_requested) if run else None,
        tuple(one.revision for one in world.record.during_run if isinstance(one, AcceptedEnqueue)),
        (outcome.kind, outcome.fence, outcome.revision, outcome.result, outcome.expires_at)
        if outcome
        else None,
        world.newest_fence,
        world.newest_revision,
    )


class RecordedNumbers(NumberSource):
    """Draws the number that a step recorded, in place of a new one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def draw(self) -> int:
        return self._number


@frozen
class Attempt:
    """A step that is applied to a copy of a state."""

    step: RecordedStep
    before: IdWorld
    oracle: Oracle
    queue: OracleQueue
    record: IdRecord

    @classmethod
    def of(cls, world: IdWorld, step: RecordedStep) -> Attempt:
        oracle = Oracle(RecordedNumbers(step.fence if step.op == "claim" else step.revision))
        queue = oracle.queue(QUEUE)
        queue.settings = Settings(retention=FOREVER, log_level="off")
        queue.ids[ID] = record = copy_record(world.record)
        return cls(step, world, oracle, queue, record)

    def after(self, **newest: int) -> IdWorld:
        return evolve(self.before, record=self.queue.ids[ID], **newest)


#: An answer, and the state after it.
Answer = tuple[str, IdWorld]


def apply(world: IdWorld, part: StepPart, _: int) -> Iterator[IdWorld]:
    """Yield every state possible after a step with its recorded answer, none if the answer is impossible."""
    step = part.step
    for record in with_expiries(world.record):
        for status, after in ANSWERS[step.op](Attempt.of(evolve(world, record=record), step)):
            if step.unknown or status == step.status:
                yield after


def with_expiries(record: IdRecord) -> Iterator[IdRecord]:
    """Yield the record with its outcome, with an expired outcome, and without one."""
    yield record
    if record.outcome is not None:
        if record.outcome.expires_at is None:
            yield with_outcome(record, replace(record.outcome, expires_at=0))
        yield with_outcome(record, None)


def with_outcome(record: IdRecord, outcome: Outcome | None) -> IdRecord:
    other = copy_record(record)
    other.outcome = outcome
    return other


def enqueued(attempt: Attempt) -> Iterator[Answer]:
    step, record, current = attempt.step, attempt.record, attempt.record.current
    outcome = record.live_outcome(0)
    if step.repeated:
        yield step.status, attempt.before
    elif current is None and not step.creates:
        yield "absent", attempt.before
    elif current is not None and (step.first, step.revision) == (current.first, current.revision):
        yield "duplicate", attempt.before
    elif outcome is not None and current is None and step.status in ("completed", "failed"):
        yield outcome.kind, attempt.before
    elif step.revision > attempt.before.newest_revision:
        job = NewJob(id=ID, data=JobData(payload=step.payload.encode()))
        on_conflict = Update(data=step.replaces, reset_counts=step.resets, create=step.creates)
        answer = accept(attempt.queue, record, job, on_conflict, 0)
        if answer.first == step.first:
            yield answer.status, attempt.after(newest_revision=step.revision)


def imported(attempt: Attempt) -> Iterator[Answer]:
    step, record = attempt.step, attempt.record
    if record.current is not None or record.live_outcome(0) is not None:
        yield "exists", attempt.before
        return
    record.current = Job(
        id=ID,
        data=JobData(payload=step.payload.encode()),
        run_at=0,
        enqueued_at=0,
        seq=0,
        first=step.first,
        revision=step.revision,
    )
    newest = max(attempt.before.newest_revision, step.revision)
    yield "imported", attempt.after(newest_revision=newest)


def claimed(attempt: Attempt) -> Iterator[Answer]:
    step, job = attempt.step, attempt.record.current
    if job is None or job.run is not None or step.fence <= attempt.before.newest_fence:
        return
    if (job.first, job.revision, job.data.payload) != (step.first, step.revision, step.payload.encode()):
        return
    if activate(attempt.queue, job, step.lease, "", 0).attempts == step.attempt:
        yield "taken", attempt.after(newest_fence=step.fence)


def settled(attempt: Attempt) -> Iterator[Answer]:
    settlement = Settlement(id=ID, fence=attempt.step.fence, action=action_of(attempt.step))
    answer = settle(attempt.oracle, attempt.queue, settlement, 0)
    for one in answer.answers if isinstance(answer, OneOf) else (answer,):
        yield one.status, attempt.after()


def finished(attempt: Attempt) -> Iterator[Answer]:
    step, record, outcome = attempt.step, attempt.record, attempt.record.outcome
    end = action_of(step)
    if outcome is not None and outcome.first <= step.revision <= outcome.revision:
        yield ("done" if outcome.kind == end_kind(end) else "lost"), attempt.before
    else:
        assert isinstance(end, Complete | Fail | Cancelled)  # noqa: S101 - a finish has an end
        yield (
            finish_current(attempt.oracle, attempt.queue, record, end, step.revision, 0),
            attempt.after(),
        )


def action_of(step: RecordedStep) -> SettleAction:
    actions: dict[str, SettleAction] = {
        "complete": Complete(result=step.result.encode()),
        "fail": Fail(error=Error(type="E")),
        "cancelled": Cancelled(),
        "retry": RetryLater(),
        "release": Release(),
        "hand_off": HandOff(),
    }
    return actions[step.how]


def reaped(attempt: Attempt) -> Iterator[Answer]:
    run = attempt.record.current.run if attempt.record.current else None
    if run is not None and run.lease is not None and run.fence == attempt.step.fence:
        yield returned(attempt, attempt.step.status if attempt.step.status == "released" else "stalled")


def dropped(attempt: Attempt) -> Iterator[Answer]:
    """Yield the effects of a drop. It names only a lease, so it may have no effect on this run yet."""
    yield "dropped", attempt.before
    run = attempt.record.current.run if attempt.record.current else None
    if run is not None and run.lease == attempt.step.lease:
        yield "dropped", returned(attempt, "released")[1]


def returned(attempt: Attempt, status: str) -> Answer:
    """Return the run to waiting, or end it as cancelled if that was requested."""
    action = RetryLater(cause="stall") if status == "stalled" else Release()
    if return_to_waiting(attempt.queue, attempt.record, action, 0):
        return status, attempt.after()
    return "cancelled", attempt.after()


def cancelled(attempt: Attempt) -> Iterator[Answer]:
    yield cancel(attempt.queue, ID, 0, running=attempt.step.running), attempt.after()


def forgotten(attempt: Attempt) -> Iterator[Answer]:
    yield ("forgotten" if forget(attempt.queue, ID, 0) else "not_found"), attempt.after()


def amended(attempt: Attempt) -> Iterator[Answer]:
    payload = attempt.step.payload
    if attempt.record.current is None:
        yield attempt.step.status, attempt.before
    elif not payload:
        yield "amended", attempt.before
    else:
        yield (
            amend(attempt.oracle, QUEUE, ID, JobPatch(payload=payload.encode()), 0),
            attempt.after(),
        )


def unchanged(attempt: Attempt) -> Iterator[Answer]:
    yield attempt.step.status, attempt.before


def read(attempt: Attempt) -> Iterator[Answer]:
    if attempt.step.read is not None and shows(attempt.step.read, attempt.record):
        yield "read", attempt.before


def shows(read: RecordedSlot, record: IdRecord) -> bool:
    """Return whether a read of this state may give this result."""
    job, successor, outcome, end = record.current, record.successor(), record.live_outcome(0), read.outcome
    actual = (
        (job.first, job.revision) if job else None,
        job.run.fence if job and job.run else 0,
        (successor.first, successor.revision) if successor else None,
        (outcome.kind, outcome.fence, outcome.first, outcome.revision) if outcome else None,
    )
    ended = (end.kind, end.fence, end.first, end.revision) if end else None
    result = end.result if end and end.kind == "completed" else ""
    return actual == (read.current, read.fence, read.successor, ended) and (
        not result or (outcome is not None and outcome.result == result.encode())
    )


#: The possible answers of each operation, with the state after each.
ANSWERS: dict[str, Callable[[Attempt], Iterable[Answer]]] = {
    "enqueue": enqueued,
    "import": imported,
    "claim": claimed,
    "settle": settled,
    "finish": finished,
    "reap": reaped,
    "drop": dropped,
    "cancel": cancelled,
    "forget": forgotten,
    "amend": amended,
    "retry_failed": unchanged,
    "get": read,
}
