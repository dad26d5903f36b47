"""The comparison of a possible world with a snapshot, the content of a queue while all clients are idle."""

from __future__ import annotations

from dibs.model.job import FAIL_SUFFIX, Slot
from dibs_conformance.oracle.matching import match, match_event, match_slot
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.possible_world import PossibleWorld
from dibs_conformance.verbs.calls import Snapshot


def check_snapshot(world: PossibleWorld, queue: str, snapshot: Snapshot) -> None:
    """Compare the oracle with a snapshot. Raises Mismatch."""
    world.oracle.numbers.next_call()
    world.oracle.now = max(world.oracle.now, snapshot.now)
    for id, slot in snapshot.slots.items():
        try:
            match_slot(
                world.numbering,
                (queue, id),
                world.oracle.get(queue, id),
                slot,
                max(snapshot.now, world.oracle.now),
            )
        except Mismatch as error:
            raise Mismatch(f"in the snapshot, {id!r}: {error}") from None
    match_fail_jobs(world, queue, snapshot.failed)
    if snapshot.settings is not None:
        match(world.numbering, (queue, ""), world.oracle.queue(queue).settings, snapshot.settings, "settings")
    if snapshot.events is not None:
        check_log(world, queue, snapshot)


def match_fail_jobs(world: PossibleWorld, queue: str, failed: dict[str, Slot] | object) -> None:
    """Give the oracle's fail jobs the ids that the storage has generated for them.

    Jobs are matched by the run that failed. Raises Mismatch for an extra or missing fail job.
    """
    assert isinstance(failed, dict)  # noqa: S101
    target = world.oracle.queue(queue + FAIL_SUFFIX)
    for id, slot in failed.items():
        if id not in target.ids:
            target.rename(match_origin(world, slot), id)
    missing = [id for id, known in target.ids.items() if known.current is not None and id not in failed]
    if missing:
        raise Mismatch(f"{len(missing)} fail jobs are missing")


def match_origin(world: PossibleWorld, slot: Slot) -> str:
    origin = slot.current.origin if slot.current is not None else None
    if origin is None:
        raise Mismatch("a fail job has no origin")
    fence = world.numbering.expected("fence", (origin.queue, origin.id), origin.fence)
    for id, known in world.oracle.queue(origin.queue + FAIL_SUFFIX).ids.items():
        made = known.current.origin if known.current is not None else None
        if id.startswith("?") and made is not None and (made.id, made.fence) == (origin.id, fence):
            return id
    raise Mismatch(f"a fail job names a run of {origin.id!r} that did not fail")


def check_log(world: PossibleWorld, queue: str, snapshot: Snapshot) -> None:
    """Compare the events of each id, in order. Raises Mismatch for an extra or missing event."""
    expected: dict[str, list[object]] = {}
    for logged in world.oracle.queue(queue).log:
        expected.setdefault(logged.event.id, []).append(logged.event)
    for event in snapshot.events or ():
        remaining = expected.get(event.id, [])
        if not remaining:
            raise Mismatch(f"the log has {event.kind} of {event.id!r}, which did not happen")
        match_event(world.numbering, queue, remaining.pop(0), event)  # type: ignore[arg-type]
    missing = [id for id, rest in expected.items() if rest]
    if missing:
        raise Mismatch(f"the log has no event of {missing[0]!r}")
