"""Small lies planted in a true history, one at a time, as a storage with a bug would answer them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from dibs_conformance.history import Step
from dibs_conformance.history.step import End

Lie = Callable[[Step, Random], Step | None]

ANSWERS = {
    "settle": ("done", "returned", "lost", "cancelled", "handed_off"),
    "cancel": ("cancelled", "active", "requested", "not_found", "completed"),
    "finish": ("done", "lost", "refused", "not_found"),
    "enqueue": ("queued", "updated", "blocked", "duplicate"),
    "reap": ("stalled", "cancelled"),
}


def answer(step: Step, random: Random) -> Step | None:
    """Another answer of the same verb."""
    others = [word for word in ANSWERS.get(step.op, ()) if word != step.status]
    return replace(step, status=random.choice(others)) if others and not step.unknown else None


def number(step: Step, random: Random) -> Step | None:
    """A fence, an end of the range, or an attempt that is somewhat off."""
    if step.op != "claim" or step.status != "taken":
        return None
    name = random.choice(("fence", "first", "revision", "attempt"))
    by = random.choice((-1, 1)) * random.choice((1, 1000))
    return replace(step, **{name: max(1, getattr(step, name) + (by if name != "attempt" else by % 3 - 1))})


def payload(step: Step, _: Random) -> Step | None:
    return replace(step, payload="another") if step.op == "claim" and step.status == "taken" else None


def reading(step: Step, random: Random) -> Step | None:
    """A read that lost its job, or tells another end."""
    if step.op != "get" or step.read is None:
        return None
    outcome = step.read.outcome
    if outcome is None or random.random() < 0.5:
        return replace(step, read=replace(step.read, current=None, fence=0, successor=None))
    kind = "failed" if outcome.kind == "completed" else "completed"
    return replace(
        step, read=replace(step.read, outcome=End(kind, outcome.fence, outcome.first, outcome.revision))
    )


LIES: tuple[Lie, ...] = (answer, answer, number, payload, reading)


def tampered(steps: list[Step], random: Random) -> list[Step]:
    """The history with one lie in it; or with one answer that nobody noted down."""
    told = list(steps)
    for _ in range(100):
        place = random.randrange(len(told))
        if told[place].queue == "q" and random.random() < 0.1 and told[place].op in ("settle", "reap"):
            return told[:place] + told[place + 1 :]
        lie = random.choice(LIES)(told[place], random)
        if lie is not None and lie != told[place]:
            told[place] = lie
            return told
    return told
