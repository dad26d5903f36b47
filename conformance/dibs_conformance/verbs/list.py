"""The verb `list`, which reads the ids in a state page by page, and the division of a reading by `split`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from dibs.model.job import Slot
from dibs.model.results import State
from dibs.storage.protocol import Storage
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import CursorRange, LockstepCore, MachineBase
from dibs_conformance.oracle.matching import match_slot
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import STATES, OracleWorld, states_of_record
from dibs_conformance.verbs.actions import IDS, ClientCall
from dibs_conformance.verbs.verb import CallPart, Verb, read_races


class SplitCalls(LockstepCore):
    """`split`, called in lockstep."""

    def split(self, queue: str, parts: int, state: State | None = None) -> list[CursorRange]:
        """Return the two cursors of each part into which `split` divides a listing or an export."""
        args = {"queue": queue, "parts": parts, "state": state}
        cuts = self.call(
            "split", args, self.storage.split(queue, parts, **self.options("split", state=state))
        )
        if len(cuts) >= parts:
            raise Mismatch(
                f"split in {parts} parts returned {len(cuts)} cursors; expected at most {parts - 1}"
            )
        return list(zip((None, *cuts), (*cuts, None), strict=True))


#: Limit on the pages of a reading, so that a storage whose pages never end cannot hang the tests. No example
#: fills so many pages.
MAX_PAGES = 1000


class EndlessPages(Exception):
    """Raised if a reading has more than `MAX_PAGES` pages."""


async def read_list(
    storage: Storage, queue: str, state: State, *, limit: int = 100, now: int | None = None
) -> list[tuple[str, Slot]]:
    """Return all ids in a state."""
    found: list[tuple[str, Slot]] = []
    after: str | None = None
    for _ in range(MAX_PAGES):
        page = await storage.list(queue, state, after=after, limit=limit, now=now)
        found += page.items
        after = page.after
        if after is None:
            return found
    raise EndlessPages(f"list of {queue!r} does not end after {MAX_PAGES} pages")


# -- beside other clients, also for `export` and `split` ---------------------------------------------


def split_reading(call: ClientCall) -> Iterator[CallPart]:
    """Yield one part for each id that was read, or that is missing in the answer."""
    found: list[tuple[str, Slot]] = call.answer
    for id, slot in found:
        yield CallPart(call, call.operation, id, slot, apply_found)
    for id in sorted(set(IDS) - {id for id, _ in found}):
        yield CallPart(call, "absent", id, None, apply_absent, is_pure=True)


def apply_found(world: OracleWorld, part: CallPart, now: int) -> None:
    """Compare an id of a listing or an export. Raises Mismatch if the id is not in the state."""
    queue, id, slot = part.call.queue, part.request, part.answer
    found = [found for found, _ in part.call.answer]
    if found.count(id) > 1 and not part.may_skip(id):
        raise Mismatch(f"{part.operation} has {id!r} {found.count(id)} times")
    match_slot(world.numbering, (queue, id), world.oracle.get(queue, id), hide_expired(slot, now), now)
    # An export may also have an id whose outcome has expired.
    if "state" in part.call.args and not is_listed(world, part, now):
        state = part.call.args.get("state")
        raise Mismatch(f"{part.operation} has {id!r}, which is not in the state {state}")


def apply_absent(world: OracleWorld, part: CallPart, now: int) -> None:
    if is_listed(world, part, now):
        raise Mismatch(f"{part.call.operation} lacks {part.request!r}")


def is_listed(world: OracleWorld, part: CallPart, now: int) -> bool:
    """Return whether the listing or the export of the call must have the id of the part at this moment."""
    record = world.oracle.get(part.call.queue, part.request)
    state = part.call.args.get("state")
    if state is None:
        return record.current is not None or record.live_outcome(now) is not None
    return state in set(states_of_record(record, now))


def hide_expired(slot: Slot, now: int) -> Slot:
    """Return the slot as `get` shows it: without an expired outcome. An export may still have it."""
    outcome = slot.outcome
    is_expired = outcome is not None and outcome.expires_at is not None and now >= outcome.expires_at
    return replace(slot, outcome=None) if is_expired else slot


# -- in lockstep -------------------------------------------------------------------------------------


class ListCalls(SplitCalls):
    """`list`, called in lockstep."""

    def list(self, queue: str, state: State, limit: int) -> None:
        """Read a whole listing, then the same listing in parts. In both, each id must appear once."""
        items = self.read_listing(queue, state, limit)
        self._compare_listing(queue, state, {"limit": limit}, [id for id, _ in items])
        for id, slot in items:
            self.compare_slot(queue, id, slot)
        parts = self.split(queue, limit, state)
        read = [id for part in parts for id, _ in self.read_listing(queue, state, limit, part)]
        self._compare_listing(queue, state, {"limit": limit, "parts": limit}, read)

    def _compare_listing(self, queue: str, state: State, options: dict[str, int], ids: Sequence[str]) -> None:
        self.record("list", {"queue": queue, "state": state, **options}, ids)
        expected = self.oracle.list(queue, state)
        if len(ids) != len(set(ids)) or set(ids) != expected:
            raise Mismatch(f"list {state} has {sorted(ids)}; expected {sorted(expected)}")


class ListRules(MachineBase):
    @rule(queue=some.every_queue, state=st.sampled_from(STATES), limit=some.limits)
    def list(self, queue: str, state: State, limit: int) -> None:
        self.lockstep.list(queue, state, limit)


VERB = Verb(
    name="list",
    section="3, Queues as a whole",
    weight=1,
    arguments=lambda action, _, __: {"state": action.state, "limit": action.limit},
    split=split_reading,
    apply=apply_found,
    reads=True,
    call=read_list,
    races=read_races("list beside settle (3, Queues as a whole): both wait; claim / list one state=active"),
    valid={"after": None, "until": None},
)
