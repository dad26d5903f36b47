"""The lockstep: it calls a storage and the oracle, and compares results and slots.

After a call, its result is compared with that of the oracle, and then every slot of the queue. A slot holds
everything about one id.

After a claim that left no admitted job, its caller waits with the token of the claim until its `next_due`. If
a job is admitted before that time, a wait with this token must return at once. `check_token` makes such a
wait, through the handle of the claim.

`MachineBase` is the base class of the random rules: the session, the numbers that the storage issued, and
choices. The class `...Rules` of each verb builds on it. The state machine of L0 (sequential/state_machine.py)
inherits all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Mapping
from itertools import pairwise
from random import Random
from typing import Any, Final, Literal, TypeVar

from attrs import define, field, frozen
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.model.job import FAIL_SUFFIX, Origin, Slot
from dibs.model.requests import Complete, Fail, Settings, Settlement
from dibs.model.results import ClaimResult, EventPage, ExportRecord, State
from dibs.storage.abilities import Compaction, ability
from dibs.storage.protocol import Storage
from dibs_conformance import strategies as some
from dibs_conformance.answer_types import VERBS, check_result
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.oracle.changes import admitted_jobs, has_headroom
from dibs_conformance.oracle.matching import match, match_event, match_slot
from dibs_conformance.oracle.numbering import Mismatch, NumberMap
from dibs_conformance.oracle.queue import OracleWorld
from dibs_conformance.report.call_text import CallRecorder
from dibs_conformance.strategies import IDS
from dibs_conformance.target import OpenedStorage

T = TypeVar("T")
#: The cursors between which a part of a read lies. None is the start or the end of the whole.
CursorRange = tuple[str | None, str | None]
PAGE = 100
#: The arguments of each verb that have a default, with the default.
DEFAULTS: dict[str, dict[str, Any]] = {
    verb: {
        name: one.default
        for name, one in inspect.signature(getattr(Storage, verb)).parameters.items()
        if one.default is not inspect.Parameter.empty
    }
    for verb in VERBS
}
#: The most pages of one read. No example fills as many pages, so a read with more of them would never end.
MOST_PAGES = 1000
#: Seconds in which a storage gets the message about a change through another connection.
TOKEN_PATIENCE = 3.0


Kind = Literal["restart", "compact"]
#: The mean number of accesses to a storage for each interruption: in random examples, and in the walkthrough.
RARELY: Final = 25
OFTEN: Final = 8


@define
class Interruptions:
    """A plan of interruptions: before each access to a storage one may occur, on average one in `every`.

    The same sequence of accesses has the same interruptions, so that a replay repeats a failure.
    """

    kinds: tuple[Kind, ...] = ()
    every: int = RARELY
    _random: Random = field(factory=lambda: Random(0))

    def next(self) -> Kind | None:
        """Return the interruption before the next access, or None."""
        if not self.kinds or self._random.randrange(self.every):
            return None
        return self._random.choice(self.kinds)


def interruption_kinds(*, durable: bool, compacts: bool) -> tuple[Kind, ...]:
    """Return the interruptions that a storage must survive, by its claims."""
    return (*(("restart",) if durable else ()), *(("compact",) if compacts else ()))


def compact_handle(opened: OpenedStorage, runner: LoopRunner, handle: int) -> None:
    """Call the method `compact` of a handle, if its storage offers it."""
    compaction = ability(opened.handles[handle], Compaction)
    if compaction is not None:
        runner.run(compaction.compact())


@frozen
class StandingToken:
    """The token of the newest claim in a queue, if that claim left no admitted job."""

    token: str
    next_due: int | None
    #: The handle of the claim. After a restart it is another one: a restart ends all waits.
    storage: Storage

    def lasts(self, handles: list[Storage], now: int) -> bool:
        """Return whether the caller of the claim still waits at `now`."""
        is_open = any(handle is self.storage for handle in handles)
        return is_open and (self.next_due is None or now < self.next_due)


@define
class OutputReader:
    """The position of a reader of the output of an id: the offset, and the serial of the oracle's chunk."""

    offset: str | None = None
    serial: int = 0


