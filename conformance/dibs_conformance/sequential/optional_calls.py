"""Probes of the optional methods of `dibs.storage.abilities`: calls with one job, key sets and watches.

A storage may have fast paths for calls with one job under the system clock, and methods that send them
without a task. Under a manual clock, these are not used, so the random examples and the other probes do not
reach them. Batches whose request keys are kept as a key set must act as enqueues with request keys. A watch
is called at the next end of its id. A storage without these methods passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

from attrs import define, field

from dibs.errors import DibsError
from dibs.model.check_jobs import CheckedBatch, check_batch
from dibs.model.job import Outcome, OutcomeRetention
from dibs.model.request_columns import RequestColumns, make_member
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, OnConflict, Reject, SettingsPatch, Update
from dibs.model.results import EnqueueResult, EnqueueStatus
from dibs.storage.abilities import BlockingEnqueue, DirectEnqueue, EndWatches, KeySets, StopWatching, ability
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.scripts import (
    METHODS,
    FixedHistory,
    HistoryCalls,
    play_steps,
    read_histories,
)

TTL: Final = 60_000
#: Seconds of a wait whose id has ended before it began.
WAIT_SECONDS: Final = 3.0
#: Attempts of an enqueue on a thread, one every 20 ms. The storage may still open the connection for it.
ATTEMPTS: Final = 50
KEPT: Final = OutcomeRetention(completed=TTL, failed=TTL, cancelled=TTL)
NOT_KEPT: Final = OutcomeRetention(completed=0)

#: Enqueues one request and returns its result.
Enqueue = Callable[[str, EnqueueRequest], Awaitable[EnqueueResult]]


@define
class SingleCalls:
    """A queue of a storage whose calls have one job each, and the wrong results so far."""

    storage: Storage
    way: str
    send: Enqueue
    calls: HistoryCalls
    #: The revisions in the order in which they were drawn. Results show their positions.
    revisions: list[int] = field(factory=list, init=False)
    wrong: list[str] = field(factory=list, init=False)
    checks: int = field(default=0, init=False)

    @property
    def queue(self) -> str:
        return self.calls.queue

    async def play(self, *steps: str) -> None:
        """Make the calls of some steps. A step may end with its expected result, after an arrow."""
        for step in steps:
            call, _, expected = step.partition(" -> ")
            found = await self.make(call)
            if expected:
                self.expect(expected, found, call)

    async def make(self, step: str) -> str:
        """Make the call of one step, and return its result in words."""
        name, verb, parts = self.calls.read(step, 0)
        if verb in ("holder", "result"):
            return await self.read(verb, parts[0].words[0])
        if verb == "sleep":
            await asyncio.sleep(parts[0].number(0) / 1000)
            return ""
        [(args, named)] = self.calls.arguments(verb, parts)
        if verb == "enqueue":
            answer: Any = [await self.send(self.queue, one) for one in args[1]]
        else:
            answer = await getattr(self.storage, METHODS.get(verb, verb))(*args, **named)
        self.calls.keep(name, verb, answer)
        return self.describe(verb, answer)

    async def read(self, verb: str, id: str) -> str:
        """Return the name of the claim that holds an id, or the result of its outcome."""
        [slot] = await self.storage.get(self.queue, [id])
        if verb == "result":
            return repr(slot.outcome and slot.outcome.result)
        fence = slot.current.run.fence if slot.current and slot.current.run else 0
        named = [name for name, runs in self.calls.saved.items() if runs == {id: fence}]
        return next((name for name in named if name not in (id, "last")), "nobody")

    def describe(self, verb: str, answer: Any) -> str:
        if verb == "enqueue":
            [one] = answer
            told = f"repeated {one.id} {one.status}" if one.repeated else f"{one.status} {one.found}"
            return f"{told} {self.range_of(one.first, one.revision)}"
        if verb == "claim":
            jobs = [
                f"{job.id}={job.data.payload.decode()} {self.range_of(job.first, job.revision)}"
                for job in answer.jobs
            ]
            return "lost" if answer.lost else ", ".join(jobs) or "no job"
        if verb == "exchange":
            ended = ", ".join(one.status for one in answer.settled)
            return f"{ended}, then {self.describe('claim', answer.claim)}"
        return ", ".join(one.status for one in answer) if verb == "settle" else ""

    def range_of(self, *revisions: int) -> str:
        for revision in revisions:
            if revision not in self.revisions:
                self.expect(
                    expected=True, found=revision > max(self.revisions, default=0), what="revisions grow"
                )
                self.revisions.append(revision)
        return "-".join(str(self.revisions.index(revision) + 1) for revision in revisions)

    def expect(self, expected: object, found: object, what: str) -> None:
        self.checks += 1
        if expected != found:
            self.wrong.append(f"{self.way}: {what} is {found!r:.300}, not {expected!r:.300}")


# -- the ways to enqueue -----------------------------------------------------------------------------


def ways_to_enqueue(storage: Storage) -> dict[str, Enqueue]:
    """Return the verb, and each optional method of the storage, by name."""

    async def by_verb(queue: str, one: EnqueueRequest) -> EnqueueResult:
        return (await storage.enqueue(queue, [one]))[0]

    async def directly(queue: str, one: EnqueueRequest) -> EnqueueResult:
        return await _send_directly(storage, queue, check_batch([one])) or await by_verb(queue, one)

    async def on_a_thread(queue: str, one: EnqueueRequest) -> EnqueueResult:
        return await _send_on_thread(storage, queue, check_batch([one])) or await by_verb(queue, one)

    ways: dict[str, Enqueue] = {"enqueue": by_verb}
    if ability(storage, DirectEnqueue) is not None:
        ways["start_enqueue"] = directly
    if ability(storage, BlockingEnqueue) is not None:
        ways["enqueue_blocking"] = on_a_thread
    return ways


async def _send_directly(storage: Storage, queue: str, batch: CheckedBatch) -> EnqueueResult | None:
    """Return the result of a direct enqueue; None if it was not sent, or surely did not run."""
    direct = ability(storage, DirectEnqueue)
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if direct is None or not direct.start_enqueue(queue, batch, ended.set_result):
        return None
    result = await ended
    if isinstance(result, Exception):
        raise result
    return None if result is None else cast("EnqueueResult", result[0])


async def _send_on_thread(storage: Storage, queue: str, batch: CheckedBatch) -> EnqueueResult | None:
    """Return the result of an enqueue on a thread; None if no connection for it gets ready."""
    blocking = cast("BlockingEnqueue", ability(storage, BlockingEnqueue))
    for _ in range(ATTEMPTS):
        if (results := await asyncio.to_thread(blocking.enqueue_blocking, queue, batch)) is not None:
            return results[0]
        blocking.prepare_blocking()
        await asyncio.sleep(0.02)
    return None


# -- the stories -------------------------------------------------------------------------------------

#: Enqueues. `1-2` is the range of the first and the second revision.
ENQUEUES: Final = read_histories("""
A waiting id is enqueued again: one run, with the newest payload.
    enqueue a payload=1 -> queued nothing 1-1; enqueue a payload=2 -> updated waiting 1-2
    claim 5 -> a=2 1-2; complete a -> done; claim 5 -> no job
