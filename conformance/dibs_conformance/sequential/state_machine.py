"""The machine: rules that run every verb on the storage and on the oracle, in any order, at any time.

Stale fences and leases, repeats, expiries and steps of the clock are chosen on purpose: a rule picks among
everything that was ever handed out, the newest first. Rules are synchronous; the pair owns the loop.
"""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Complete, Fail, LogLevel, SettingsPatch, Settlement
from dibs.model.results import State
from dibs_conformance.oracle.storage import STATES
from dibs_conformance.sequential import strategies as some
from dibs_conformance.sequential.lockstep import Judges, Pair, Reader, move
from dibs_conformance.sequential.trial import Handed, Trial
from dibs_conformance.target import Opened

#: 2026 in ms; any time would do.
START = 1_767_225_600_000
EVERYWHERE = (*some.QUEUES, *(name + FAIL_SUFFIX for name in some.QUEUES))

LEVELS: tuple[LogLevel, ...] = ("runs", "runs", "all", "off")
#: How far back a rule picks: the newest most often.
picks = st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3, 5, 8))
levels = st.sampled_from(LEVELS)
places = st.sampled_from((*some.QUEUES[:1] * 4, some.QUEUES[1], EVERYWHERE[2]))
#: Seldom what is stale or dead.
mostly = st.sampled_from((True, True, True, True, False))


