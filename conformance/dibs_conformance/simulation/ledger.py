"""The ledger: what the storage accepted and what handlers did, and the promises that both must keep.

The ledger sees each call in the order in which it took effect at the storage, and each begin and end of a
handler. It keeps its own account of runs, leases and owed jobs, and shares no code with the storage. A
promise is named by the section of the contract that makes it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from attrs import define

from dibs.model.job import Job
from dibs.model.requests import Complete, Settlement
from dibs.model.results import ClaimResult, SettleResult
from dibs_conformance.simulation.network import Call
from dibs_conformance.simulation.world import SECOND, Process, World

Key = tuple[str, str, int]

#: The most active runs of a queue, and of one key of it.
MOST_ACTIVE: Final = {"keyed": 4}
PER_KEY: Final = {"keyed": 1}
#: The queue with a rate: starts, and ms of their period; its burst is 1.
RATED: Final = ("rated", 5, 1000)
#: The queue of the periodic task, and its period in ms.
TICKS: Final = ("ticks", 20_000)
#: The queue whose jobs receivers claim, and the seconds by which an expired lease may be later there: only
#: receivers reap it, and they pause.
RECEIVED: Final = "received"
RECEIVERS_PAUSE: Final = 10.0
#: The seconds after which runs are cancelled, by queue, and the longest time until a cancelled run has ended:
#: ten seconds for its handler, and the messages.
TIMEOUTS: Final = {"plain": 40, "timed": 3, "keyed": 20}
CANCELLED_WITHIN: Final = 15.0
#: Parts of the payloads of runs that do not end when they are cancelled.
UNSTOPPABLE: Final = (b"stubborn", b"block")
#: Seconds between the renewals with which a worker learns of requests to cancel, at most.
RENEWED_WITHIN: Final = 15.0
#: Seconds within which a flow enqueues a node after its parents: longer than a lease, and shorter than the
#: timer of an evaluation.
ADVANCED_WITHIN: Final = 45.0
#: Seconds after its expiry in which a lease gives its jobs back while a worker lives, and those for messages.
BACK_WITHIN: Final = 2.0
MESSAGES: Final = 0.5
#: Seconds within which a calm system with free capacity claims a due job that was enqueued just now.
PICKED_UP_WITHIN: Final = 5.0
#: Seconds of calm until faults have no more effect: a lease, a poll, the longest pause after errors.
SETTLED_AFTER: Final = 150.0
#: The most ended runs, and accepted enqueues, that are remembered.
REMEMBERED: Final = 20_000


@define(eq=False)
class Run:
    """One claim of a job, from the claim to the end of both its handler and its place in the storage."""

    queue: str
    job: Job
    lease: str
    holder: str
    #: False once the storage has ended the run, or given the job back.
    active: bool = True
    cancel_requested: bool = False
    #: The process whose handler runs now.
    process: Process | None = None
    began: bool = False
    #: The value that the handler returned; None if it has not returned.
    returned: str | None = None
    #: The times of the world, in ns, at which the handler began, and at which its cancellation was requested.
    began_at: int = 0
    cancelled_at: int = 0
    #: The settle action that ended the run.
    ended_as: str = ""

    @property
    def fence(self) -> int:
        return self.job.run.fence if self.job.run is not None else 0

    @property
    def key(self) -> Key:
        return self.queue, self.job.id, self.fence

    def __str__(self) -> str:
        return f"{self.queue}/{self.job.id} (fence {self.fence}, {self.holder})"


class Ledger:
    """The account of one simulation."""

    def __init__(
        self, world: World, local: Callable[[Process], bool], storage_now: Callable[[], int]
    ) -> None:
        self._world = world
        #: Returns the time of the storage in ms.
        self._storage_now = storage_now
        #: Returns whether a process is a supervisor that runs handlers itself, and so cannot kill them.
        self._is_local = local
        #: The time of the world since which no fault was injected; None during faults.
        self.calm_since: int | None = 0
        self.runs: dict[Key, Run] = {}
        self._recent: dict[Key, Run] = {}
        #: By queue and id, the revisions that were accepted and have not ended.
        self.owed: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        #: The number of the call of each accepted enqueue, by queue, id and revision.
        self.accepted: dict[tuple[str, str, int], int | None] = {}
        #: The active runs by queue and id, and those under leases by queue and key.
        self._active: dict[tuple[str, str], Run] = {}
        self._numbers: defaultdict[tuple[str, str | None], int] = defaultdict(int)
        self._leases: dict[str, int] = {}
        #: The numbers of calls that raised an error which says that nothing was written.
        self.unwritten: set[int] = set()
        #: The times at which jobs completed, in ns, and the parents of the nodes of flows, by number.
        self.completed: dict[int, int] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        #: The ids of jobs that were claimed before.
        self._seen: set[str] = set()
        self._starts: deque[int] = deque(maxlen=20)
        self._ticks: deque[int] = deque(maxlen=1000)
        #: True if a tick was cancelled since the last one ran: the next one may come after a minute.
        self._tick_cancelled = False
        self.counts: Counter[str] = Counter()
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """A hash of the whole history so far."""
        return self._digest.hexdigest()

    def note(self, *parts: object) -> None:
        """Add a step to the history of the digest."""
        self._digest.update(repr((self._world.now, parts)).encode())

    def _fail(self, clause: str, what: str) -> None:
        self._world.fail(clause, what)

    def is_calm(self, seconds: float = SETTLED_AFTER) -> bool:
        """Return whether no fault was injected for this time."""
        return self.calm_since is not None and self._world.now - self.calm_since > seconds * SECOND

    # -- the storage ---------------------------------------------------------------------------------

    def observe(self, call: Call, result: Any) -> None:
        """Account for a call that took effect."""
        observer = getattr(self, f"_on_{call.verb}", None)
        if observer is not None:
            observer(call.client.name, *call.args, result=result, **call.kwargs)

    def _on_enqueue(self, client: str, queue: str, requests: Sequence[Any], *, result: Sequence[Any]) -> None:
        self.note(client, "enqueue", queue, [(one.status, one.revision) for one in result])
        for request, one in zip(requests, result, strict=True):
            if one.status in ("queued", "updated", "blocked") and not one.repeated:
                if queue != TICKS[0]:  # the next tick waits for ever
                    self.owed[queue, request.job.id].add(one.revision)
                number = number_of(request.job.data.payload)
                self.accepted[queue, request.job.id, one.revision] = number
                self.counts["enqueued"] += 1
                if number is not None:
                    self._check_written(number)
                    self._check_progress(queue, request.job.id, number)
        while len(self.accepted) > REMEMBERED:
            del self.accepted[next(iter(self.accepted))]

    def not_written(self, number: int) -> None:
        """Note that a call raised an error which says that its job was not written."""
        self.unwritten.add(number)
        if number in self.accepted.values():
            self._check_written(number)

    def _check_written(self, number: int) -> None:
        if number in self.unwritten:
            self._fail(
                "4.7 an error says what happened", f"the call {number} said unwritten, and its job is stored"
            )

    def _check_progress(self, queue: str, id: str, number: int) -> None:
        """Check that a calm flow enqueues a node soon after its last parent has completed."""
        ended_at = max((self.completed.get(one, 0) for one in self.parents.get(number, ())), default=0)
        seconds = (self._world.now - ended_at) / SECOND
        if ended_at and seconds > ADVANCED_WITHIN and self.is_calm(SETTLED_AFTER + seconds):
            self._fail("a flow goes on", f"the node {queue}/{id} came {seconds:.1f} s after its last parent")

    def _on_claim(self, client: str, queue: str, lease: str, limit: int, *, result: ClaimResult) -> None:
        if result.jobs:
            self.note(client, "claim", queue, [(job.id, job.attempts) for job in result.jobs])
        for job in result.jobs:
            self._claimed(client, queue, lease, job, result.now)

    def _on_claim_blocking(
        self, client: str, queue: str, lease: str, limit: int, *, result: ClaimResult, **_: Any
    ) -> None:
        self._on_claim(client, queue, lease, limit, result=result)

    def _on_claim_blocking_any(
        self,
        client: str,
        _queues: Any,
        lease: str,
        limit: int,
        *,
        result: Mapping[str, ClaimResult],
        **_: Any,
    ) -> None:
        for queue, one in result.items():
            self._on_claim(client, queue, lease, limit, result=one)

    def _on_settle(
        self, client: str, queue: str, settlements: Sequence[Settlement], *, result: Sequence[SettleResult]
    ) -> None:
        for settlement, one in zip(settlements, result, strict=True):
            self.note(client, "settle", queue, settlement.id, type(settlement.action).__name__, one.status)
            self._settled(client, queue, settlement, one.status)

    def _on_settle_and_claim(
        self, client: str, queue: str, settlements: Any, lease: str, limit: int, *, result: Any
    ) -> None:
        self._on_settle(client, queue, settlements, result=result.settled)
        self._on_claim(client, queue, lease, limit, result=result.claim)

    def _on_serve(self, client: str, steps: Sequence[Any], lease: str, *, result: Sequence[Any]) -> None:
        for step, one in zip(steps, result, strict=True):
            self._on_settle_and_claim(client, step.queue, step.settlements, lease, step.limit, result=one)

    def _on_grant(self, client: str, _queues: Any, ttl: int, holder: str, *, result: Any) -> None:
        self._leases[result.lease] = result.now + ttl

    def _on_renew(
        self, client: str, _queues: Any, lease: str, ttl: int, *, result: Mapping[str, Any]
    ) -> None:
        if lease in self._leases and all(one.alive for one in result.values()):
            self._leases[lease] = max(self._leases[lease], next(iter(result.values())).now + ttl)

    def _on_drop(
        self, client: str, queues: Sequence[str], lease: str, _limit: int, *, result: Mapping[str, int]
    ) -> None:
        self.note(client, "drop", sum(result.values()))
        if self._leases.get(lease, 0) <= self._storage_now():
            return  # an expired lease is lost for a drop
        for run in [run for run in self._active.values() if run.lease == lease and not result.get(run.queue)]:
            self._end(run, "drop", came_back=not run.cancel_requested)

    def _on_reap(self, client: str, queue: str, _limit: int, *, result: Sequence[Any]) -> None:
        for one in result:
            self.note(client, "reap", queue, one.id, one.kind)
            run = self.runs.get((queue, one.id, one.fence))
            if run is None or not run.active:
                self._fail("4.2 one run at a time", f"{queue}/{one.id} was reaped and is not active")
                continue
            self.counts["reaped"] += 1
            holder = run.process
            if self.is_calm() and holder is not None and not (holder.dead or self._is_local(holder)):
                self._fail("3 leases", f"{run} lost its lease in a calm system while its handler runs")
            self._end(run, "reap", came_back=one.kind != "cancelled", check_handler=False)

    def _on_cancel(
        self, client: str, queue: str, ids: Sequence[str], *, result: Sequence[str], running: bool = False
    ) -> None:
        self.note(client, "cancel", queue, list(result))
        for id, status in zip(ids, result, strict=True):
            active = self._active.get((queue, id))
            if status == "requested" and active is not None:
                active.cancel_requested = True
                active.cancelled_at = active.cancelled_at or self._world.now
            if status in ("cancelled", "requested"):
                self._tick_cancelled = self._tick_cancelled or queue == TICKS[0]
                last = active.job.revision if active is not None else 0
                self._pay(queue, id, last + 1)

    def _on_finish(self, client: str, queue: str, id: str, end: Any, _revision: int, *, result: str) -> None:
        self.note(client, "finish", queue, id, type(end).__name__, result)
        run = self._active.get((queue, id))
        if result == "done" and run is not None:
            self.counts["flows"] += 1
            run.ended_as = type(end).__name__
            self._end(run, "finish", came_back=False)

    # -- runs ----------------------------------------------------------------------------------------

    def _claimed(self, client: str, queue: str, lease: str, job: Job, now: int) -> None:
        run = Run(queue, job, lease, client)
        before = self._active.get((queue, job.id))
        if before is not None:
            self._fail("4.2 one run at a time", f"{run} was claimed while {before} is active")
        self.runs[run.key] = self._active[queue, job.id] = run
        self.counts["claimed"] += 1
        self._count_active(run, +1)
        self._check_rate(queue, now)
        self._check_pick_up(run, now)

    def _check_pick_up(self, run: Run, now: int) -> None:
        """Check the delay of the first claim of a job with a generated id, in a queue without limits."""
        job, is_new = run.job, run.job.id not in self._seen
        self._seen.add(job.id)
        if not is_new or run.queue != "plain" or job.id.startswith("id-") or not self.is_calm():
            return
        delay = (now - max(job.run_at, job.enqueued_at)) / 1000
        if delay > PICKED_UP_WITHIN and self.calm_since is not None:
            self._fail(
                "3 wake-ups", f"{run} was due for {delay:.1f} s in a calm system before a worker claimed it"
            )

    def _check_rate(self, queue: str, now: int) -> None:
        name, starts, per = RATED
        if queue != name:
            return
        for number, at in enumerate(reversed(self._starts), 2):
            if number > 1 + (now - at) * starts // per:
                self._fail("2 keys and limits", f"{number} runs of {queue} began within {now - at} ms")
        self._starts.append(now)

    def _count_active(self, run: Run, change: int) -> None:
        queue, key = run.queue, run.job.data.key
        self._numbers[queue, None] += change
        if key is not None:
            self._numbers[queue, key] += change
        if self._numbers[queue, None] > MOST_ACTIVE.get(queue, 10**9):
            self._fail("3 claim, max_active", f"{self._numbers[queue, None]} runs of {queue} are active")
        if key is not None and self._numbers[queue, key] > PER_KEY.get(queue, 10**9):
            self._fail("2 keys and limits", f"{self._numbers[queue, key]} runs of the key {key!r} are active")

    def _settled(self, client: str, queue: str, settlement: Settlement, status: str) -> None:
        action = settlement.action
        name = type(action).__name__
        key = (queue, settlement.id, settlement.fence)
        run = self.runs.get(key) or self._recent.get(key)
        self.counts[f"settled {status}"] += 1
        if status in ("lost", "refused") or run is None:
            return
        if not run.active:
            if run.ended_as != name and status != "cancelled":
                self._fail("4.2 no late write", f"{client}: {name} of {run} was accepted: {status}")
            return
        if status == "handed_off":
            self._count_active(run, -1)
            run.lease = ""
            return
        if isinstance(action, Complete):
            self._check_result(run, action, client)
        run.ended_as = name
        self._end(run, f"{name} by {client}", came_back=status == "returned")

    def _check_result(self, run: Run, action: Complete, client: str) -> None:
        if run.queue.startswith("dibs.") or run.holder != client:
            return
        stored = None if action.result is None else msgspec.json.decode(action.result)
        if run.returned is None or stored != run.returned:
            self._fail(
                "4.9 what arrives is what was sent",
                f"{run} was completed with {stored!r}, and its handler returned {run.returned!r}",
            )

    def _end(self, run: Run, by: str, *, came_back: bool, check_handler: bool = True) -> None:
        """Account for the end of an active run, or for the return of its job."""
        process = run.process
        if check_handler and process is not None and not process.dead and not self._is_local(process):
            self._fail(
                "4.2 one run at a time", f"{run} was settled ({by}) while its handler runs in {process}"
            )
        run.active = False
        del self._active[run.queue, run.job.id]
        if run.lease:
            self._count_active(run, -1)
        if not came_back:
            self.counts["ended"] += 1
            self._pay(run.queue, run.job.id, run.job.first, run.job.revision)
            self._note_end(run)
        if process is None or process.dead:
            self._forget(run)

    def _pay(self, queue: str, id: str, first: int, last: int | None = None) -> None:
        """Remove the revisions `first..last` of an id from the owed ones. Without `last`: all from there."""
        owed = self.owed.get((queue, id), set())
        owed -= {one for one in owed if first <= one and (last is None or one <= last)}
        if not owed:
            self.owed.pop((queue, id), None)

    def _note_end(self, run: Run) -> None:
        if run.ended_as != "Complete":
            return
        number = number_of(run.job.data.payload)
        if number in self.parents and number in self.completed:
            self._fail("4.3 a run ends once", f"the node {number} of a flow completed twice: {run}")
        if number is not None:
            self.completed[number] = self._world.now
        if run.queue == TICKS[0]:
            self._check_tick(run)

    def _check_tick(self, run: Run) -> None:
        name, period = TICKS
        at = run.job.run_at
        if run.job.retries or run.job.stalls or run.job.timeouts:
            at = at // period * period
        if at in self._ticks:
            self._fail("every tick runs once", f"the tick of {name} at {at} ran twice")
        steady = self.is_calm(SETTLED_AFTER + 2 * period / 1000) and not self._tick_cancelled
        self._tick_cancelled = False
        if steady and self._ticks and at - self._ticks[-1] > period:
            self._fail("every tick runs once", f"{name} ran at {self._ticks[-1]} and then at {at}")
        self._ticks.append(at)

    def _forget(self, run: Run) -> None:
        """Keep only the latest of the ended runs: a repeated settlement gets the answer of the first."""
        self.runs.pop(run.key, None)
        self._recent[run.key] = run
        if len(self._recent) > REMEMBERED:
            del self._recent[next(iter(self._recent))]

    # -- handlers ------------------------------------------------------------------------------------

    def handler_began(self, process: Process, key: Key) -> None:
        self.note(process.name, "begin", key[0], key[1])
        run = self.runs.get(key)
        if run is None:
            return  # the run was given back, and its holder does not know yet
        if run.began:
            self._fail("4.2 one run at a time", f"the handler of {run} began twice")
        run.began, run.process, run.began_at = True, process, self._world.now
        for parent in self.parents.get(number_of(run.job.data.payload) or -1, ()):
            if parent not in self.completed:
                self._fail(
                    "a node runs after its parents", f"{run} began before its parent {parent} completed"
                )

    def handler_ended(self, process: Process, key: Key, returned: str | None) -> None:
        if process.dead:
            return
        self.note(process.name, "end", key[0], key[1], returned)
        run = self.runs.get(key)
        if run is None:
            return
        run.process, run.returned = None, returned
        if not run.active:
            self._forget(run)

    def covers(self, queue: str, id: str, fence: int, revision: int) -> bool:
        """Return whether the run with a fence was one of the enqueue `revision`, or is forgotten."""
        run = self.runs.get((queue, id, fence)) or self._recent.get((queue, id, fence))
        return run is None or run.job.first <= revision <= run.job.revision

    # -- audits --------------------------------------------------------------------------------------

    def overdue_leases(self, now: int) -> list[Run]:
        """Return the active runs whose lease expired too long ago, at the time `now` of the storage."""
        limit = now - int((BACK_WITHIN + MESSAGES) * 1000)
        return [
            run
            for run in self._active.values()
            if run.lease and self._leases.get(run.lease, now) + 1000 * _pause_of(run.queue) < limit
        ]

    def late_runs(self) -> list[Run]:
        """Return the handlers that run too long after their timeout or the request to cancel them."""
        return [run for run in self._active.values() if run.process is not None and self._is_late(run)]

    def _is_late(self, run: Run) -> bool:
        process, timeout = run.process, TIMEOUTS.get(run.queue)
        if process is None or process.dead or any(one in run.job.data.payload for one in UNSTOPPABLE):
            return False
        now, limit = self._world.now, int(CANCELLED_WITHIN * SECOND)
        if now - process.frozen_until < limit:
            return False
        if timeout is not None and now - run.began_at > timeout * SECOND + limit:
            return True
        return bool(run.cancelled_at) and now - run.cancelled_at > RENEWED_WITHIN * SECOND + limit


def _pause_of(queue: str) -> float:
    return RECEIVERS_PAUSE if queue == RECEIVED else 0.0


def number_of(payload: bytes) -> int | None:
    """Return the number of a job of the workload: its first argument."""
    try:
        number: int = msgspec.json.decode(payload)["args"][0]
        return number
    except (ValueError, TypeError, IndexError, KeyError):
        return None
