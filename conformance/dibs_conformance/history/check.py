"""The checker: decides whether a recorded history is possible for a storage that keeps the contract."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import inf

from msgspec import Struct

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.rules import RULES, HistoryRule, Violation
from dibs_conformance.report.call_text import TimelineEntry, timeline_lines
from dibs_conformance.report.values import LawFailure, LawReport, Verdict
from dibs_conformance.steps import RecordedStep

#: Violations reported per rule.
MAX_VIOLATIONS = 5
#: Steps shown before and after each marked step.
CONTEXT_STEPS = 12
FIELDS = (
    "how", "key", "payload", "memo", "running", "lease", "result", "fence", "first", "revision", "attempt",
    "priority", "job_key", "run_at", "now", "until", "origin", "read", "counts",
)  # fmt: skip


class CheckResult(Struct, frozen=True, kw_only=True):
    """The result of checking one history."""

    steps: int
    ids: int
    runs: int
    #: Number of calls without an answer.
    unknown: int
    faults: int
    laws: tuple[LawReport, ...]
    failures: tuple[LawFailure, ...]

    @property
    def holds(self) -> bool:
        """True if no rule is broken. A rule that never applied is not broken either."""
        return not self.failures


def check(steps: Iterable[RecordedStep]) -> CheckResult:
    """Check a history against every rule. Time and memory grow nearly linearly with its length.

    For example:

        checked = check(read_file(Path("history.jsonl")))
        if not checked.holds:
            print(*(f"{one.law}: {one.why}" for one in checked.failures))
    """
    with gc_disabled():
        history = RecordedHistory.from_steps(steps)
        rules = [rule() for rule in RULES]
        violations = {rule.name: [*islice(rule.check(history), MAX_VIOLATIONS)] for rule in rules}
        return CheckResult(
            steps=history.size,
            ids=len(history.ids),
            runs=sum(len(id_steps.runs) for id_steps in history.ids.values()),
            unknown=history.unknown,
            faults=len(history.faults),
            laws=tuple(law_report_of(rule, violations[rule.name]) for rule in rules),
            failures=tuple(failure_from(history, one) for group in violations.values() for one in group),
        )


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector while the context lasts.

    With a million small objects that all stay alive, collections would take longer than the rules.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def law_report_of(rule: HistoryRule, broken: list[Violation]) -> LawReport:
    verdict: Verdict = "broken" if broken else "kept" if rule.met else "not tested"
    return LawReport(
        name=f"{rule.name} {rule.title}",
        section=rule.section,
        sentence=rule.sentence,
        met=rule.met,
        verdict=verdict,
    )


def failure_from(history: RecordedHistory, violation: Violation) -> LawFailure:
    rule = next(rule for rule in RULES if rule.name == violation.rule)
    queue, id = violation.key
    about = f"{queue!r}/{id!r}: " if id else f"{queue!r}: "
    return LawFailure(
        law=f"{rule.name} {rule.title}", why=about + violation.why, story=timeline(history, violation)
    )


# -- the timeline of a violation ---------------------------------------------------------------------


def timeline(history: RecordedHistory, violation: Violation) -> tuple[str, ...]:
    """Return the steps near the violating ones as lines, with the violating steps marked."""
    marked = {id(step) for step in violation.steps}
    return tuple(
        timeline_lines(
            TimelineEntry(
                step.client,
                step.began,
                inf if step.ended is None else step.ended,
                " ".join((step.op, *field_texts(step), "->", step.status)),
                marked=id(step) in marked,
            )
            for step in steps_near(history, violation)
        )
    )


def steps_near(history: RecordedHistory, violation: Violation) -> list[RecordedStep]:
    id_steps = history.ids.get(violation.key)
    steps = id_steps.steps() if id_steps is not None else []
    steps += [step for step in violation.steps if all(step is not one for one in steps)]
    steps.sort(key=lambda step: step.began)
    positions = [n for n, step in enumerate(steps) if any(step is one for one in violation.steps)]
    if not positions:
        return steps[: 2 * CONTEXT_STEPS]
    nearby = {
        n for position in positions for n in range(position - CONTEXT_STEPS, position + CONTEXT_STEPS + 1)
    }
    return [step for n, step in enumerate(steps) if n in nearby]


def field_texts(step: RecordedStep) -> Iterator[str]:
    """Yield the fields that differ from their default."""
    if step.id:
        yield repr(step.id)
    for name in FIELDS:
        value = getattr(step, name)
        if value:
            yield f"{name}={value[:8] if name == 'lease' else value}"