class Machine(RuleBasedStateMachine):
    """One example: a new place, and some steps in it. `trial` is set on a subclass."""

    trial: Trial

    def __init__(self) -> None:
        super().__init__()
        self.handed = Handed()
        self.readers = {queue: Reader() for queue in EVERYWHERE}
        self.pair: Pair | None = None

    @initialize(looking=st.sampled_from((True, True, True, False)), level=levels, age=some.ttls)
    def open(self, *, looking: bool, level: LogLevel, age: int) -> None:
        trial = self.trial
        trial.begin()
        opened = Opened(trial.places, trial.bridge, trial.places.new())
        self.pair = Pair(opened, trial.bridge, trial.judges, now=START, looking=looking)
        if (level, age) != ("runs", some.HOUR):
            patch = SettingsPatch(log_level=level, request_key_age=age, log_age=24 * age)
            for queue in EVERYWHERE:
                self.pair.configure(queue, patch)
        self.grant(some.HOUR, some.HOLDERS[0])

    def teardown(self) -> None:
        if self.pair is None:
            return
        try:
            if sys.exc_info()[0] is None:
                self.look_back(self.pair)
            self.pair.opened.close()
        finally:
            self.trial.remember(sys.exc_info()[1])
            self.trial.calls += self.pair.oracle.numbers.call

    def look_back(self, pair: Pair) -> None:
        """At the end of an example everything is compared once more."""
        pair.look(*EVERYWHERE)
        pair.counts(EVERYWHERE)
        for queue in EVERYWHERE:
            pair.events(queue, self.readers[queue], 100)

    # -- what rules choose from ----------------------------------------------------------------------

    @property
    def both(self) -> Pair:
        assert self.pair is not None  # noqa: S101 - open comes first
        return self.pair

    def run_at(self, pick: int) -> tuple[str, str, int]:
        runs = self.handed.runs
        return runs[-1 - pick % len(runs)]

    def lease_at(self, pick: int) -> str:
        """A lease that was handed out; seldom one that never was."""
        leases = self.handed.leases
        return "0" * 32 if pick == 8 else leases[-1 - pick % len(leases)]

    def has_runs(self) -> bool:
        return bool(self.handed.runs)

    def settlements(self, data: st.DataObject, picked: list[int], queue: str) -> list[Settlement]:
        """What becomes of some runs of one queue, and now and then of a fence nobody holds."""
        runs = [run for run in map(self.run_at, picked) if run[0] == queue]
        hows = some.hows(self.both.now, queue, cross_queue=self.trial.cross_queue)
        given = [Settlement(id=id, fence=fence, action=data.draw(hows)) for _, id, fence in runs]
        return [kept_for_ever(one) for one in given] if queue.endswith(FAIL_SUFFIX) else given

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    @rule(queue=some.queues, data=st.data())
    def enqueue(self, queue: str, data: st.DataObject) -> None:
        requests = data.draw(some.requests(self.both.now))
        answers = self.both.enqueue(queue, requests)
        told = [(r.job.id, a.revision) for r, a in zip(requests, answers, strict=True) if not a.repeated]
        self.handed.revisions += [(queue, id, revision) for id, revision in told]

    @rule(queue=places, pick=picks, limit=some.limits, alive=mostly)
    def claim(self, queue: str, pick: int, limit: int, *, alive: bool) -> None:
        lease = self.live_lease(queue) if alive else self.lease_at(pick)
        self.handed.take(queue, self.both.claim(queue, lease, limit))

    def live_lease(self, queue: str) -> str:
        """The newest lease, or a new one if that is dead."""
        lease = self.handed.leases[-1]
        if self.both.oracle.queue(queue).lease(lease, self.both.now) is None:
            self.grant(some.HOUR, some.HOLDERS[0])
        return self.handed.leases[-1]

    @precondition(has_runs)
    @rule(picked=st.lists(picks, min_size=1, max_size=3), data=st.data())
    def settle(self, picked: list[int], data: st.DataObject) -> None:
        queue = self.run_at(picked[0])[0]
        self.both.settle(queue, self.settlements(data, picked, queue))

    @precondition(has_runs)
    @rule(pick=picks, data=st.data())
    def settle_one(self, pick: int, data: st.DataObject) -> None:
        self.settle([pick], data)

    @precondition(has_runs)
    @rule(pick=picks, data=st.data(), limit=some.limits)
    def settle_and_claim(self, pick: int, data: st.DataObject, limit: int) -> None:
        queue = self.run_at(pick)[0]
        settlements = self.settlements(data, [pick], queue)
        self.handed.take(queue, self.both.settle_and_claim(queue, settlements, self.live_lease(queue), limit))

    @precondition(has_runs)
    @rule(pick=picks, data=st.data())
    def finish(self, pick: int, data: st.DataObject) -> None:
        known = self.handed.revisions
        queue, id, revision = known[-1 - pick % len(known)]
        end = data.draw(some.ends(self.both.now, queue, cross_queue=self.trial.cross_queue))
        if not queue.endswith(FAIL_SUFFIX):
            self.both.finish(queue, id, end, revision)

    # -- leases and time -----------------------------------------------------------------------------

    @rule(ttl=some.ttls, holder=st.sampled_from(some.HOLDERS))
    def grant(self, ttl: int, holder: str) -> None:
        self.handed.leases.append(self.both.grant(EVERYWHERE, ttl, holder))

    @rule(pick=picks, ttl=some.ttls)
    def renew(self, pick: int, ttl: int) -> None:
        self.both.renew(EVERYWHERE, self.lease_at(pick), ttl)

    @rule(pick=picks, limit=some.limits)
    def drop(self, pick: int, limit: int) -> None:
        self.both.drop(some.QUEUES, self.lease_at(pick), limit)

    @rule(queue=places, limit=some.limits)
    def reap(self, queue: str, limit: int) -> None:
        self.both.reap(queue, limit)

    @rule(by=some.steps)
    def pass_time(self, by: int) -> None:
        self.both.pass_time(by)
        self.both.settled_down(*some.QUEUES)

    @rule(queue=places, pick=picks, late=st.sampled_from((0, 0, 1, -1)))
    def pass_time_to_an_end(self, queue: str, pick: int, late: int) -> None:
        """To the very ms at which something expires or falls due, or the one beside it."""
        ends = self.both.oracle.queue(queue).moments(self.both.now)
        if ends:
            self.pass_time(max(0, ends[pick % len(ends)] - self.both.now + late))

    @precondition(has_runs)
    @rule(queue=some.queues, data=st.data(), back=st.sampled_from((1, 10_000)))
    def clock_steps_back(self, queue: str, data: st.DataObject, back: int) -> None:
        """A write tells the storage the time; a claim with an earlier one counts as that."""
        self.enqueue(queue, data)
        lease = self.live_lease(queue)
        self.handed.take(queue, self.both.claim(queue, lease, 10, now=self.both.now - back))

    # -- by id ---------------------------------------------------------------------------------------

    @rule(queue=some.queues, ids=st.lists(some.ids, min_size=1, max_size=2), running=st.booleans())
    def cancel(self, queue: str, ids: list[str], *, running: bool) -> None:
        self.both.cancel(queue, ids, running=running)

    @rule(queue=some.queues, id=some.ids, data=st.data())
    def amend(self, queue: str, id: str, data: st.DataObject) -> None:
        self.both.amend(queue, id, data.draw(some.patches(self.both.now)))

    @rule(queue=some.queues, ids=st.lists(some.ids, min_size=1, max_size=2))
    def retry_failed(self, queue: str, ids: list[str]) -> None:
        self.both.retry_failed(queue, ids)

    @rule(queue=some.queues, ids=st.lists(some.ids, min_size=1, max_size=1))
    def forget(self, queue: str, ids: list[str]) -> None:
        self.both.forget(queue, ids)

    @precondition(has_runs)
    @rule(pick=picks, progress=st.sampled_from((b"0.5", b'{"of": [1, 2]}')))
    def report(self, pick: int, progress: bytes) -> None:
        self.both.report(*self.run_at(pick), progress)

    # -- queues, listings, the log -------------------------------------------------------------------

    @rule(queue=some.queues, patch=some.settings_patches)
    def configure(self, queue: str, patch: SettingsPatch) -> None:
        self.both.configure(queue, patch)

    @rule(queue=places, limit=some.limits)
    def prune(self, queue: str, limit: int) -> None:
        self.both.prune(queue, limit)

    @rule(queue=places, state=st.sampled_from(STATES), limit=some.limits)
    def list(self, queue: str, state: State, limit: int) -> None:
        self.both.list(queue, state, limit)

    @rule()
    def tell(self) -> None:
        """Counts, queues and slots."""
        self.both.counts(EVERYWHERE)
        self.both.known_queues()
        self.both.look(*EVERYWHERE)

    @rule(queue=places, limit=some.limits, jump=st.sampled_from((False, False, False, True)))
    def events(self, queue: str, limit: int, *, jump: bool) -> None:
        if jump:
            self.both.skip_to_latest(queue, self.readers[queue])
        self.both.events(queue, self.readers[queue], limit)

    # -- places --------------------------------------------------------------------------------------

    @rule(queue=places, limit=some.limits)
    def move(self, queue: str, limit: int) -> None:
        """Export into a second place, which is then as the first."""
        opened = Opened(self.trial.places, self.trial.bridge, self.trial.places.new())
        witness = Judges(laws=(), story=self.trial.judges.story)
        other = Pair(opened, self.trial.bridge, witness, now=self.both.now, looking=True)
        other.oracle.numbers = self.both.oracle.numbers
        try:
            move(self.both, other, queue, limit)
        finally:
            opened.close()

    @precondition(lambda self: self.trial.durable)
    @rule()
    def reopen(self) -> None:
        """Everything is still there."""
        self.both.opened.reopen()
        self.both.note("reopen", {}, "opened again")
        self.both.look(*EVERYWHERE)


def kept_for_ever(settlement: Settlement) -> Settlement:
    """In a fail queue outcomes are kept for ever: no retention is given there, and no follow-ups."""
    how = settlement.action
    if isinstance(how, Fail):
        how = Fail(error=how.error, handled=how.handled)
    elif isinstance(how, Complete):
        how = Complete(result=how.result)
    return Settlement(id=settlement.id, fence=settlement.fence, action=how)