An active id is enqueued twice: no run beside the first one, then one run with the newest payload.
    enqueue a payload=0 -> queued nothing 1-1; claim 1; enqueue a payload=1 -> blocked active 2-2
    enqueue a payload=2 -> blocked active+blocked 2-3; claim 5 -> no job; complete a result=first -> done
    claim 5 -> a=2 2-3; complete a -> done; claim 5 -> no job
A request key is repeated with another id: no new job, and the answer of the first enqueue.
    enqueue a payload=0 request_key=key -> queued nothing 1-1
    enqueue b payload=0 request_key=key -> repeated a queued 1-1; claim 1 -> a=0 1-1; complete a -> done
    claim 1 -> no job
A Reject changes nothing.
    enqueue a payload=1 -> queued nothing 1-1; enqueue a payload=2 on_conflict=reject -> duplicate waiting 1-1
    claim 1 -> a=1 1-1; complete a -> done
""")
#: Claims and ends. The answer to a late end is `done` while the outcome of its run is kept.
RUNS: Final = read_histories("""
A run is ended with the fence of an earlier run of its id: only the holder may end a run.
    enqueue a payload=0; early = claim 1; complete early -> done; enqueue a payload=0; late = claim 1
    complete early; holder a -> late; release late; held = claim 1; complete late -> lost
    complete held -> done
