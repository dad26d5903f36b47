"""Probes of calls with one job under the system clock.

A storage may have fast paths for such calls, and optional methods that send them without a task
(`dibs.storage.abilities`). Under a manual clock, these are not used, so the
random examples and the other probes do not reach them. Each story runs once for each way to enqueue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from attrs import define, field

from dibs.errors import DibsError
from dibs.model.check_jobs import CheckedBatch, check_batch
from dibs.model.job import Job, JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, Reject, Release, SettingsPatch, Settlement
from dibs.model.results import EnqueueResult
from dibs.storage.abilities import BlockingEnqueue, DirectEnqueue, ability
from dibs.storage.protocol import Storage

TTL: Final = 60_000
#: Seconds of a wait whose id has ended before it began.
WAIT_SECONDS: Final = 3.0
#: Attempts of an enqueue on a thread, one every 20 ms. The storage may still open the connection for it.
ATTEMPTS: Final = 50
KEPT: Final = OutcomeRetention(completed=TTL, failed=TTL, cancelled=TTL)

#: Enqueues one request and returns its result.
Enqueue = Callable[[str, EnqueueRequest], Awaitable[EnqueueResult]]


@define
class SingleCalls:
    """A queue of a storage whose calls have one job each, and the wrong results so far."""

    storage: Storage
    queue: str
    way: str
    send: Enqueue
    lease: str = field(default="", init=False)
    wrong: list[str] = field(factory=list, init=False)
    checks: int = field(default=0, init=False)

    async def begin(self) -> None:
        """Grant a lease, and run one job: fast paths begin with the second job of a queue."""
        self.lease = (await self.storage.grant([self.queue], TTL, "kit")).lease
        await self.storage.enqueue(self.queue, [request("first")])
        await self.run("first")

    async def enqueue(self, id: str, payload: bytes = b"0", **fields: Any) -> EnqueueResult:
        return await self.send(self.queue, request(id, payload, **fields))

    async def claim(self, limit: int = 1) -> list[Job]:
        return list((await self.storage.claim(self.queue, self.lease, limit)).jobs)

    async def complete(self, id: str, fence: int, result: bytes | None = None) -> str:
        end = Settlement(id=id, fence=fence, action=Complete(result=result))
        return (await self.storage.settle(self.queue, [end]))[0].status

    async def run(self, id: str, result: bytes | None = None) -> int:
        """Claim a job and complete it. Return its fence, 0 if the claim found no job."""
        jobs = await self.claim()
        fence = fence_of(jobs)
        self.expect([id], [job.id for job in jobs], "a claim of one job")
        self.expect("done", await self.complete(id, fence, result) if jobs else "", f"the end of {id!r}")
        return fence

    def expect(self, expected: object, found: object, what: str) -> None:
        self.checks += 1
        if expected != found:
            self.wrong.append(f"{self.way}: {what} is {found!r:.300}, not {expected!r:.300}")


def request(id: str, payload: bytes = b"0", **fields: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload)), **fields)


def fence_of(jobs: list[Job]) -> int:
    return jobs[0].run.fence if jobs and jobs[0].run else 0


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


async def updates_fold(calls: SingleCalls) -> None:
    """Enqueue a waiting id again: one run, with the newest payload."""
    first = await calls.enqueue("a", b"1")
    second = await calls.enqueue("a", b"2")
    calls.expect(("queued", "nothing"), (first.status, first.found), "the first enqueue")
    calls.expect(("updated", "waiting"), (second.status, second.found), "the second enqueue")
    revisions = [first.revision, second.revision]
    calls.expect(sorted({*revisions}), revisions, "the order of the revisions")
    jobs = await calls.claim(5)
    calls.expect([("a", b"2")], [(job.id, job.data.payload) for job in jobs], "the claim of the updated id")
    calls.expect("done", await calls.complete("a", fence_of(jobs)), "the end of the updated id")
    calls.expect([], await calls.claim(5), "the claim after the end")


async def busy_ids_block(calls: SingleCalls) -> None:
    """Enqueue an active id twice: no run beside the first one, then one run with the newest payload."""
    await calls.enqueue("a")
    fence = fence_of(await calls.claim())
    answers = [await calls.enqueue("a", payload) for payload in (b"1", b"2")]
    calls.expect(
        [("blocked", "active"), ("blocked", "active+blocked")],
        [(answer.status, answer.found) for answer in answers],
        "the enqueues of an active id",
    )
    calls.expect([], await calls.claim(5), "the claim during the run")
    calls.expect("done", await calls.complete("a", fence, b"first"), "the end of the first run")
    jobs = await calls.claim(5)
    merged = [(job.data.payload, job.first, job.revision) for job in jobs]
    calls.expect([(b"2", answers[0].revision, answers[1].revision)], merged, "the claim of the blocked job")
    calls.expect("done", await calls.complete("a", fence_of(jobs)), "the end of the second run")
    calls.expect([], await calls.claim(5), "the claim after both runs")


async def request_keys_act_once(calls: SingleCalls) -> None:
    """Repeat a request key with another id: no new job, and the answer of the first enqueue."""
    first = await calls.enqueue("a", request_key="key")
    again = await calls.enqueue("b", request_key="key")
    told = (again.repeated, again.id, again.status, again.first, again.revision)
    calls.expect((True, "a", "queued", first.first, first.revision), told, "the answer to a repeated key")
    await calls.run("a")
    calls.expect([], await calls.claim(), "the claim after the only job")


async def rejects_change_nothing(calls: SingleCalls) -> None:
    first = await calls.enqueue("a", b"1")
    answer = await calls.enqueue("a", b"2", on_conflict=Reject())
    told = (answer.status, answer.first, answer.revision)
    calls.expect(("duplicate", first.first, first.revision), told, "the answer to a Reject")
    jobs = await calls.claim()
    calls.expect([b"1"], [job.data.payload for job in jobs], "the payload after a Reject")
    calls.expect("done", await calls.complete("a", fence_of(jobs)), "the end after a Reject")


async def late_ends_are_lost(calls: SingleCalls) -> None:
    """End a run with the fence of an earlier run of its id: only the holder may end a run."""
    await calls.enqueue("a")
    late = await calls.run("a")
    await calls.enqueue("a")
    held = fence_of(await calls.claim())
    # The answer is `done` while the outcome of that run is kept, and `lost` afterwards.
    await calls.complete("a", late)
    [slot] = await calls.storage.get(calls.queue, ["a"])
    running = slot.current and slot.current.run
    calls.expect(held, running and running.fence, "the run after an end with an earlier fence")
    await calls.storage.settle(calls.queue, [Settlement(id="a", fence=held, action=Release())])
    late, held = held, fence_of(await calls.claim())
    calls.expect("lost", await calls.complete("a", late), "the end of a late holder")
    calls.expect("done", await calls.complete("a", held), "the end of the holder")


async def results_are_kept(calls: SingleCalls) -> None:
    """Complete with a result, without one, and again with one."""
    for id, result in (("a", b"1"), ("b", None), ("a", b"2"), ("c", b"3")):
        await calls.enqueue(id)
        await calls.run(id, result)
        calls.expect(result, await result_of(calls, id), f"the result of {id!r}")


async def result_of(calls: SingleCalls, id: str) -> bytes | None:
    [slot] = await calls.storage.get(calls.queue, [id])
    return None if slot.outcome is None else slot.outcome.result


async def claims_are_in_order(calls: SingleCalls) -> None:
    """Claim one job at a time: in the order of the enqueues, and a higher priority first."""
    for id in ("a", "b", "c"):
        await calls.enqueue(id)
    await calls.run("a")
    await calls.send(calls.queue, EnqueueRequest(job=NewJob(id="urgent", data=JobData(priority=1))))
    for id in ("urgent", "b", "c"):
        await calls.run(id)


async def claims_obey_the_queue(calls: SingleCalls) -> None:
    """Claim from a paused queue, from a full one, and after a cancel of the first job."""
    queue, storage = calls.queue, calls.storage
    for id in ("a", "b", "c"):
        await calls.enqueue(id)
    await storage.configure(queue, SettingsPatch(paused=True))
    calls.expect([], await calls.claim(), "the claim of a paused queue")
    await storage.configure(queue, SettingsPatch(paused=False, max_active=1))
    await storage.cancel(queue, ["a"])
    jobs = await calls.claim(5)
    calls.expect(["b"], [job.id for job in jobs], "the claim with max_active=1 after a cancel")
    calls.expect([], await calls.claim(), "the claim of a full queue")
    calls.expect("done", await calls.complete("b", fence_of(jobs)), "the end in a full queue")
    await storage.configure(queue, SettingsPatch(max_active=None))
    await calls.run("c")


async def tokens_report_ends(calls: SingleCalls) -> None:
    """Wait after each end with a token from before it: the outcome is that of its own run."""
    for id, result in (("a", b"1"), ("a", b"2"), ("b", b"3")):
        await calls.enqueue(id)
        since = (await calls.storage.wait([calls.queue], for_="ids", ids=[id], timeout=0)).since
        await calls.run(id, result)
        await check_report(calls, id, since, result)


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


ENQUEUES: Final = (updates_fold, busy_ids_block, request_keys_act_once, rejects_change_nothing)
RUNS: Final = (late_ends_are_lost, results_are_kept, claims_are_in_order, claims_obey_the_queue)
#: The stories that read outcomes. Those of the other queues are not kept, which has a fast path of its own.
READING: Final = (results_are_kept, tokens_report_ends)


async def check_enqueues(storage: Storage) -> tuple[int, list[str]]:
    return await _check(storage, ENQUEUES)


async def check_runs(storage: Storage) -> tuple[int, list[str]]:
    return await _check(storage, RUNS)


async def check_tokens(storage: Storage) -> tuple[int, list[str]]:
    return await _check(storage, (tokens_report_ends,))


async def _check(
    storage: Storage, stories: tuple[Callable[[SingleCalls], Awaitable[None]], ...]
) -> tuple[int, list[str]]:
    """Run each story for each way to enqueue, in a queue of its own."""
    checks, wrong = 0, list[str]()
    for way, send in ways_to_enqueue(storage).items():
        for number, story in enumerate(stories):
            calls = SingleCalls(storage, f"{way}-{number}", way, send)
            retention = KEPT if story in READING else OutcomeRetention(completed=0)
            await storage.configure(calls.queue, SettingsPatch(retention=retention))
            try:
                await calls.begin()
                await story(calls)
            except DibsError as error:
                calls.wrong.append(f"{way}: {story.__name__} raised {error!r:.300}")
            checks, wrong = checks + calls.checks, wrong + calls.wrong
    return checks, wrong
