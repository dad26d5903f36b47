"""A failure for people: what was done to the id, who did it, and when, the guilty steps marked."""

from __future__ import annotations

from collections.abc import Iterator

from dibs_conformance.history.by_id import History
from dibs_conformance.history.rules.rule import Violation
from dibs_conformance.history.step import Step

#: Steps told before and after the guilty ones.
AROUND = 12
WORDS = (
    "how", "key", "payload", "handled", "running", "lease", "result", "fence", "first", "revision", "attempt",
    "priority", "run_at", "now", "until", "origin", "read", "counts",
)  # fmt: skip


def timeline(history: History, violation: Violation) -> tuple[str, ...]:
    """Tell the steps of the id around the guilty ones, which begin with a mark.

    Times are those of the recorder, from the first step that is told.
    """
    steps = around(history, violation)
    zero = min((step.began for step in steps), default=0)
    guilty = {id(step) for step in violation.steps}
    width = max((len(step.client) for step in steps), default=0)
    return tuple(line(step, zero, width, guilty=id(step) in guilty) for step in steps)


def around(history: History, violation: Violation) -> list[Step]:
    life = history.lives.get(violation.key)
    steps = life.steps() if life is not None else []
    steps += [step for step in violation.steps if all(step is not one for one in steps)]
    steps.sort(key=lambda step: step.began)
    places = [n for n, step in enumerate(steps) if any(step is one for one in violation.steps)]
    if not places:
        return steps[: 2 * AROUND]
    near = {n for place in places for n in range(place - AROUND, place + AROUND + 1)}
    return [step for n, step in enumerate(steps) if n in near]


def line(step: Step, zero: int, width: int, *, guilty: bool) -> str:
    when = f"{step.began - zero}..{step.ended - zero if step.ended is not None else '?'}"
    mark = ">" if guilty else " "
    said = " ".join(words(step))
    return f"{mark} {when:<12} {step.client:<{width}}  {step.op} {said} -> {step.status}"


def words(step: Step) -> Iterator[str]:
    """What was asked and told, where it is not as usual."""
    if step.id:
        yield repr(step.id)
    for name in WORDS:
        value = getattr(step, name)
        if value:
            yield f"{name}={value[:8] if name == 'lease' else value}"