class LockstepCore(OracleWorld):
    """One location of the storage under test, with the oracle of its content.

    With `compare_each`, all slots are read and compared after each call.
    """

    def __init__(
        self,
        opened: OpenedStorage,
        runner: LoopRunner,
        story: CallRecorder,
        *,
        now: int,
        compare_each: bool,
        interruptions: Interruptions | None = None,
    ) -> None:
        super().__init__(NumberMap())
        self.opened = opened
        self.now = now
        self.compare_each = compare_each
        self._runner = runner
        self._story = story
        # The same sequence of calls uses the same handles, so that a replay repeats a failure.
        self._turns = Random(0)
        self._handle = 0
        self._interruptions = interruptions or Interruptions()
        #: By queue and id: where readers of the output have been, by the oracle's serials and by offsets.
        self.read_offsets: dict[tuple[str, str], list[tuple[int, str]]] = {}
        #: By queue: the token of the newest claim, if its caller would wait with it.
        self.standing: dict[str, StandingToken] = {}

    @property
    def storage(self) -> Storage:
        """The handle for the next call. With several handles, each call uses one of them.

        Before the call, the handle may be closed and opened again, or do its rare work.
        """
        if len(self.opened.handles) > 1:
            self._handle = self._turns.randrange(len(self.opened.handles))
        interruption = self._interruptions.next()
        if interruption is not None:
            self.interrupt(interruption)
        return self.opened.handles[self._handle]

    @property
    def newest_handle(self) -> Storage:
        """The handle of the newest call."""
        return self.opened.handles[self._handle]

    def interrupt(self, kind: Kind) -> None:
        """Close the current handle and open it again, or let it do its rare work."""
        self.record(kind, {"handle": self._handle + 1} if len(self.opened.handles) > 1 else {}, None)
        if kind == "restart":
            self.opened.reopen(self._handle)
        else:
            compact_handle(self.opened, self._runner, self._handle)

    def options(self, verb: str, **given: Any) -> dict[str, Any]:
        """Return the arguments to pass. In every other call, leave out those equal to their defaults."""
        if self.oracle.numbers.call % 2:
            return given
        defaults = DEFAULTS[verb]
        return {name: value for name, value in given.items() if value != defaults[name]}

    def call(self, verb: str, args: Mapping[str, Any], work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, a call of the storage, and return its result. Record the call in any case."""
        self.oracle.begin_call(self.now)
        if len(self.opened.handles) > 1:
            args = {"handle": self._handle + 1, **args}
        try:
            answer = self._runner.run(work)
        except Exception:
            self._story.add(verb, self.now, args, "raised")
            raise
        self._story.add(verb, self.now, args, answer)
        check_result(verb, answer)
        return answer

    def pass_time(self, by: int) -> None:
        self.now += by
        self.oracle.begin_call(self.now)
        self.record("time passes", {"by": by}, None)

    def run_coroutine(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def record(self, verb: str, args: Mapping[str, Any], answer: Any) -> None:
        """Add a line to the recorded calls, for an operation that is not a single call of a verb."""
        self._story.add(verb, self.now, args, answer)

    def compare(self, queue: str, id: str, expected: Any, actual: Any) -> None:
        match(self.numbering, (queue, id), expected, actual)

    # -- slots ---------------------------------------------------------------------------------------

    def slots(self, queue: str) -> dict[str, Slot]:
        """Read from the storage the slots of all ids that an example may use in this queue."""
        ids = self._known_ids(queue)
        self._story.counts["get"] += 1
        return dict(zip(ids, self._runner.run(self.storage.get(queue, ids, now=self.now)), strict=True))

    def _known_ids(self, queue: str) -> list[str]:
        known = [id for id in self.oracle.queue(queue).ids if not id.startswith("?")]
        return list(dict.fromkeys([*known, *(IDS if not queue.endswith(FAIL_SUFFIX) else ())]))

    def compare_slots(self, *queues: str) -> None:
        """Raise Mismatch unless every slot of these queues is equal to that of the oracle."""
        for queue in queues:
            for id, slot in self.slots(queue).items():
                self.compare_slot(queue, id, slot)
            self.compare_outputs(queue)

    def compare_outputs(self, queue: str) -> None:
        """Raise Mismatch unless the output of each id that had some is that of the oracle."""
        for id, record in self.oracle.queue(queue).ids.items():
            if record.output or record.outcome_output or (queue, id) in self.read_offsets:
                self.read_output(queue, id, OutputReader(), most=PAGE * 10)

    def read_output(self, queue: str, id: str, reader: OutputReader, most: int) -> None:
        """Read the output of an id to its end. Raise Mismatch unless it has the chunks of the oracle."""
        for _ in range(MOST_PAGES):
            options = self.options("events", after=reader.offset, limit=most, id=id)
            work = self.storage.events(queue, **options, now=self.now)
            self._story.counts["events"] += 1
            page = self._runner.run(work)
            self._compare_output(queue, id, reader, page, most)
            if not page.events:
                return
        raise Mismatch(f"the output of {queue!r}/{id!r} does not end after {MOST_PAGES} pages")

    def _compare_output(self, queue: str, id: str, reader: OutputReader, page: EventPage, most: int) -> None:
        visible = self.oracle.get(queue, id).visible_output(self.oracle.now)
        unread = [chunk for chunk in visible if chunk.serial > reader.serial]
        expected = [chunk for chunk in unread if not chunk.removed]
        found = f"{len(page.events)} chunks of {queue!r}/{id!r} after {reader.offset!r}"
        if len(page.events) > min(most, len(expected)) or (expected and not page.events):
            raise Mismatch(f"a page has {found}; expected up to {min(most, len(expected))}")
        told = reader.offset is not None and len(expected) < len(unread)
        if page.fell_off != told:
            raise Mismatch(f"a page with {found} has fell_off {page.fell_off}; expected {told}")
        offsets = [reader.offset or "", *(offset for offset, _ in page.events)]
        if any(one >= other for one, other in pairwise(offsets)) or page.offset < offsets[-1]:
            raise Mismatch(f"the offsets {offsets} of a page do not grow up to its end, {page.offset!r}")
        for chunk, (offset, event) in zip(expected, page.events, strict=False):
            match_event(self.numbering, queue, chunk.event, event)
            self._check_offset(queue, id, chunk.serial, offset)
            reader.serial = chunk.serial
        if not page.events:
            reader.serial = self.oracle.numbers.draw()
        reader.offset = page.offset
        self.read_offsets.setdefault((queue, id), []).append((reader.serial, page.offset))

    def _check_offset(self, queue: str, id: str, serial: int, offset: str) -> None:
        """Raise Mismatch if a chunk is at or before the offset that a reader received before this chunk."""
        for read_to, received in self.read_offsets.get((queue, id), ()):
            if serial > read_to and offset <= received:
                raise Mismatch(
                    f"a new chunk of {queue!r}/{id!r} is at {offset!r}; a reader has received {received!r}"
                )

    def compare_slot(self, queue: str, id: str, slot: Slot) -> None:
        try:
            match_slot(self.numbering, (queue, id), self.oracle.get(queue, id), slot, self.oracle.now)
        except Mismatch as error:
            raise Mismatch(f"after the call, {queue!r}/{id!r}: {error}") from None

    def after_write(self, *queues: str) -> None:
        """Compare the slots of the changed queues, and check that the change ends the waits it must end."""
        if self.compare_each:
            self.compare_slots(*queues)
        for queue in queues:
            self.check_token(queue)

    def read_listing(
        self, queue: str, state: State, limit: int = PAGE, part: CursorRange = (None, None)
    ) -> list[tuple[str, Slot]]:
        """Return a listing, or a part of it, read page by page."""
        items: list[tuple[str, Slot]] = []
        after, until = part
        for _ in range(MOST_PAGES):
            options = self.options("list", after=after, until=until, limit=limit)
            work = self.storage.list(queue, state, **options, now=self.now)
            page = self._runner.run(work)
            if len(page.items) > limit:
                raise Mismatch(f"list returned {len(page.items)} ids; expected at most {limit}")
            items += page.items
            after = page.after
            if after is None:
                return items
        raise Mismatch(f"list {state} of {queue!r} does not end after {MOST_PAGES} pages")

    def read_export(
        self, queue: str, limit: int = PAGE, part: CursorRange = (None, None)
    ) -> tuple[list[ExportRecord], Settings]:
        """Return the records of an export, or of a part of it, and the settings of the queue.

        Raise Mismatch for a page above the limit, and for a record without a job and an outcome.
        """
        records: list[ExportRecord] = []
        after, until = part
        for _ in range(MOST_PAGES):
            options = self.options("export", after=after, until=until, limit=limit)
            page = self._runner.run(self.storage.export(queue, **options))
            if len(page.records) > limit:
                raise Mismatch(f"export returned {len(page.records)} ids; expected at most {limit}")
            empty = [one.id for one in page.records if one.slot.current is None and one.slot.outcome is None]
            if empty:
                raise Mismatch(f"export returned {empty}, which have no job and no outcome")
            records += page.records
            after = page.after
            if after is None:
                return records, page.settings
        raise Mismatch(f"export of {queue!r} does not end after {MOST_PAGES} pages")

    # -- fail jobs -----------------------------------------------------------------------------------

    def match_fail_jobs(self, queue: str) -> None:
        """Give the fail jobs of the oracle the ids that the storage generated for them.

        Until then, their ids in the oracle begin with "?". A fail queue has no fail queue.
        """
        if queue.endswith(2 * FAIL_SUFFIX):
            if jobs := self.read_listing(queue, "waiting"):
                raise Mismatch(f"{queue!r} has {len(jobs)} fail jobs of a fail queue; expected none")
            return
        known = self.oracle.queue(queue).ids
        expected = [id for id in known if id.startswith("?")]
        if not expected:
            return
        listed = self.read_listing(queue, "waiting")
        fresh = [(id, slot) for id, slot in listed if id not in known]
        if len(fresh) != len(expected):
            raise Mismatch(f"{queue!r} has {len(fresh)} new fail jobs; expected {len(expected)}")
        for id in expected:
            self._name_fail_job(queue, id, fresh)

    def _name_fail_job(self, queue: str, id: str, fresh: list[tuple[str, Slot]]) -> None:
        made = self.oracle.get(queue, id).current
        assert made is not None  # noqa: S101 - the oracle just made it
        for actual, slot in fresh:
            if slot.current is not None and self._same_origin(made.origin, slot.current.origin):
                self.oracle.queue(queue).rename(id, actual)
                return
        raise Mismatch(f"no fail job in {queue!r} has the origin {made.origin}")

    def _same_origin(self, expected: Origin | None, actual: Origin | None) -> bool:
        """Return whether two origins name the same failed run: equal queue, id and fence."""
        if expected is None or actual is None or (actual.queue, actual.id) != (expected.queue, expected.id):
            return False
        return self.numbering.expected("fence", (actual.queue, actual.id), actual.fence) == expected.fence

    # -- tokens of claims ------------------------------------------------------------------------------

    def keep_token(self, queue: str, answer: ClaimResult, storage: Storage) -> None:
        """Keep the token of a claim of `storage` if a caller would wait with it: it left no admitted job.

        A storage that does not listen yet has no token. Then a wait returns one, and begins to listen.
        """
        known = self.oracle.queue(queue)
        self.standing.pop(queue, None)
        if not known.settings.limits_claims or answer.lost or not storage.capabilities.push_wakeups:
            return
        # A read after the claim may have closed its handle, and opened another one in its place.
        if storage in self.opened.handles and not admitted_jobs(known, self.now):
            token = answer.token or self.run_coroutine(storage.wait([queue], timeout=0)).since[queue]
            self.standing[queue] = StandingToken(token, answer.next_due, storage)

    def check_token(self, queue: str) -> None:
        """Check that the kept token of a queue stands only as long as no job is admitted."""
        standing, known = self.standing.get(queue), self.oracle.queue(queue)
        if standing is None or known.settings.paused or not has_headroom(known):
            return
        if not admitted_jobs(known, self.now):
            return
        del self.standing[queue]
        if standing.lasts(self.opened.handles, self.now):
            since = {queue: standing.token}
            work = standing.storage.wait([queue], since=since, timeout=TOKEN_PATIENCE)
            answer = self.call("wait", {"queues": [queue], "since": since, "timeout": TOKEN_PATIENCE}, work)
            if not answer.woken:
                ids = [job.id for job in admitted_jobs(known, self.now)]
                raise Mismatch(f"{ids} became admitted after a claim, whose token and next_due still stand")


@define
class Issued:
    """The fences, revisions and leases that the storage issued in this example, oldest first.

    They stay after their run has ended or their lease has expired, so that a rule can use stale ones.
    """

    runs: list[tuple[str, str, int]] = field(factory=list)
    revisions: list[tuple[str, str, int]] = field(factory=list)
    leases: list[str] = field(factory=list)

    def add_claim(self, queue: str, claim: ClaimResult) -> None:
        """Add the fences and revisions of the claimed jobs."""
        self.runs += [(queue, job.id, job.run.fence) for job in claim.jobs if job.run is not None]
        self.revisions += [(queue, job.id, job.revision) for job in claim.jobs]


class MachineBase:
    """One example: a random sequence of calls."""

    #: The ExampleSession. The type would be an import upwards, as that of `lockstep`.
    session: Any

    def __init__(self) -> None:
        super().__init__()
        self.issued = Issued()
        #: By queue: the verbs.events.Reader of its log.
        self.readers: dict[str, Any] = {}
        #: By queue and id: the reader of the output of the id.
        self.output_readers: dict[tuple[str, str], OutputReader] = {}

    @property
    def lockstep(self) -> Any:
        """The `dibs_conformance.verbs.Lockstep` of the example."""
        raise NotImplementedError

    def issued_run(self, pick: int) -> tuple[str, str, int]:
        runs = self.issued.runs
        return runs[-1 - pick % len(runs)]

    def issued_lease(self, pick: int) -> str:
        """Return the lease that was granted `pick` leases before the newest. For 8, return an unknown one."""
        leases = self.issued.leases
        return "0" * 32 if pick == 8 else leases[-1 - pick % len(leases)]

    def live_lease(self, queue: str) -> str:
        """Return the newest lease. If that lease has expired or was dropped, grant a new one first."""
        lease = self.issued.leases[-1]
        if self.lockstep.oracle.queue(queue).lease(lease, self.lockstep.now) is None:
            self.issued.leases.append(self.lockstep.grant(some.EVERYWHERE, some.HOUR, some.HOLDERS[0]))
        return self.issued.leases[-1]

    def settlements(
        self, data: st.DataObject, picked: list[int], queue: str, *, cross_queue: bool = True
    ) -> list[Settlement]:
        """Return settlements for some runs of one queue, sometimes with a stale fence.

        With `cross_queue`, follow-ups may be for another queue, if the storage can do that.
        """
        runs = [run for run in map(self.issued_run, picked) if run[0] == queue]
        crossing = cross_queue and self.session.cross_queue
        settle_actions = some.settle_actions(self.lockstep.now, queue, cross_queue=crossing)
        costs = some.costs if self.lockstep.oracle.queue(queue).settings.has_limits else st.none()
        given = [
            Settlement(id=id, fence=fence, action=data.draw(settle_actions), cost=data.draw(costs))
            for _, id, fence in runs
        ]
        return [without_retention(one) for one in given] if queue.endswith(FAIL_SUFFIX) else given


def has_runs(machine: MachineBase) -> bool:
    """Return whether the storage has issued a run in this example."""
    return bool(machine.issued.runs)


def without_retention(settlement: Settlement) -> Settlement:
    """Return the settlement without retention and follow-ups, for runs of a fail queue."""
    action = settlement.action
    if isinstance(action, Fail):
        action = Fail(error=action.error)
    elif isinstance(action, Complete):
        action = Complete(result=action.result)
    return replace(settlement, action=action)
