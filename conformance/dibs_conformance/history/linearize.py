"""The linearizability check of one id: some order of its calls explains every answer.

The steps of a history are applied to the oracle, with the numbers that the storage drew. A history is cut at
each time without a call in flight, so only the number of overlapping calls matters. Outcomes may expire, and
be pruned, at any time. A call without an answer may take effect at any time after it was sent, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
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
from dibs_conformance.oracle.changes import accept, activate, end_kind, return_to_waiting
from dibs_conformance.oracle.ids import AcceptedEnqueue
from dibs_conformance.oracle.numbering import NumberSource
from dibs_conformance.oracle.queue import OracleQueue, copy_record
from dibs_conformance.order_search import OrderSearch, UndecidedOrder
from dibs_conformance.steps import FOLLOWED, NO_MEMO, UNKNOWN, RecordedSlot, RecordedStep
from dibs_conformance.verbs import report
from dibs_conformance.verbs.amend import step as amend
from dibs_conformance.verbs.cancel import cancel
from dibs_conformance.verbs.finish import finish_current
from dibs_conformance.verbs.forget import forget
from dibs_conformance.verbs.retry_failed import retry_failed
from dibs_conformance.verbs.settle import settle

#: The most calls of an id without an answer, and the tries of a search for each of its steps.
MAX_UNANSWERED, TRIES_PER_STEP = 40, 500
LEAST_TRIES = 5_000
ID, QUEUE = "id", "queue"
FOREVER = OutcomeRetention(completed=None, failed=None, cancelled=None)
#: Stands for the memo of an imported job, which a history does not show.
ANY_MEMO = b"?"
#: The rules that an enqueue in an event log may have had: the log shows no rule, no client and no payload.
LOGGED_RULES = tuple(
    Update(create=create, reset_counts=reset) for create in (True, False) for reset in (True, False)
)


def find_contradiction(history: RecordedHistory, id_steps: IdSteps) -> RecordedStep | None:
    """Return None if an order of the calls on an id explains all their answers.

    Otherwise return the step that the longest order lacks. Raise UndecidedOrder if there are too many orders.
    """
    if len(history.unanswered.get(id_steps.key[0], ())) > MAX_UNANSWERED:
        raise UndecidedOrder("too many claims and reaps have no answer")
    parts = parts_of(history, id_steps)
    unanswered = [part for part in parts if part.unanswered]
    if len(unanswered) > MAX_UNANSWERED:
        raise UndecidedOrder(f"{len(unanswered)} calls have no answer")
    windows = [*split_into_windows([part for part in parts if not part.unanswered], unanswered)]
    tries = LEAST_TRIES + TRIES_PER_STEP * len(parts)
    search = OrderSearch(windows, IdModel.of(history, id_steps).apply, tries, key=key_of)
    if search.explains(IdWorld()):
        return None
    return search.stuck.step if search.stuck is not None else parts[0].step


def parts_of(history: RecordedHistory, id_steps: IdSteps) -> list[StepPart]:
    """Return all calls that may have changed the id, in the order they were sent. Raises UndecidedOrder."""
    queue = id_steps.key[0]
    leases = {claim.lease for claim in (*id_steps.claims, *history.unanswered.get(queue, ()))}
    drops = [
        s for lease in leases for s in history.leases.get(lease, ()) if s.op == "drop" and s.queue == queue
    ]
    steps = [*id_steps.steps(), *drops, *history.unanswered.get(queue, ())]
    steps = [step for step in steps if step.status != "refused" or step.op in ("settle", "finish")]
    if any(step.op == "import" and not step.revision for step in steps):
        raise UndecidedOrder("a history does not show the outcome in an imported record")
    # settle_and_claim settles first, and then claims.
    steps.sort(key=lambda step: (step.began, step.op == "claim"))
    return [StepPart(step, index) for index, step in enumerate(steps) if step.op != "get" or not step.unknown]


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


def split_into_windows(answered: Sequence[StepPart], unanswered: Sequence[StepPart]) -> Iterator[StepWindow]:
    """Cut the answered steps at each time when every call sent before had been answered."""
    window: list[StepPart] = []
    latest = -inf
    waiting = sorted(unanswered, key=lambda part: part.invoked)
    for part in answered:
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
    newest_revision: float = 0
    #: The storage's time in ms at which the newest run was closed, if an answer contains it.
    closed_at: int = 0

    def with_record(self, record: IdRecord) -> IdWorld:
        return IdWorld(record, self.newest_fence, self.newest_revision, self.closed_at)


def key_of(world: IdWorld) -> Hashable:
    """Return what tells two states of the id apart."""
    job, outcome = world.record.current, world.record.outcome
    run = job.run if job else None
    return (
        (job.first, job.revision, job.data.payload, job.data.memo, job.attempts) if job else None,
        (run.fence, run.lease, run.cancel_requested) if run else None,
        tuple(
            (one.revision, one.on_conflict)
            for one in world.record.during_run
            if isinstance(one, AcceptedEnqueue)
        ),
        (outcome.kind, outcome.fence, outcome.first, outcome.revision, outcome.result, outcome.expires_at)
        if outcome
        else None,
        world.newest_fence,
        world.newest_revision,
    )


class RecordedNumbers(NumberSource):
    """Draws the number that a step recorded, in place of a new one."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def draw(self) -> int:
        return self._number  # type: ignore[return-value]


