"""Rules about what a run carries: its counters, its memo, and the fail job of its failure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from dibs.model.job import FAIL_SUFFIX
from dibs_conformance.history.by_id import IdSteps, RecordedHistory, RecordedRun, closed_as
from dibs_conformance.history.rules.rule import HistoryRule, Violation, before, ended, fence, newest_before
from dibs_conformance.steps import NO_MEMO, RecordedSlot, RecordedStep


class AttemptsRule(HistoryRule):
    name = "R10"
    title = "attempts are counted"
    section = "3, claim"
    sentence = (
        "A new job runs as attempt 1, a returned job as the next attempt, a released job as the same "
        "attempt; returns never outnumber the claims before."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            is_complete = not history.partial and history.first_unanswered_claim(
                id_steps.key[0]
            ) > last_answer(id_steps)
            if id_steps.runs and is_complete:
                yield from self._check_first(id_steps, id_steps.runs[0])
                yield from self._check_next(id_steps)
            yield from self._check_returns(id_steps)

    def _check_first(self, id_steps: IdSteps, run: RecordedRun) -> Iterator[Violation]:
        self.met += 1
        if run.claim.attempt != 1:
            yield self.violation(id_steps.key, f"the first claim is attempt {run.claim.attempt}", run.claim)

    def _check_next(self, id_steps: IdSteps) -> Iterator[Violation]:
        for a, b in pairwise(id_steps.runs):
            allowed = self._next_attempts(a)
            self.met += allowed is not None
            if allowed is not None and b.claim.attempt not in allowed:
                why = (
                    f"attempt {b.claim.attempt} follows attempt {a.claim.attempt}; expected {sorted(allowed)}"
                )
                yield self.violation(
                    id_steps.key, why, a.claim, *(step for _, step in a.closing_steps), b.claim
                )

    def _next_attempts(self, run: RecordedRun) -> set[int] | None:
        """Return the possible attempt numbers of the next run.

        Return None if the history does not show how this run was closed.
        """
        known = [step for _, step in run.closing_steps if not step.unknown]
        if len(known) != len(run.closing_steps) or not known:
            return None
        return {1} | {n for step in known for n in attempts_after(step, run.claim.attempt)}

    def _check_returns(self, id_steps: IdSteps) -> Iterator[Violation]:
        for run in id_steps.runs:
            claim = run.claim
            if claim.retries + claim.stalls + claim.timeouts >= max(claim.attempt, 1):
                why = f"attempt {claim.attempt} after {claim.retries} retries, {claim.stalls} stalls"
                yield self.violation(id_steps.key, f"{why} and {claim.timeouts} timeouts", claim)


def attempts_after(step: RecordedStep, attempt: int) -> tuple[int, ...]:
    """Return the possible attempt numbers after this step closed the run. A reset makes 1 possible, too."""
    if closed_as(step) not in ("", "back"):
        return (1,)
    released = step.how == "release" or step.status == "released" or step.op == "drop"
    if released:
        return (attempt,)
    return (attempt, attempt + 1) if closed_as(step) == "" else (attempt + 1,)


def last_answer(id_steps: IdSteps) -> float:
    return max((step.ended or 0 for step in id_steps.claims), default=0)


class CountsRule(HistoryRule):
    name = "R13"
    title = "counts are true at rest"
    section = "3, Queues as a whole"
    sentence = "After a drain, the counts of a queue equal the states found by reading all its ids."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        drained = history.drained
        for step in history.counts if drained is not None else ():
            if (
                step.counts is None
                or drained is None
                or step.began <= drained
                or step.counts.get("approximate")
            ):
                continue
            self.met += 1
            found = count_states_read(history, step.queue, drained)
            wrong = {name: n for name, n in found.items() if step.counts.get(name, 0) != n}
            if wrong:
                known = ", ".join(
                    f"{step.counts.get(name, 0)} {name}, but {n} were read" for name, n in wrong.items()
                )
                yield self.violation((step.queue, ""), f"counted {known}", step)


def count_states_read(history: RecordedHistory, queue: str, since: int) -> Counter[str]:
    """Return the number of ids read in each live state."""
    found = Counter(waiting=0, active=0, blocked=0)
    for id_steps in history.by_queue.get(queue, ()):
        late = [step.read for step in id_steps.reads if step.began > since and step.read is not None]
        if late:
            found.update(states_of(late[-1]))
    return found


def states_of(read: RecordedSlot) -> Iterator[str]:
    if read.current is not None:
        yield "active" if read.fence else "waiting"
    if read.successor is not None:
        yield "blocked"


#: Later than the answer of any call.
LATEST = 2**62
#: Queue, id and fence of the failed run.
Origin = tuple[str, str, int]


class FailuresHandledRule(HistoryRule):
    name = "R14"
    title = "failures are handled"
    section = "4.5"
    sentence = (
        "Each failure while fail_handler certainly was true has exactly one fail job with exactly its payload"
        ", claimed before a drain ends; each fail job belongs to a failure while it may have been true."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        failed, possible = find_handled_failures(history)
        jobs: dict[Origin, dict[str, RecordedStep]] = defaultdict(dict)
        for id_steps in history.ids.values():
            for claim in id_steps.claims:
                if claim.origin is not None:
                    jobs[claim.origin].setdefault(claim.id, claim)
        self.met += len(failed)
        for origin, claims in jobs.items():
            yield from self._check_fail_jobs(history, origin, claims, possible)
        for origin, step in failed.items() if history.drained is not None else ():
            if origin not in jobs:
                yield self.violation(origin[:2], f"the failure of fence {origin[2]} was never handled", step)

    def _check_fail_jobs(
        self, history: RecordedHistory, origin: Origin, claims: dict[str, RecordedStep], possible: set[Origin]
    ) -> Iterator[Violation]:
        if len(claims) > 1:
            why = f"the failure of fence {origin[2]} has {len(claims)} fail jobs"
            yield self.violation(origin[:2], why, *claims.values())
        [claim, *_] = claims.values()
        failed = [run.claim for run in runs_of(history, origin) if run.fence == origin[2]]
        if failed and claim.payload != failed[0].payload:
            why = f"the fail job of fence {origin[2]} carries {claim.payload!r}, not {failed[0].payload!r}"
            yield self.violation(origin[:2], why, failed[0], claim)
        if origin not in possible and not history.partial:
            yield self.violation(origin[:2], f"a fail job names fence {origin[2]}, which did not fail", claim)


def runs_of(history: RecordedHistory, origin: Origin) -> list[RecordedRun]:
    id_steps = history.ids.get(origin[:2])
    return id_steps.runs if id_steps is not None else []


def find_handled_failures(history: RecordedHistory) -> tuple[dict[Origin, RecordedStep], set[Origin]]:
    """Return the acknowledged failures that certainly were handled, and all that may have been.

    A repeated settlement shows the end long after it happened, so each of them must be certain.
    """
    failed: dict[Origin, RecordedStep] = {}
    possible: set[Origin] = set()
    uncertain: set[Origin] = set()
    for (queue, id), id_steps in history.ids.items():
        if queue.endswith(FAIL_SUFFIX):
            continue
        for step in (*id_steps.settles, *id_steps.others_of("finish")):
            if step.how != "fail" or step.status not in ("done", "unknown"):
                continue
            runs = [r for r in id_steps.runs if r.covers(step.revision)] if step.op == "finish" else ()
            origins = {(queue, id, run.fence) for run in runs} or {(queue, id, step.fence)}
            handler = possible_handlers(history, queue, step)
            if "true" in handler:
                possible |= origins
            if handler != {"true"} or step.op == "finish":
                uncertain |= origins
            elif step.status == "done":
                failed.setdefault((queue, id, step.fence), step)
    return {origin: step for origin, step in failed.items() if origin not in uncertain}, possible


def possible_handlers(history: RecordedHistory, queue: str, step: RecordedStep) -> set[str]:
    """Return the values, as JSON texts, that `fail_handler` may have had when the step took effect."""
    settings = history.settings.get(queue)
    if settings is None:
        return {"false"}
    return settings.possible("fail_handler", step.began, LATEST if step.ended is None else step.ended)


class MemoRule(HistoryRule):
    name = "R29"
    title = "a memo is fenced and kept"
    section = "1, Queues, ids and their parts"
    sentence = (
        "A run gets only a memo that an earlier run of its id may have stored, and after a comeback without "
        "new data the last one; a report under an older fence is answered lost."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            yield from self._check_late(id_steps)
            if not history.partial and not id_steps.imported:
                for run in id_steps.runs:
                    yield from self._check_source(id_steps, run)
                for a, b in pairwise(id_steps.runs):
                    yield from self._check_kept(id_steps, a, b)

    def _check_late(self, id_steps: IdSteps) -> Iterator[Violation]:
        """Yield reports that were accepted although a newer fence was known when they were sent."""
        for step, newest in newest_before(id_steps.reports, id_steps.claims, fence):
            if newest is None or step.fence >= newest.fence:
                continue
            self.met += 1
            if step.status == "reported":
                why = f"a report under fence {step.fence} was accepted after {newest.fence} was given"
                yield self.violation(id_steps.key, why, newest, step)

    def _check_source(self, id_steps: IdSteps, run: RecordedRun) -> Iterator[Violation]:
        if run.claim.memo in ("", NO_MEMO):
            return
        self.met += 1
        sources = [step for step in id_steps.reports if step.memo == run.claim.memo and step.status != "lost"]
        if not any(step.fence < run.fence and step.began <= ended(run.claim) for step in sources):
            why = f"fence {run.fence} got the memo {run.claim.memo!r}, which no earlier run stored"
            yield self.violation(id_steps.key, why, run.claim)

    def _check_kept(self, id_steps: IdSteps, a: RecordedRun, b: RecordedRun) -> Iterator[Violation]:
        """Yield a run without the memo of the run before it, if that run certainly came back unchanged."""
        reports = [step for step in id_steps.reports if step.fence == a.fence and step.memo]
        certain = all(step.status == "reported" and came_before_closing(a, step) for step in reports)
        if not b.claim.memo or not reports or not certain or not came_back(a, b):
            return
        if has_new_data(id_steps, a, b):
            return
        last = max(reports, key=lambda step: step.began)
        if all(before(step, last) for step in reports if step is not last):
            self.met += 1
            if b.claim.memo != last.memo:
                why = (
                    f"fence {b.fence} got the memo {b.claim.memo!r}; fence {a.fence} had stored {last.memo!r}"
                )
                yield self.violation(id_steps.key, why, last, b.claim)


def came_before_closing(run: RecordedRun, report: RecordedStep) -> bool:
    return ended(report) < run.earliest_close()


def came_back(a: RecordedRun, b: RecordedRun) -> bool:
    """Return whether run `a` certainly came back, and the job of `b` is the same one."""
    ways = {closed_as(step) for _, step in a.closing_steps}
    return ways == {"back"} and a.claim.first == b.claim.first


def has_new_data(id_steps: IdSteps, a: RecordedRun, b: RecordedRun) -> bool:
    """Return whether an enqueue, a forget or a retry_failed may have replaced the data between two runs."""
    changes = [step for step in id_steps.enqueues if step.replaces]
    changes += [step for step in id_steps.others if step.op in ("forget", "retry_failed")]
    changes += [step for step in id_steps.uncertain if step not in changes]
    return any(
        step.began <= ended(b.claim) and (step.ended is None or step.ended >= a.claim.began)
        for step in changes
    )


RULES = (AttemptsRule, CountsRule, FailuresHandledRule, MemoRule)
