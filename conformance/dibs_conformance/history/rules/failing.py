"""The rule about handled failures: each failure under `fail_handler` has exactly one fail job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dibs.model.job import FAIL_SUFFIX
from dibs_conformance.history.by_id import RecordedHistory, RecordedRun
from dibs_conformance.history.rules.rule import HistoryRule, Violation
from dibs_conformance.steps import RecordedStep

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


RULES = (FailuresHandledRule,)