@frozen
class Attempt:
    """A step that is applied to a copy of a state, with the number that it draws."""

    step: RecordedStep
    number: float
    before: IdWorld
    oracle: Oracle
    queue: OracleQueue
    record: IdRecord

    @classmethod
    def of(cls, world: IdWorld, step: RecordedStep, number: float) -> Attempt:
        oracle = Oracle(RecordedNumbers(number))
        queue = oracle.queue(QUEUE)
        queue.settings = Settings(retention=FOREVER, log_level="off")
        queue.ids[ID] = record = copy_record(world.record)
        return cls(step, number, world, oracle, queue, record)

    def after(self, *, fence: int = 0, revision: float = 0) -> IdWorld:
        """Return the state after the step. The fence or the revision is the newest one, if it is given."""
        before = self.before
        newest = fence or before.newest_fence, revision or before.newest_revision
        return IdWorld(self.queue.ids[ID], *newest, before.closed_at)


#: An answer, and the state after it.
Answer = tuple[str, IdWorld]


@frozen
class IdModel:
    """The model of one id, with the numbers that calls without an answer, or without a number in it, drew."""

    #: Fences and revisions that answers show, and that no answer to a claim or an enqueue has.
    fences: Sequence[int]
    revisions: Sequence[int]
    #: The fences of the claims in a history that does not begin with an empty storage, else None.
    known_fences: frozenset[int] | None

    @classmethod
    def of(cls, history: RecordedHistory, id_steps: IdSteps) -> IdModel:
        claims, reads = id_steps.claims, [step.read for step in id_steps.reads if step.read is not None]
        outcomes = [read.outcome for read in reads if read.outcome is not None]
        fences = {step.fence for step in (*id_steps.others, *id_steps.settles, *id_steps.reports)}
        fences |= {read.fence for read in reads} | {outcome.fence for outcome in outcomes}
        finishes = id_steps.others_of("finish")
        ranges = [(step.first, step.revision) for step in (*claims, *id_steps.enqueues, *finishes)]
        ranges += [(outcome.first, outcome.revision) for outcome in outcomes]
        ranges += [one for read in reads for one in (read.current, read.successor) if one is not None]
        drawn = {step.revision for step in (*id_steps.accepted, *id_steps.imported)} | {0}
        known = frozenset(claim.fence for claim in claims)
        return cls(
            sorted(fences - known - {0}),
            sorted({number for one in ranges for number in one} - drawn),
            known if history.partial else None,
        )

    def apply(self, world: IdWorld, part: StepPart, _: int) -> Iterator[IdWorld]:
        """Yield every state possible after a step with its recorded answer, none if it is impossible."""
        step = part.step
        for record in with_expiries(world.record):
            before = world if record is world.record else world.with_record(record)
            for number in self.numbers(before, part):
                for status, after in self.answers(Attempt.of(before, step, number)):
                    if step.unknown or status == step.status:
                        closes = step.now and is_active(record) and not is_active(after.record)
                        yield evolve(after, closed_at=step.now) if closes else after

    def numbers(self, world: IdWorld, part: StepPart) -> list[float]:
        """Return the numbers that a step may draw: that in its answer, or one of those that others show.

        A number that no answer shows is unknown: a negative fence, or a revision between two.
        """
        step, newest = part.step, world.newest_revision
        if step.op == "claim" and step.unknown:
            return [*(fence for fence in self.fences if fence > world.newest_fence), -1 - part.index]
        if (
            step.op in ("enqueue", "retry_failed")
            and step.status in (UNKNOWN, FOLLOWED, "queued")
            and not step.revision
        ):
            between = newest if newest % 1 else newest + 0.5
            return [*(revision for revision in self.revisions if revision > newest), between]
        return [step.fence if step.op == "claim" else step.revision]

    def answers(self, attempt: Attempt) -> Iterable[Answer]:
        answers, step = ANSWERS[attempt.step.op], attempt.step
        if self.known_fences is None:
            return answers(attempt)
        if step.op == "claim":
            return claimed_unseen(attempt)
        if step.op in ("settle", "reap") and step.fence in self.known_fences:
            return answers(attempt)
        unseen = [(step.status, after) for _, after in answers(attempt)] if is_active(attempt.record) else []
        return [(step.status, attempt.before), *unseen]


