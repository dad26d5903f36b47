"""Probes of calls with one job under the system clock.

A storage may have fast paths for such calls, and optional methods that send them without a task
(`dibs.storage.abilities`). Under a manual clock, these are not used, so the
random examples and the other probes do not reach them. Each story runs once for each way to enqueue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

from attrs import define, field

from dibs.errors import DibsError
from dibs.model.check_jobs import CheckedBatch, check_batch
from dibs.model.job import OutcomeRetention
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.model.results import EnqueueResult
from dibs.storage.abilities import BlockingEnqueue, DirectEnqueue, ability
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.scripts import METHODS, FixedHistory, HistoryCalls, read_histories

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