Claims of one job take them in the order of the enqueues, and a higher priority first.
    each $id = a b c: enqueue $id
    claim 1 -> a= 1-1; complete a -> done; enqueue urgent!1; claim 1 -> urgent= 4-4; complete urgent -> done
    claim 1 -> b= 2-2; complete b -> done; claim 1 -> c= 3-3; complete c -> done
A claim obeys a pause, a full queue, and a cancel of the first job.
    each $id = a b c: enqueue $id
    set paused=yes; claim 1 -> no job; set paused=no max_active=1; cancel a; claim 5 -> b= 2-2
    claim 1 -> no job; complete b -> done; set max_active=none; claim 1 -> c= 3-3; complete c -> done
A lease that has ended takes no job, alone and behind an end.
    enqueue a; short = grant 20; sleep 40; claim 1 lease=short -> lost; claim 1 -> a= 1-1
    grant 20; sleep 40; exchange complete a -> done, then lost
A claim behind an end takes the job that waits, and no other.
    enqueue a; claim 1; enqueue b; exchange complete a -> done, then b= 2-2
    exchange complete b -> done, then no job
""")
#: This story reads outcomes. Those of the other queues are not kept, which has a fast path of its own.
RESULTS: Final = read_histories("""
Results are kept: of a run with one, of one without, and of the next run of an id.
    enqueue a; claim 1; complete a result=1 -> done; result a -> b'1'; enqueue b; claim 1; complete b -> done
    result b -> None; enqueue a; claim 1; complete a result=2 -> done; result a -> b'2'; enqueue c; claim 1
    complete c result=3 -> done; result c -> b'3'