def is_active(record: IdRecord) -> bool:
    return record.current is not None and record.current.run is not None


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
    elif attempt.number != step.revision:
        # Without a result: it may also have been rejected.
        yield step.status, attempt.before
        yield from accepted(attempt)
    elif current is None and not step.creates:
        yield "absent", attempt.before
    elif current is not None and (step.first, step.revision) == (current.first, current.revision):
        yield "duplicate", attempt.before
    elif outcome is not None and current is None and step.status in ("completed", "failed"):
        yield outcome.kind, attempt.before
    elif step.revision > attempt.before.newest_revision:
        yield from accepted(attempt)


def accepted(attempt: Attempt) -> Iterator[Answer]:
    """Yield the answer to an enqueue that is accepted, and the state after it, for each rule it may have."""
    step, number = attempt.step, attempt.number
    own = Update(data=step.replaces, reset_counts=step.resets, create=step.creates, supersede=step.supersedes)
    job = NewJob(id=ID, data=JobData(payload=step.payload.encode()))
    for rule in (own,) if step.client else LOGGED_RULES:
        if attempt.record.current is None and not rule.create:
            continue
        trial = attempt if step.client else Attempt.of(attempt.before, step, number)
        answer = accept(trial.queue, trial.record, job, rule, 0)
        if number != step.revision or answer.first == step.first:
            status = step.status if number != step.revision else answer.status
            yield status, trial.after(revision=number)


def imported(attempt: Attempt) -> Iterator[Answer]:
    step, record = attempt.step, attempt.record
    if record.current is not None or record.live_outcome(0) is not None:
        yield "exists", attempt.before
        return
    record.current = waiting_job(step, ANY_MEMO)
    newest = max(attempt.before.newest_revision, step.revision)
    yield "imported", attempt.after(revision=newest)


def waiting_job(step: RecordedStep, memo: bytes | None, attempts: int = 0) -> Job:
    """Return the job of a step as it waits, with the range and the payload of the step."""
    return Job(
        id=ID, data=JobData(payload=step.payload.encode(), memo=memo), run_at=0, enqueued_at=0, seq=0,
        first=step.first, revision=step.revision, attempts=attempts,
    )  # fmt: skip


def claimed(attempt: Attempt) -> Iterator[Answer]:
    step, job, before = attempt.step, attempt.record.current, attempt.before
    if job is None or job.run is not None:
        return
    if step.unknown:
        activate(attempt.queue, job, step.lease, "", 0)
        yield UNKNOWN, attempt.after(fence=max(before.newest_fence, int(attempt.number)))
        return
    if step.fence <= before.newest_fence or (step.now and step.run_began < before.closed_at):
        return
    if (job.first, job.revision, job.data.payload) != (step.first, step.revision, step.payload.encode()):
        return
    memo, returns = job.data.memo, step.retries + step.stalls + step.timeouts
    if step.memo and memo != ANY_MEMO and step.memo != (memo.decode() if memo else NO_MEMO):
        return
    if activate(attempt.queue, job, step.lease, "", 0).attempts == step.attempt > returns:
        yield "taken", attempt.after(fence=step.fence)


def claimed_unseen(attempt: Attempt) -> Iterator[Answer]:
    """Yield the answer to a claim of a job that may have been enqueued, or have come back, unseen."""
    step, outcome = attempt.step, attempt.record.outcome
    if not step.unknown and not is_active(attempt.record):
        if outcome is not None and step.first <= outcome.revision:
            return
        memo = step.memo.encode() if step.memo not in ("", NO_MEMO) else None
        attempt.record.current = waiting_job(step, memo, step.attempt - 1)
    yield from claimed(attempt)


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
        status = finish_current(attempt.oracle, attempt.queue, record, end, step.revision, 0)
        yield status, attempt.after()


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
    """Yield the effect of a reap. Without an answer, it may have returned any run under a lease."""
    step, run = attempt.step, attempt.record.current.run if attempt.record.current else None
    if run is None or run.lease is None:
        return
    if step.unknown:
        for status in ("stalled", "released"):
            yield returned(Attempt.of(attempt.before, step, attempt.number), status)
    elif run.fence == step.fence:
        yield returned(attempt, step.status if step.status == "released" else "stalled")


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


def reported(attempt: Attempt) -> Iterator[Answer]:
    memo = attempt.step.memo
    stored = None if not memo else b"" if memo == NO_MEMO else memo.encode()
    yield report.step(attempt.oracle, QUEUE, ID, attempt.step.fence, None, stored), attempt.after()


def revived(attempt: Attempt) -> Iterator[Answer]:
    """Yield the answer to a retry_failed. A history does not show whether an outcome kept its data."""
    if attempt.step.status not in (UNKNOWN, "queued"):
        yield attempt.step.status, attempt.before
    elif retry_failed(attempt.queue, ID, 0, 0) == "queued":
        yield "queued", attempt.after(revision=attempt.number)


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
    known = outcome.result if outcome else None
    return actual == (read.current, read.fence, read.successor, ended) and (
        not result or known in (b"", result.encode())
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
    "report": reported,
    "retry_failed": revived,
    "get": read,
}
