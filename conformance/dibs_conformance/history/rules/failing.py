"""The rule about handled failures: each has exactly one fail job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dibs.model.job import FAIL_SUFFIX
from dibs_conformance.history.by_id import RecordedHistory, RecordedRun
from dibs_conformance.history.rules.rule import Rule, Violation
from dibs_conformance.history.step import Step

#: Queue, id and fence of the failed run.
Origin = tuple[str, str, int]


class FailuresHandledRule(Rule):
    name = "R14"
    title = "failures are handled"
    section = "4.5"
    sentence = (
        "Each handled failure has exactly one fail job with exactly its payload, claimed before a drain "
        "ends; each fail job belongs to a failure."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        failed, possible = find_handled_failures(history)
        jobs: dict[Origin, dict[str, Step]] = defaultdict(dict)
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
        self, history: RecordedHistory, origin: Origin, claims: dict[str, Step], possible: set[Origin]
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


def find_handled_failures(history: RecordedHistory) -> tuple[dict[Origin, Step], set[Origin]]:
    """Return the acknowledged handled failures, and all possible ones."""
    failed: dict[Origin, Step] = {}
    possible: set[Origin] = set()
    for (queue, id), id_steps in history.ids.items():
        if queue.endswith(FAIL_SUFFIX):
            continue
        for step in (*id_steps.settles, *id_steps.others_of("finish")):
            if step.how != "fail" or not step.handled or step.status not in ("done", "unknown"):
                continue
            runs = [r for r in id_steps.runs if r.covers(step.revision)] if step.op == "finish" else ()
            origins = {(queue, id, run.fence) for run in runs} or {(queue, id, step.fence)}
            possible |= origins
            if step.status == "done" and step.op == "settle":
                failed.setdefault((queue, id, step.fence), step)
    return failed, possible


RULES = (FailuresHandledRule,)
