"""Export from one place, import into an empty second one, and hold the copy against the oracle's."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

from msgspec import structs

from dibs.model.job import Outcome, Slot
from dibs.model.requests import Settings, SettingsPatch
from dibs.model.results import ExportRecord
from dibs_conformance.oracle.numbering import Kind, Mismatch
from dibs_conformance.sequential.lockstep.core import MOST_PAGES, Part
from dibs_conformance.sequential.lockstep.log import Lockstep as Lockstep

HOUR = 3_600_000


def exported(pair: Lockstep, queue: str, limit: int) -> tuple[list[ExportRecord], Settings]:
    """Everything of a queue, page by page: each id once, as the oracle knows it."""
    records, settings = pages(pair, queue, limit)
    pair.record("export", {"queue": queue, "limit": limit}, [record.id for record in records])
    check_ids(pair, queue, [record.id for record in records])
    for record in records:
        pair.compare_slot(queue, record.id, shown(record.slot, pair.now))
    return records, settings


def export_in_parts(pair: Lockstep, queue: str, parts: int, limit: int) -> None:
    """The same, cut in parts: together they are the whole."""
    read = [pages(pair, queue, limit, part)[0] for part in pair.split(queue, parts)]
    ids = [[record.id for record in records] for records in read]
    pair.record("export", {"queue": queue, "parts": parts, "limit": limit}, ids)
    check_ids(pair, queue, [id for part in ids for id in part])


def pages(
    pair: Lockstep, queue: str, limit: int, part: Part = (None, None)
) -> tuple[list[ExportRecord], Settings]:
    """What an export has from one cursor up to another."""
    records: list[ExportRecord] = []
    after, until = part
    for _ in range(MOST_PAGES):
        page = pair.wait_for(pair.storage.export(queue, after=after, until=until, limit=limit))
        records += page.records
        after = page.after
        if after is None:
            return records, page.settings
    raise Mismatch(f"export of {queue!r} has no end")


def check_ids(pair: Lockstep, queue: str, ids: list[str]) -> None:
    """Every id that holds anything is there; one whose outcome expired may be."""
    known = pair.oracle.queue(queue).ids
    must = {id for id, one in known.items() if one.current or one.live_outcome(pair.now)}
    if len(ids) != len(set(ids)) or not must <= set(ids) <= set(known):
        raise Mismatch(f"export has {sorted(ids)}; the contract says {sorted(must)}")


def shown(slot: Slot, now: int) -> Slot:
    """The slot as get would show it."""
    return structs.replace(slot, outcome=None) if slot.outcome and gone(slot.outcome, now) else slot


def gone(outcome: Outcome, now: int) -> bool:
    return outcome.expires_at is not None and now >= outcome.expires_at


def move(source: Lockstep, target: Lockstep, queue: str, limit: int) -> None:
    """Move a queue and compare: the slots, the counts, that it is refused twice, and the order it runs in."""
    records, settings = exported(source, queue, limit)
    export_in_parts(source, queue, limit, limit)
    target.configure(queue, SettingsPatch(**structs.asdict(settings)))
    answers = target.call("import_", {"queue": queue}, target.storage.import_(queue, records, now=target.now))
    if [*answers] != ["imported"] * len(records):
        raise Mismatch(f"import_ into an empty place answered {answers}")
    take_in(source, target, queue, records)
    target.compare_slots(queue)
    target.counts([queue])
    import_again(target, queue, records)
    run_all(target, queue)


def take_in(source: Lockstep, target: Lockstep, queue: str, records: list[ExportRecord]) -> None:
    """Let the oracle's copy of the queue follow."""
    target.numbering = source.numbering.moved(queue)
    call = target.oracle.numbers.call
    for record in records:
        for kind, number in numbers(record.slot):
            scope = (queue, record.id)
            target.numbering.take_over(
                kind, scope, source.numbering.expected(kind, scope, number), number, call
            )
        known = deepcopy(source.oracle.get(queue, record.id))
        target.oracle.import_(queue, record.id, known, target.now)


def import_again(target: Lockstep, queue: str, records: list[ExportRecord]) -> None:
    """What is there is left alone."""
    known = target.oracle.queue(queue).ids
    there = [
        record for record in records if known[record.id].current or known[record.id].live_outcome(target.now)
    ]
    answers = target.call("import_", {"queue": queue}, target.storage.import_(queue, there, now=target.now))
    if [*answers] != ["exists"] * len(there):
        raise Mismatch(f"import_ of ids that exist answered {answers}")
    target.compare_slots(queue)


def run_all(target: Lockstep, queue: str) -> None:
    """Claim what is due: in the same order, under fences above all that came in."""
    target.configure(queue, SettingsPatch(paused=False, max_active=None))
    lease = target.grant([queue], HOUR, "mover")
    target.claim(queue, lease, 100)


def numbers(slot: Slot) -> Iterator[tuple[Kind, int]]:
    """The numbers that come in with a slot."""
    for live in (slot.current, slot.successor):
        if live is not None:
            yield "seq", live.seq
            yield "revision", live.revision
    if slot.current is not None and slot.current.run is not None:
        yield "fence", slot.current.run.fence
    if slot.outcome is not None:
        yield "revision", slot.outcome.revision
        if slot.outcome.fence:
            yield "fence", slot.outcome.fence