""")


async def tokens_report_ends(calls: SingleCalls) -> None:
    """Wait after each end with a token from before it: the outcome is that of its own run."""
    for id, result in (("a", b"1"), ("a", b"2"), ("b", b"3")):
        await calls.play(f"enqueue {id}")
        since = (await calls.storage.wait([calls.queue], for_="ids", ids=[id], timeout=0)).since
        await calls.play("claim 1", f"complete {id} result={result.decode()} -> done")
        await check_report(calls, id, since, result)


async def results_reach_the_log(calls: SingleCalls) -> None:
    """The log keeps the results of a queue that asks for them."""
    await calls.play("set log_results=100")
    for result in "12":
        await calls.play("enqueue a", "claim 1", f"complete a result={result} -> done")
    page = await calls.storage.events(calls.queue, limit=100)
    calls.expect(
        [b"1", b"2"], [event.result for _, event in page.events if event.id == "a"], "the results in the log"
    )


async def ends_make_room(calls: SingleCalls) -> None:
    """The end of a run in a full queue ends a wait for work."""
    await calls.play("set max_active=1", "enqueue a", "enqueue b", "claim 5 -> a= 1-1", "claim 5 -> no job")
    since = (await calls.storage.wait([calls.queue], timeout=0)).since
    await calls.play("complete a -> done")
    wake = await calls.storage.wait([calls.queue], since=since, timeout=WAIT_SECONDS)
    calls.expect(expected=True, found=wake.woken, what="a wait for the room of an ended run")


async def check_report(calls: SingleCalls, id: str, since: Mapping[str, str], result: bytes) -> None:
    wake = await calls.storage.wait([calls.queue], for_="ids", ids=[id], since=since, timeout=WAIT_SECONDS)
    reported = wake.ended is None or id in wake.ended
    calls.expect((True, True), (wake.woken, reported), f"the report of the end of {id!r}")
    [slot] = await calls.storage.get(calls.queue, [id])
    calls.expect(result, slot.outcome and slot.outcome.result, f"the result of {id!r}")
    calls.expect(slot.outcome, wake.outcomes.get(id, slot.outcome), f"the outcome in the wake-up of {id!r}")
    # A storage that knows the state of a queue from messages reads it because of the unknown queue.
    both = await calls.storage.wait([calls.queue, f"{calls.queue}-{id}"], for_="ids", ids=[id], timeout=0)
    differs = both.since[calls.queue] != since[calls.queue]
    calls.expect(expected=True, found=differs, what=f"a new token after the end of {id!r}")


#: A story, as steps or as a function.
Story = FixedHistory | Callable[[SingleCalls], Awaitable[None]]


async def check_enqueues(storage: Storage) -> tuple[int, list[str]]:
    return await _check(storage, "enqueues", ENQUEUES)


async def check_runs(storage: Storage) -> tuple[int, list[str]]:
    checks, wrong = await _check(storage, "runs", (*RUNS, results_reach_the_log, ends_make_room))
    more, also_wrong = await _check(storage, "results", RESULTS, retention=KEPT)
    return checks + more, wrong + also_wrong


async def check_tokens(storage: Storage) -> tuple[int, list[str]]:
    return await _check(storage, "tokens", (tokens_report_ends,), retention=KEPT)


async def _check(
    storage: Storage, name: str, stories: Sequence[Story], retention: OutcomeRetention = NOT_KEPT
) -> tuple[int, list[str]]:
    """Run each story for each way to enqueue, in a queue of its own: an earlier outcome ends fast paths."""
    checks, wrong = 0, list[str]()
    for way, send in ways_to_enqueue(storage).items():
        for number, story in enumerate(stories):
            calls = SingleCalls(storage, way, send, HistoryCalls(f"{way}-{name}-{number}"))
            await storage.configure(calls.queue, SettingsPatch(retention=retention))
            try:
                # Fast paths begin with the second job of a queue.
                await calls.play("grant 60000", "enqueue first", "claim 1", "complete first -> done")
                calls.revisions.clear()
                await (calls.play(*story.steps) if isinstance(story, FixedHistory) else story(calls))
            except (DibsError, KeyError) as error:  # a run that no claim took has no fence
                calls.wrong.append(f"{way}: a story raised {error!r:.300}")
            checks, wrong = checks + calls.checks, wrong + calls.wrong
    return checks, wrong


NOW: Final = 1_767_225_600_000
HOUR: Final = 3_600_000
#: Milliseconds for which the queues remember request keys.
KEY_AGE: Final = 60_000
SET: Final = "write/0"
IDS: Final = ("new", "waiting", "active", "completed", "absent", "new")
#: Title -> the ids of a batch, and their rules; no rules stand for the default.
BATCHES: Final[dict[str, tuple[tuple[str, ...], tuple[OnConflict, ...]]]] = {
    "new ids": (("0", "1", "2", "3"), ()),
    "updates": (IDS[:4], (DEFAULT_UPDATE,) * 4),
    "rejects": (IDS[:4], (Reject(),) * 4),
    "one reject": (("completed",), (Reject(),)),
    "one update-only request": (("absent",), (Update(create=False),)),
    "one superseding request": (("active",), (Update(supersede=True),)),
    "all rules": (
        IDS,
        (
            Update(run_at="later"),
            Update(data=False),
            Update(run_at="never", supersede=True),
            Reject(),
            Update(create=False),
            Reject(),
        ),
    ),
}


async def check_key_sets(storage: Storage) -> tuple[int, list[str]]:
    """Return the number of comparisons, and a message for each difference."""
    wrong: list[str] = []
    checks = 0
    for number, (title, (ids, conflicts)) in enumerate(BATCHES.items()):
        # The time of a storage never goes back.
        now = NOW + number * HOUR
        one, other = f"requests-{number}", f"columns-{number}"
        for queue in (one, other):
            await _prepare(storage, queue, now)
        columns = _columns(ids, conflicts, now)
        expected = [
            answer.status for answer in await storage.enqueue(one, columns.requests(SET), now=now + 1)
        ]
        comparisons = [
            ("the statuses", expected, await _send(storage, other, columns, now + 1)),
            ("the jobs", await _read(storage, one, now), await _read(storage, other, now)),
            *await _check_members(storage, other, columns, expected, now),
        ]
        checks += len(comparisons)
        wrong += [
            f"{title}: {what} of a batch with a key set are {found}, and those of requests are {wanted}"
            for what, wanted, found in comparisons
            if wanted != found
        ]
    return checks, wrong


def _columns(ids: Sequence[str], conflicts: Sequence[OnConflict], now: int) -> RequestColumns:
    count = len(ids)
    return RequestColumns(
        ids=list(ids),
        payloads=[b"" if id == "absent" else f'"{number}"'.encode() for number, id in enumerate(ids)],
        members=[make_member(bytes([number]) * 12, number) for number in range(count)],
        run_ats=[now + HOUR * (number % 3) for number in range(count)],
        priorities=[0 if id == "absent" else 2 for id in ids],
        attributes=[{} if id == "absent" else {"n": b"1"} for id in ids],
        conflicts=list(conflicts) or None,
    )


async def _prepare(storage: Storage, queue: str, now: int) -> None:
    """Make a completed id, an active id and a waiting id."""
    steps = (
        f"set request_key_age={KEY_AGE} retention=completed:hour; grant; enqueue completed payload=old; "
        "claim 1; complete completed; enqueue active payload=old; claim 1; enqueue waiting payload=old"
    )
    await play_steps(storage, HistoryCalls(queue), steps, now=now)


async def _send(
    storage: Storage, queue: str, columns: RequestColumns, now: int
) -> list[EnqueueStatus] | None:
    if (key_sets := ability(storage, KeySets)) is not None:
        statuses = await key_sets.enqueue_batch(queue, SET, 1, columns, now=now)
        return None if statuses is None else list(statuses)
    return [answer.status for answer in await storage.enqueue(queue, columns.requests(SET), now=now)]


async def _check_members(
    storage: Storage, queue: str, columns: RequestColumns, statuses: Sequence[EnqueueStatus], now: int
) -> list[tuple[str, Any, Any]]:
    """Return what the key set should hold and holds: now, after a second batch of this number, and later."""
    if (key_sets := ability(storage, KeySets)) is None:
        return []
    kept = dict(zip(columns.members, statuses, strict=True))
    jobs = await _read(storage, queue, now)
    other = RequestColumns(ids=["late"], payloads=[b"1"], members=[b"l" * 16])
    taken = await key_sets.enqueue_batch(queue, SET, 1, other, now=now + 2)
    before = await key_sets.read_key_set(queue, SET, now=now + KEY_AGE)
    after = await key_sets.read_key_set(queue, SET, now=now + 1 + KEY_AGE)
    pruned = await storage.prune(queue, 100, now=now + 1 + KEY_AGE)
    again = await storage.prune(queue, 100, now=now + 1 + KEY_AGE)
    return [
        ("the answer to a taken number", None, taken),
        ("the jobs after a taken number", jobs, await _read(storage, queue, now)),
        ("the members", (kept, 1, False), tuple(before)),
        ("the expired members", {}, after.statuses),
        ("the members of another set", {}, (await key_sets.read_key_set(queue, "write/1", now=now)).statuses),
        ("the pruned batches", (True, 0), (pruned.request_keys > 0, again.request_keys)),
    ]


async def _read(storage: Storage, queue: str, now: int) -> list[Any]:
    """Return the jobs of all ids, without their numbers."""
    ids = sorted({*IDS, *(f"{number}" for number in range(4)), "late"})
    slots = await storage.get(queue, ids, now=now + 2)
    return [
        (
            id,
            job and (job.data, job.run_at, job.enqueued_at, job.enqueues, job.run is None),
            after and (after.data, after.run_at, after.enqueues),
            outcome and outcome.kind,
        )
        for id, slot in zip(ids, slots, strict=True)
        for job, after, outcome in [(slot.current, slot.successor, slot.outcome)]
    ]


QUEUE: Final = "watched"

#: The calls of a watch.
Calls = asyncio.Queue[Outcome | None]


@define
class Watched:
    """A queue of a storage with watches, and the calls on it."""

    storage: Storage
    watches: EndWatches
    calls: HistoryCalls

    async def play(self, steps: str) -> None:
        await play_steps(self.storage, self.calls, steps)

    def watch(self, id: str, calls: Calls) -> StopWatching | None:
        """Watch the end of the newest enqueue, `it`."""
        return self.watches.watch_end(QUEUE, id, self.calls.saved["it"], calls.put_nowait)


async def check_end_watches(storage: Storage) -> tuple[int, list[str]]:
    """Return the number of stories, and a message for each one with a wrong call."""
    watches = ability(storage, EndWatches)
    if watches is None:
        return len(STORIES), []
    watched = Watched(storage, watches, HistoryCalls(QUEUE))
    await watched.play("grant 60000; set retention=completed:60000")
    # The storage receives messages about a queue from its first wait on. Watches begin after one message.
    since = (await storage.wait([QUEUE], for_="ids", ids=["first"], timeout=0)).since
    await watched.play("enqueue first; claim 1; complete first result=1")
    await storage.wait([QUEUE], for_="ids", ids=["first"], since=since, timeout=WAIT_SECONDS)
    found = [await story(watched) for story in STORIES]
    return len(STORIES), [message for message in found if message]


async def _its_end_is_reported(watched: Watched) -> str:
    calls = Calls()
    await watched.play("it = enqueue a")
    stop = watched.watch("a", calls)
    await watched.play("claim 1; complete a result=1")
    if stop is None:
        return ""
    called, outcome = await _next_call(calls)
    [slot] = await watched.storage.get(QUEUE, ["a"])
    if called and outcome in (None, slot.outcome):
        return ""
    return f"a watch was called with {outcome}; the stored outcome is {slot.outcome}" if called else NO_CALL


async def _a_blocked_job_gets_no_later_outcome(watched: Watched) -> str:
    """The next end of the id is that of the run before the blocked job, which is then still waiting."""
    calls = Calls()
    await watched.play("enqueue b; claim 1; it = enqueue b")
    stop = watched.watch("b", calls)
    await watched.play("complete b result=1")
    if stop is None:
        return ""
    called, outcome = await _next_call(calls)
    [slot] = await watched.storage.get(QUEUE, ["b"])
    await watched.play("claim 1; complete b result=2")
    if not called:
        return NO_CALL
    good = outcome in (None, slot.outcome)
    return "" if good else f"a watch was called with {outcome}; the ended run has {slot.outcome}"


async def _a_stopped_watch_is_not_called(watched: Watched) -> str:
    calls, other_calls = Calls(), Calls()
    await watched.play("it = enqueue c")
    stop = watched.watch("c", calls)
    other = watched.watch("c", other_calls)
    if stop is not None:
        stop()
    await watched.play("claim 1; complete c result=1")
    if other is not None:
        await _next_call(other_calls)
    return "" if calls.empty() else f"a stopped watch was called with {calls.get_nowait()}"


async def _a_late_watch_does_not_wait(watched: Watched) -> str:
    """A watch that begins after the end returns None, or it is called nevertheless."""
    calls = Calls()
    await watched.play("it = enqueue d; claim 1; complete d result=1")
    if watched.watch("d", calls) is None:
        return ""
    called, _ = await _next_call(calls)
    return "" if called else "a watch began after the end of its run, and was not called"


NO_CALL: Final = "a watch was not called after the end of its run"
STORIES: Final[tuple[Callable[[Watched], Awaitable[str]], ...]] = (
    _its_end_is_reported,
    _a_blocked_job_gets_no_later_outcome,
    _a_stopped_watch_is_not_called,
    _a_late_watch_does_not_wait,
)


async def _next_call(calls: Calls) -> tuple[bool, Outcome | None]:
    """Return whether a watch was called, and with which outcome."""
    try:
        return True, await asyncio.wait_for(calls.get(), WAIT_SECONDS)
    except TimeoutError:
        return False, None
