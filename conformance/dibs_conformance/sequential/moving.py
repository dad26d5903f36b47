"""A test of export and import: copies a queue to an empty location, and compares the copy with the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

from msgspec import structs

from dibs.model.job import Slot
from dibs.model.requests import Settings, SettingsPatch
from dibs.model.results import ExportRecord
from dibs_conformance.oracle.numbering import Mismatch, NumberKind
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.target import OpenedStorage
from dibs_conformance.verbs import Lockstep, import_
from dibs_conformance.verbs.list import hide_expired

HOUR = 3_600_000


def read_export(pair: Lockstep, queue: str, limit: int) -> tuple[list[ExportRecord], Settings]:
    """Export a queue page by page. Return its records and its settings.

    Raise Mismatch unless each id occurs once, equal to that of the oracle.
    """
    records, settings = pair.read_export(queue, limit)
    pair.record("export", {"queue": queue, "limit": limit}, [record.id for record in records])
    check_ids(pair, queue, [record.id for record in records])
    for record in records:
        pair.compare_slot(queue, record.id, hide_expired(record.slot, pair.now))
    return records, settings


def export_in_parts(pair: Lockstep, queue: str, parts: int, limit: int) -> None:
    """Export a queue in parts. Raise Mismatch unless all parts together contain each id once."""
    read = [pair.read_export(queue, limit, part)[0] for part in pair.split(queue, parts)]
    ids = [[record.id for record in records] for records in read]
    pair.record("export", {"queue": queue, "parts": parts, "limit": limit}, ids)
    check_ids(pair, queue, [id for part in ids for id in part])


def check_ids(pair: Lockstep, queue: str, ids: list[str]) -> None:
    """Raise Mismatch unless each live id was exported once.

    An id whose outcome has expired may be missing.
    """
    known = pair.oracle.queue(queue).ids
    must = {id for id, one in known.items() if one.current or one.live_outcome(pair.now)}
    if len(ids) != len(set(ids)) or not must <= set(ids) <= set(known):
        raise Mismatch(f"export has {sorted(ids)}; expected {sorted(must)}")


def copy_and_compare(session: ExampleSession, source: Lockstep, queue: str, limit: int) -> None:
    """Copy a queue to a new location. Compare its slots, counts and order of claims there with the oracle.

    The records are imported twice; the second import must change no id.
    """
    opened = OpenedStorage(session.locations, session.runner, session.locations.new())
    target = Lockstep(opened, session.runner, session.story, now=source.now, compare_each=True)
    target.oracle.numbers = source.oracle.numbers
    try:
        copy_queue(source, target, queue, limit)
    finally:
        opened.close()


def copy_queue(source: Lockstep, target: Lockstep, queue: str, limit: int) -> None:
    records, settings = read_export(source, queue, limit)
    export_in_parts(source, queue, limit, limit)
    target.configure(queue, SettingsPatch(**structs.asdict(settings)))
    answers = target.call("import_", {"queue": queue}, target.storage.import_(queue, records, now=target.now))
    if [*answers] != ["imported"] * len(records):
        raise Mismatch(f"import_ into an empty location returned {answers}; expected imported")
    copy_oracle(source, target, queue, records)
    target.compare_slots(queue)
    target.counts([queue])
    import_twice(target, queue, records)
    claim_all(target, queue)


def copy_oracle(source: Lockstep, target: Lockstep, queue: str, records: list[ExportRecord]) -> None:
    """Copy the records of the oracle to the oracle of `target`, and map the imported numbers to them."""
    target.numbering = source.numbering.copy_for_import(queue)
    call = target.oracle.numbers.call
    for record in records:
        for kind, number in imported_numbers(record.slot):
            scope = (queue, record.id)
            target.numbering.add_imported(
                kind, scope, source.numbering.expected(kind, scope, number), number, call
            )
        known = deepcopy(source.oracle.get(queue, record.id))
        import_.step(target.oracle, queue, record.id, known, target.now)


def import_twice(target: Lockstep, queue: str, records: list[ExportRecord]) -> None:
    """Import the records of existing ids again. Raise Mismatch unless each one gets the result `exists`."""
    known = target.oracle.queue(queue).ids
    there = [
        record for record in records if known[record.id].current or known[record.id].live_outcome(target.now)
    ]
    answers = target.call("import_", {"queue": queue}, target.storage.import_(queue, there, now=target.now))
    if [*answers] != ["exists"] * len(there):
        raise Mismatch(f"import_ of existing ids returned {answers}; expected exists")
    target.compare_slots(queue)


def claim_all(target: Lockstep, queue: str) -> None:
    """Claim the due jobs of the copy. The order must be that of the oracle, and each fence must be new."""
    target.configure(queue, SettingsPatch(paused=False, max_active=None))
    lease = target.grant([queue], HOUR, "mover")
    target.claim(queue, lease, 100)


def imported_numbers(slot: Slot) -> Iterator[tuple[NumberKind, int]]:
    """Yield each seq, revision and fence of an exported slot, with its kind."""
    for live in (slot.current, slot.successor):
        if live is not None:
            if live.seq:  # A successor that creates nothing has none.
                yield "seq", live.seq
            yield "revision", live.revision
    if slot.current is not None and slot.current.run is not None:
        yield "fence", slot.current.run.fence
    if slot.outcome is not None:
        yield "revision", slot.outcome.revision
        if slot.outcome.fence:
            yield "fence", slot.outcome.fence
