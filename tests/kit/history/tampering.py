"""Wrong answers planted in a correct history, one at a time, as a storage with a bug would give them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from dibs_conformance.history import RecordedStep
from dibs_conformance.steps import RecordedOutcome

Tamper = Callable[[RecordedStep, Random], RecordedStep | None]

ANSWERS = {
    "settle": ("done", "returned", "lost", "cancelled", "handed_off"),
    "cancel": ("cancelled", "active", "requested", "not_found", "completed"),
    "finish": ("done", "lost", "refused", "not_found"),
    "enqueue": ("queued", "updated", "blocked", "duplicate"),
    "reap": ("stalled", "cancelled"),
}


def change_answer(step: RecordedStep, random: Random) -> RecordedStep | None:
    """Return another answer of the same operation."""
    others = [status for status in ANSWERS.get(step.op, ()) if status != step.status]
    return replace(step, status=random.choice(others)) if others and not step.unknown else None


def change_number(step: RecordedStep, random: Random) -> RecordedStep | None:
    """Return a wrong fence, revision or attempt."""
    if step.op != "claim" or step.status != "taken":
        return None
    name = random.choice(("fence", "first", "revision", "attempt"))
    difference = random.choice((-1, 1)) * random.choice((1, 1000))
    return replace(
        step,
        **{name: max(1, getattr(step, name) + (difference if name != "attempt" else difference % 3 - 1))},
    )


def change_payload(step: RecordedStep, _: Random) -> RecordedStep | None:
    return replace(step, payload="another") if step.op == "claim" and step.status == "taken" else None


def change_read(step: RecordedStep, random: Random) -> RecordedStep | None:
    """Return a read without its job, or with another outcome."""
    if step.op != "get" or step.read is None:
        return None
    outcome = step.read.outcome
    if outcome is None or random.random() < 0.5:
        return replace(step, read=replace(step.read, current=None, fence=0, successor=None))
    kind = "failed" if outcome.kind == "completed" else "completed"
    return replace(
        step,
        read=replace(
            step.read, outcome=RecordedOutcome(kind, outcome.fence, outcome.first, outcome.revision)
        ),
    )


TAMPERS: tuple[Tamper, ...] = (change_answer, change_answer, change_number, change_payload, change_read)


def tamper(steps: list[RecordedStep], random: Random) -> list[RecordedStep]:
    """Return the history with one wrong answer, or without one of its steps."""
    changed_steps = list(steps)
    for _ in range(100):
        position = random.randrange(len(changed_steps))
        if (
            changed_steps[position].queue == "q"
            and random.random() < 0.1
            and changed_steps[position].op in ("settle", "reap")
        ):
            return changed_steps[:position] + changed_steps[position + 1 :]
        changed = random.choice(TAMPERS)(changed_steps[position], random)
        if changed is not None and changed != changed_steps[position]:
            changed_steps[position] = changed
            return changed_steps
    return changed_steps
