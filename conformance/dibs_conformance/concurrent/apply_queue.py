"""The application of readings, of `configure` and of `import_` to a possible world (possible_world.py)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from dibs.model.job import Outcome, Slot
from dibs_conformance.concurrent.call_parts import CallPart
from dibs_conformance.concurrent.possible_world import PossibleWorld
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.oracle.matching import match, match_slot
from dibs_conformance.oracle.numbering import Mismatch, NumberKind
from dibs_conformance.oracle.storage import states_of_record


def _get(world: PossibleWorld, part: CallPart, now: int) -> None:
    id = part.request
    match_slot(
        world.numbering, (part.call.queue, id), world.oracle.get(part.call.queue, id), part.answer, now
    )


def _read_listed(world: PossibleWorld, part: CallPart, now: int) -> None:
    """Compare an id of a listing or an export. Raises Mismatch if the id is not in the state."""
    queue, id, slot = part.call.queue, part.request, part.answer
    found = [found for found, _ in part.call.answer]
    if found.count(id) > 1 and not part.may_skip(id):
        raise Mismatch(f"{part.operation} has {id!r} {found.count(id)} times")
    match_slot(world.numbering, (queue, id), world.oracle.get(queue, id), hide_expired(slot, now), now)
    # An export may also have an id whose outcome has expired.
    if "state" in part.call.args and not is_listed(world, part, now):
        raise Mismatch(
            f"{part.operation} has {id!r}, which is not in the state {part.call.args.get('state')}"
        )


def _read_absent(world: PossibleWorld, part: CallPart, now: int) -> None:
    if is_listed(world, part, now):
        raise Mismatch(f"{part.call.operation} lacks {part.request!r}")


def is_listed(world: PossibleWorld, part: CallPart, now: int) -> bool:
    """Return whether the listing or the export of the call must have the id of the part at this moment."""
    record = world.oracle.get(part.call.queue, part.request)
    state = part.call.args.get("state")
    if state is None:
        return record.current is not None or record.live_outcome(now) is not None
    return state in set(states_of_record(record, now))


def hide_expired(slot: Slot, now: int) -> Slot:
    """Return the slot without an expired outcome. An export may still have it."""
    outcome = slot.outcome
    is_expired = outcome is not None and outcome.expires_at is not None and now >= outcome.expires_at
    return replace(slot, outcome=None) if is_expired else slot


def _counts(world: PossibleWorld, part: CallPart, _: int) -> None:
    expected = getattr(world.oracle.counts(part.call.queue), part.request)
    if part.answer != expected:
        raise Mismatch(f"counts answered {part.answer} {part.request}; expected {expected}")


def _configure(world: PossibleWorld, part: CallPart, now: int) -> None:
    expected = world.oracle.configure(part.call.queue, part.request["patch"], now)
    if part.answered:
        match(world.numbering, (part.call.queue, ""), expected, part.answer, "settings")


def _import(world: PossibleWorld, part: CallPart, now: int) -> None:
    """Import one record of an id that waits, or of an id with an outcome only."""
    queue, id, slot = part.call.queue, part.request.id, part.request.slot
    known = world.oracle.queue(queue).record(id)
    exists = known.current is not None or known.live_outcome(now) is not None
    if part.answered and part.answer != ("exists" if exists else "imported"):
        raise Mismatch(
            f"import_ answered {part.answer!r} for {id!r}, which {'exists' if exists else 'is free'}"
        )
    if not exists:
        add_numbers(world, (queue, id), slot)
        world.oracle.import_(queue, id, IdRecord(current=slot.current, outcome=slot.outcome), now)


def add_numbers(world: PossibleWorld, scope: tuple[str, str], slot: Slot) -> None:
    """Map the numbers of an imported slot to themselves. They are below all that the oracle draws."""
    parts = [part for part in (slot.current, slot.outcome) if part is not None]
    numbers: list[tuple[NumberKind, int]] = [("revision", part.revision) for part in parts]
    numbers += [("seq", part.seq) for part in parts if not isinstance(part, Outcome)]
    for kind, number in numbers:
        if world.numbering.actual(kind, scope, number) is None:
            world.numbering.add_imported(kind, scope, number, number, 0)


APPLY_TO_QUEUE: dict[str, Callable[[PossibleWorld, CallPart, int], None]] = {
    "get": _get,
    "list": _read_listed,
    "export": _read_listed,
    "split": _read_listed,
    "absent": _read_absent,
    "counts": _counts,
    "configure": _configure,
    "import_": _import,
}
