"""L0, one call at a time: the storage and the oracle run the same calls under a manual clock.

The walkthrough comes first, then the probes, then random examples until the budget is spent, in chunks with
one seed each. An example is one history: a random sequence of calls, which the state machine makes with
Hypothesis.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from dibs_conformance.answer_types import VERBS as PROTOCOL
from dibs_conformance.loop_runner import LIMITS, LoopRunner
from dibs_conformance.report import Findings, LawFailure, LawReport, SkippedTest
from dibs_conformance.report.call_text import CallRecorder
from dibs_conformance.report.values import law_report
from dibs_conformance.sequential import clocks
from dibs_conformance.sequential.limit_histories import walk_through_limits
from dibs_conformance.sequential.probes import PROBES, Probe, ProbeResult
from dibs_conformance.sequential.session import BudgetSpent, ExampleSession, find_reason_to_skip, to_failure
from dibs_conformance.sequential.state_machine import LimitMachine
from dibs_conformance.sequential.turn_histories import walk_through_turns
from dibs_conformance.sequential.walkthrough import offers_compaction, walk_through, walk_through_restarts
from dibs_conformance.target import LevelPlan, Locations, Progress
from dibs_conformance.verbs import VERBS

#: Number of examples with the same seed. The seeds count up from the seed of the run.
CHUNK = 25


def run_examples(
    session: ExampleSession,
    *,
    first_seed: int,
    examples: int | None,
    budget: float,
    steps: int,
    progress: Progress = lambda _: None,
    shrink: bool = True,
) -> LawFailure | None:
    """Run `examples` examples, or as many as fit into `budget` seconds.

    Return the first failure, with the shortest sequence of calls that Hypothesis found for it, or None.
    """
    session.until = time.monotonic() + budget if examples is None else math.inf
    done = 0
    while time.monotonic() < session.until and (examples is None or done < examples):
        size = CHUNK if examples is None else min(CHUNK, examples - done)
        before = session.examples
        failure = run_chunk(session, first_seed + done, size, steps, shrink=shrink)
        if failure is not None:
            return failure
        # A flaky example ends its chunk early (see `run_until_failure`), so count the examples that ran.
        done += max(1, min(size, session.examples - before))
        progress(done)
    return None


def run_walkthrough(session: ExampleSession) -> LawFailure | None:
    """Run the fixed histories that call every verb. Return the first failure, or None."""
    return run_until_failure(session, lambda: walk_through_all(session))


def walk_through_all(session: ExampleSession) -> None:
    walk_through(session)
    walk_through_limits(session)
    walk_through_turns(session)
    walk_through_restarts(session)


def run_chunk(
    session: ExampleSession, chunk_seed: int, size: int, steps: int, *, shrink: bool
) -> LawFailure | None:
    """Run `size` examples from one seed. Return the first failure, or None."""
    machine = seed(chunk_seed)(type("Example", (LimitMachine,), {"session": session}))
    chosen = hypothesis_settings(size, steps, shrink=shrink)
    return run_until_failure(session, lambda: run_state_machine_as_test(machine, settings=chosen))


def run_until_failure(session: ExampleSession, play: Callable[[], None]) -> LawFailure | None:
    """Call `play`, which runs examples, and return its failure or None.

    The contract leaves some choices to the storage: the jobs that a reap takes, or the order of a page. When
    Hypothesis replays an example and such a choice differs, other runs are active and other values can be
    drawn; Hypothesis raises Flaky. If no law was broken before, Flaky only ends the chunk. A law that was
    broken is reported, although it may hold in the replay.
    """
    session.broken = None
    try:
        play()
    except (BudgetSpent, Flaky):
        return session.broken
    except Exception as error:  # noqa: BLE001 - any exception of the storage is a failure
        return to_failure(error, session.story)
    return None


def hypothesis_settings(size: int, steps: int, *, shrink: bool) -> settings:
    """Return the settings of a chunk. Health checks are off, because calls of a storage may be slow."""
    return settings(
        max_examples=size,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


#: The text of the row of each verb in a report.
SENTENCE: Final = "Each call answers as the oracle does, and leaves the same state."
#: The laws of probes whose checks the report counts together, by the name of what they tried.
COUNTED_PROBES: Final = {
    "bad calls": ("every verb refuses bad arguments",),
    "waits": ("an idle wait does not end", "progress is told", "a wake-up carries the stored outcome"),
}


#: The smallest share of the budget for random examples. The walkthrough and the probes always run, and may
#: use up a small budget.
EXAMPLES_SHARE = 0.5


def one_call_at_a_time(plan: LevelPlan) -> Findings:
    """Run L0 until the budget or the number of examples is used up. Without a manual clock, run no test."""
    if not plan.claims.manual_clock:
        why = "it needs the capability `manual_clock` (a storage that opens with clock='manual')"
        return Findings(untested=(SkippedTest(name="comparison with the oracle", why=why),))
    runner = LoopRunner()
    try:
        return SequentialRun(plan, runner).findings()
    finally:
        runner.close()


class SequentialRun:
    """One run of L0: the walkthrough, the probes and the random examples, until the first failure."""

    def __init__(self, plan: LevelPlan, runner: LoopRunner) -> None:
        self._plan, self._runner = plan, runner
        self._ends = time.monotonic() + plan.budget
        self._story = CallRecorder()
        self._failures: list[LawFailure] = []
        self._spared: list[SkippedTest] = []

    def findings(self) -> Findings:
        session = self._create_session()
        self._plan.sources.append(lambda: Findings(histories=session.examples, events=session.calls))
        self._add_failure(run_walkthrough(session))
        walked, ran_examples = session.examples, True
        # After a failure of the walkthrough, no probe runs. The first failure of an unfinished storage names
        # the next method to write, and failures of probes would hide it.
        claims = self._plan.claims
        probes = [probe for probe in PROBES if not probe.needs or getattr(claims, probe.needs)]
        probed = [self._run_probe(probe) for probe in probes if not self._failures]
        if not self._failures:
            probed += [*self._check_jumped_clock(), self._check_clock_steps(2 if session.handles else 1)]
        if not self._failures:
            self._add_failure(self._run_examples(session))
            ran_examples = session.examples > walked
        return Findings(
            histories=session.examples,
            events=session.calls,
            tried=tried_by_probes(probed),
            laws=(*self._verb_reports(), *probed),
            failures=tuple(self._failures),
            untested=(*self._plan.untested, *(() if ran_examples else (no_example_gap(self._plan.budget),))),
            spared=tuple(self._spared),
        )

    def _add_failure(self, failure: LawFailure | None) -> None:
        if failure is not None:
            self._failures.append(failure)

    def _create_session(self) -> ExampleSession:
        claims = self._plan.claims
        skipped = self._runner.run(find_reason_to_skip(self._plan.locations, claims))
        if skipped is not None:
            self._spared.append(skipped)
        return ExampleSession(
            locations=self._plan.locations,
            story=self._story,
            runner=self._runner,
            durable=claims.durable,
            compacts=self._offers_compaction(),
            cross_queue=claims.cross_queue,
            limits=claims.limits,
            fair=claims.fair,
            output=claims.output,
            handles=skipped is None,
        )

    def _offers_compaction(self) -> bool:
        """Return whether the storage offers its rare work. If not, add a skipped test to the report."""
        offered = self._runner.run(offers_compaction(self._plan.locations))
        if not offered:
            why = "the storage offers no method `compact` that does its rare work at once"
            self._spared.append(SkippedTest(name="rare work on demand", why=why))
        return offered

    def _run_examples(self, session: ExampleSession) -> LawFailure | None:
        """Run random examples for the rest of the budget, and for at least `EXAMPLES_SHARE` of it."""
        rest = self._ends - time.monotonic()
        return run_examples(
            session,
            first_seed=self._plan.seed,
            examples=self._plan.examples,
            budget=max(rest, self._plan.budget * EXAMPLES_SHARE),
            steps=self._plan.steps,
            progress=self._plan.progress,
        )

    def _run_probe(self, probe: Probe) -> LawReport:
        checked = self._runner.run(run_probe(self._plan.locations, probe), LIMITS.test)
        return self._report((probe.name, probe.section, probe.sentence), checked)

    def _check_clock_steps(self, handles: int) -> LawReport:
        checking = clocks.check_clock_steps(self._plan.locations, handles=handles)
        return self._report(clocks.STEPS_LAW, self._runner.run(checking, LIMITS.test))

    def _check_jumped_clock(self) -> list[LawReport]:
        checking = clocks.check_jumped_clock(self._plan.locations, durable=self._plan.claims.durable)
        checked = self._runner.run(checking, LIMITS.test)
        if checked is None:
            why = "a second opening of a location has a time of its own"
            self._spared.append(SkippedTest(name=clocks.JUMP_LAW[0], why=why))
            return []
        return [self._report(clocks.JUMP_LAW, checked)]

    def _report(self, law: tuple[str, str, str], checked: ProbeResult) -> LawReport:
        """Return the row of a law, its name, section and sentence, and keep its wrong results."""
        met, wrong = checked
        self._failures += [LawFailure(law=law[0], why=text) for text in wrong]
        return law_report(*law, met, broken=bool(wrong))

    def _verb_reports(self) -> Iterator[LawReport]:
        """Yield a row for each verb: how often its result and the state after it were compared."""
        broken = {failure.law for failure in self._failures}
        for verb in VERBS.values():
            if verb.name in PROTOCOL or (verb.name == "serve" and self._plan.claims.many_queues):
                met = self._story.counts[verb.name]
                yield law_report(verb.name, verb.section, SENTENCE, met, broken=verb.name in broken)


def tried_by_probes(laws: Sequence[LawReport]) -> dict[str, int]:
    """Return how many bad calls and waits the probes made."""
    met = {law.name: law.met for law in laws}
    numbers = {kind: sum(met.get(name, 0) for name in names) for kind, names in COUNTED_PROBES.items()}
    return {kind: number for kind, number in numbers.items() if number}


async def run_probe(locations: Locations, probe: Probe) -> tuple[int, list[str]]:
    async with locations.open(locations.new(), probe.clock) as storage:
        return await probe.run(storage)


def no_example_gap(budget: float) -> SkippedTest:
    return SkippedTest(
        name="comparison with the oracle", why=f"no example fitted into {budget:.3g} s; use a larger budget"
    )
