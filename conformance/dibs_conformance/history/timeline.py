"""The timeline of a violation for the report: the steps on its id, with the contradicting steps marked."""

from __future__ import annotations

from collections.abc import Iterator

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.rules.rule import Violation
from dibs_conformance.steps import RecordedStep

#: Steps shown before and after each marked step.
CONTEXT_STEPS = 12
FIELDS = (
    "how", "key", "payload", "memo", "running", "lease", "result", "fence", "first", "revision", "attempt",
    "priority", "job_key", "run_at", "now", "until", "origin", "read", "counts",
)  # fmt: skip


def timeline(history: RecordedHistory, violation: Violation) -> tuple[str, ...]:
    """Return the steps near the violating ones as lines. Violating steps start with ">".

    Times are those of the recorder, counted from the first line.
    """
    steps = steps_near(history, violation)
    zero = min((step.began for step in steps), default=0)
    marked = {id(step) for step in violation.steps}
    width = max((len(step.client) for step in steps), default=0)
    return tuple(line(step, zero, width, marked=id(step) in marked) for step in steps)


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


def line(step: RecordedStep, zero: int, width: int, *, marked: bool) -> str:
    when = f"{step.began - zero}..{step.ended - zero if step.ended is not None else '?'}"
    mark = ">" if marked else " "
    fields = " ".join(field_texts(step))
    return f"{mark} {when:<12} {step.client:<{width}}  {step.op} {fields} -> {step.status}"


def field_texts(step: RecordedStep) -> Iterator[str]:
    """Yield the fields that differ from their default."""
    if step.id:
        yield repr(step.id)
    for name in FIELDS:
        value = getattr(step, name)
        if value:
            yield f"{name}={value[:8] if name == 'lease' else value}"
