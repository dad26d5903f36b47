"""The accounts of a soak, from its journals and the event log of the storage.

They share no code with the conformance kit, so that an error there cannot hide an error here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from attrs import asdict, define, field, frozen

from tests.soak.limits import find_broken_limits

#: The id of a job: its queue and its id there.
Name = tuple[str, str]


@frozen
class Accepted:
    """An enqueue that the storage has accepted, as its producer recorded it. Times are seconds."""

    name: Name
    revision: int
    at: float


@frozen
class Run:
    """One run of a handler, as its process recorded it. `ended` is None if the handler did not return."""

    name: Name
    fence: int
    pid: int
    began: float
    ended: float | None


@frozen
class End:
    """The end of a run in the event log of the storage. `kind` is "completed", "stalled" or another one."""

    name: Name
    fence: int
    kind: str
    at: float
    first: int
    revision: int
    run_at: int
    #: The time of the claim in ms since the epoch; None if the job was not claimed.
    claimed_at: int | None = None


@frozen
class Fault:
    """A fault that the soak caused, from `at` to `until`. `pids` are its processes; empty for a server."""

    kind: str
    at: float
    until: float
    pids: frozenset[int] = frozenset()


@frozen
class Evidence:
    """All records of one soak."""

    accepted: Sequence[Accepted]
    runs: Sequence[Run]
    ends: Sequence[End]
    faults: Sequence[Fault]
    #: The queue of the periodic task.
    tick_queue: str = "tick"


@define
class Account:
    """The figures of one soak. The five lists of violations must be empty."""

    accepted: int
    runs: int
    #: Enqueues that the storage accepted, and that no completed run covers.
    lost: list[str]
    #: Enqueues, runs and ticks that ended more than once.
    doubled: list[str]
    #: Pairs of runs of one id at the same time, although the storage had not taken the first one back.
    overlapping: list[str]
    #: Runs that were completed after the storage had given the job back to the queue.
    late_accepted: list[str]
    #: Handlers that returned after the storage had given their job back: the storage must refuse their ends.
    late_tried: int
    faults: dict[str, int]
    #: Runs that a limit by key or by rate should have held back.
    over_limit: list[str] = field(factory=list)
    #: Seconds from a fault to the next completion of each job that it interrupted, by the kind of the fault.
    #: For a fault of a server, the time begins when the server is back.
    recoveries: dict[str, list[float]] = field(factory=dict)
    #: Seconds that each killed server was away.
    server_away: list[float] = field(factory=list)
    #: Largest time between the begins of two ticks, in seconds.
    tick_gap: float = 0.0

    @property
    def violations(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.overlapping, *self.late_accepted, *self.over_limit]

    @property
    def all_recoveries(self) -> list[float]:
        return [seconds for each in self.recoveries.values() for seconds in each]

    def as_json(self) -> dict[str, Any]:
        """Return the account with summaries of the recoveries."""
        summary = {
            kind: summarize(each) for kind, each in {**self.recoveries, "all": self.all_recoveries}.items()
        }
        return {**asdict(self), "recoveries": summary, "server_away": summarize(self.server_away)}


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {"number": 0, "p50": 0.0, "max": 0.0}
    return {"number": len(seconds), "p50": round(median(seconds), 2), "max": round(max(seconds), 2)}


def account(evidence: Evidence) -> Account:
    """Compare the accepted enqueues and the runs with the event log of the storage."""
    return Account(
        accepted=len(evidence.accepted),
        runs=len(evidence.runs),
        lost=list(find_lost(evidence)),
        doubled=[
            *find_doubled_enqueues(evidence),
            *find_doubled_ends(evidence),
            *find_doubled_begins(evidence),
            *find_doubled_ticks(evidence),
        ],
        overlapping=list(find_overlaps(evidence)),
        late_accepted=list(find_late(evidence, accepted=True)),
        late_tried=len(list(find_late(evidence, accepted=False))),
        faults=dict(Counter(fault.kind for fault in evidence.faults)),
        over_limit=list(find_broken_limits(evidence.ends)),
        recoveries=measure_recoveries(evidence),
        server_away=[each.until - each.at for each in evidence.faults if each.kind == "kill_server"],
        tick_gap=measure_tick_gap(evidence),
    )


def find_lost(evidence: Evidence) -> Iterable[str]:
    completions = completions_by_name(evidence)
    for enqueue in evidence.accepted:
        if not any(covers(end, enqueue) for end in completions[enqueue.name]):
            yield f"{enqueue.name} revision {enqueue.revision}: accepted and never completed"


def find_doubled_enqueues(evidence: Evidence) -> Iterable[str]:
    completions = completions_by_name(evidence)
    for enqueue in evidence.accepted:
        fences = [end.fence for end in completions[enqueue.name] if covers(end, enqueue)]
        if len(fences) > 1:
            yield f"{enqueue.name} revision {enqueue.revision}: completed by the runs {fences}"


def find_doubled_ends(evidence: Evidence) -> Iterable[str]:
    numbers = Counter((end.name, end.fence) for end in evidence.ends if end.fence)
    for (name, fence), number in numbers.items():
        if number > 1:
            yield f"{name} run {fence}: ended {number} times"


def find_doubled_begins(evidence: Evidence) -> Iterable[str]:
    numbers = Counter((run.name, run.fence) for run in evidence.runs)
    for (name, fence), number in numbers.items():
        if number > 1:
            yield f"{name} run {fence}: began {number} times"


def find_doubled_ticks(evidence: Evidence) -> Iterable[str]:
    ticks = Counter(
        end.run_at for end in evidence.ends if end.name[0] == evidence.tick_queue and end.kind == "completed"
    )
    for run_at, number in ticks.items():
        if number > 1:
            yield f"the tick of {run_at} completed {number} times"


def find_overlaps(evidence: Evidence) -> Iterable[str]:
    """Yield pairs of runs of one id at the same time, unless the storage took the first one back before."""
    given_back = {(end.name, end.fence): end.at for end in evidence.ends if end.kind != "completed"}
    for runs in runs_by_name(evidence).values():
        for index, earlier in enumerate(runs):
            for later in runs[index + 1 :]:
                overlap = earlier.ended is not None and later.began < earlier.ended
                taken = given_back.get((earlier.name, earlier.fence))
                # The log has whole milliseconds.
                if overlap and (taken is None or taken > later.began + 0.001):
                    yield f"{earlier.name}: the runs {earlier.fence} and {later.fence} at the same time"


def find_late(evidence: Evidence, *, accepted: bool) -> Iterable[str]:
    """Yield the runs whose handler returned after the storage took the job back.

    With `accepted`, yield the runs that the storage completed although it had taken the job back.
    """
    given_back = {(end.name, end.fence): end.at for end in evidence.ends if end.kind != "completed"}
    completed = {(end.name, end.fence): end.at for end in evidence.ends if end.kind == "completed"}
    by_name = runs_by_name(evidence)
    for run in evidence.runs:
        key = (run.name, run.fence)
        if not accepted and run.ended is not None and given_back.get(key, run.ended) < run.ended:
            yield f"{run.name} run {run.fence}"
        if accepted and key in completed:
            newer = [
                other.fence
                for other in by_name[run.name]
                if other.fence > run.fence and other.began < completed[key]
            ]
            if key in given_back or newer:
                yield f"{run.name} run {run.fence}: completed after it was given back, newer runs {newer}"


def measure_recoveries(evidence: Evidence) -> dict[str, list[float]]:
    """Return the seconds from each fault to the next completion of each job that it interrupted.

    The time is 0 for a job that completes while its server fault lasts: a cut network still lets jobs pass.
    """
    completions = completions_by_name(evidence)
    recoveries: defaultdict[str, list[float]] = defaultdict(list)
    for fault in evidence.faults:
        for run in interrupted_runs(evidence, fault):
            later = [end.at for end in completions[run.name] if end.at > fault.at]
            if later:
                since = fault.at if fault.pids else fault.until
                recoveries[fault.kind].append(round(max(0.0, min(later) - since), 3))
    return dict(recoveries)


def interrupted_runs(evidence: Evidence, fault: Fault) -> Iterable[Run]:
    """Yield the runs that were not settled at a fault. A fault of a server hits all processes alive then."""
    ended_at = {(end.name, end.fence): end.at for end in evidence.ends}
    dead = {
        pid
        for other in evidence.faults
        if other.kind.startswith("kill") and other.at < fault.at
        for pid in other.pids
    }
    for run in evidence.runs:
        is_hit = run.pid in fault.pids if fault.pids else run.pid not in dead
        if is_hit and run.began <= fault.at < ended_at.get((run.name, run.fence), math.inf):
            yield run


def measure_tick_gap(evidence: Evidence) -> float:
    begins = sorted(run.began for run in evidence.runs if run.name[0] == evidence.tick_queue)
    return round(max((after - before for before, after in pairwise(begins)), default=0.0), 2)


def covers(end: End, enqueue: Accepted) -> bool:
    return end.first <= enqueue.revision <= end.revision


def completions_by_name(evidence: Evidence) -> defaultdict[Name, list[End]]:
    found: defaultdict[Name, list[End]] = defaultdict(list)
    for end in evidence.ends:
        if end.kind == "completed":
            found[end.name].append(end)
    return found


def runs_by_name(evidence: Evidence) -> dict[Name, list[Run]]:
    """Return the runs of each id, by fence."""
    found: defaultdict[Name, list[Run]] = defaultdict(list)
    for run in sorted(evidence.runs, key=lambda run: run.fence):
        found[run.name].append(run)
    return found
