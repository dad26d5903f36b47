"""The application of a simulation, and the programs that use it.

The seed draws what each job does: it sleeps, fails, ignores its cancellation, blocks its process, kills it,
or enqueues a follow-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from random import Random
from typing import Any, Final, cast

from dibs import CurrentJob, Dibs, Reject, Snooze, Update, current_job
from dibs.client.claim import Claim
from dibs.errors import (
    DibsError,
    JobCancelled,
    JobEnded,
    LeaseLost,
    OutcomeUnknown,
    PermanentError,
    StorageError,
    WaitTimeout,
)
from dibs.model.retry import Exponential
from dibs.model.schedule import TICK_ID
from dibs.model.wakeup import EVALUATIONS
from dibs_conformance.simulation.ledger import MOST_ACTIVE, PER_KEY, RATED, RECEIVED, TICKS, TIMEOUTS, Ledger
from dibs_conformance.simulation.nodes import Machine
from dibs_conformance.simulation.server import StorageServer
from dibs_conformance.simulation.world import Process, ProcessLoop, World

#: Seconds by which a call of a client may end after its deadline.
SLACK: Final = 5.0
#: The deadline of a call to the storage in seconds: less than that of the connection.
CALL_TIMEOUT: Final = 8.0
#: What a job does, and how often.
MANNERS: Final = {
    "sleep": 60,
    "fail once": 10,
    "fail": 3,
    "permanent": 2,
    "stubborn": 2,
    "block": 1,
    "crash": 1,
    "snooze": 3,
    "progress": 4,
    "follow up": 4,
}


class SimulatedError(Exception):
    """The error of a handler that fails on purpose."""


def process_here() -> Process:
    """Return the simulated process that runs this code."""
    return cast("ProcessLoop", asyncio.get_running_loop()).process


async def work(number: int, seconds: float, manner: str) -> str:
    """Do what `manner` says, for some seconds, and return a text that only this run can return."""
    job = current_job()
    if manner == "stubborn":
        await _ignore_cancellation(seconds)
    elif manner == "block":
        process_here().freeze(seconds)
    await asyncio.sleep(seconds)
    if manner == "fail" or (manner == "fail once" and not job.retries):
        raise SimulatedError(manner)
    if manner == "permanent":
        raise PermanentError(manner)
    if manner == "snooze" and job.run_at <= job.enqueued_at:  # once: the next run has a later time
        raise Snooze(delay=seconds + 1)
    if manner == "crash" and not job.stalls:
        process_here().world.call_in(0, process_here().crash)
        await asyncio.sleep(60)
    if manner == "progress":
        await job.progress(number)
    if manner == "follow up":
        job.then(app_here().get_task("plain").bind(-number, seconds, "sleep"))
    return f"{job.id} {job.fence}"


def app_here() -> Dibs:
    app: Dibs = process_here().app
    return app


async def _ignore_cancellation(seconds: float) -> None:
    end = time.monotonic() + 3 * seconds
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def tick() -> str:
    """Run a tick of the periodic task."""
    await asyncio.sleep(0.1)
    job = current_job()
    return f"{job.id} {job.fence}"


def make_app(ledger: Ledger, process: Process) -> Dibs:
    """Return the application of a process, with its tasks and the account of their handlers."""
    app = Dibs("memory:", flows=True, call_timeout=CALL_TIMEOUT)
    backoff = Exponential(0.5, 8)
    app.task(queue="plain", backoff=backoff, max_retries=5, timeout=TIMEOUTS["plain"])(work)
    app.task(queue="timed", backoff=backoff, max_retries=3, timeout=TIMEOUTS["timed"], max_timeouts=2)(work)
    limits: Any = {"max_active": MOST_ACTIVE["keyed"], "per_key": PER_KEY["keyed"]}
    app.task(queue="keyed", backoff=backoff, max_retries=3, timeout=TIMEOUTS["keyed"], **limits)(work)
    app.task(queue="rated", backoff=backoff, max_retries=3, rate=f"{RATED[1]}/s")(work)
    app.task(queue=TICKS[0], every=TICKS[1] / 1000, max_retries=2, backoff=backoff)(tick)

    @contextmanager
    def account(job: CurrentJob) -> Iterator[None]:
        key = (job.queue, job.id, job.fence)
        ledger.handler_began(process, key)
        returned: str | None = None
        try:
            yield
            returned = f"{job.id} {job.fence}"
        finally:
            ledger.handler_ended(process, key, returned)

    app.middleware(run=account)
    process.app = app
    return app


class ProducerMachine(Machine):
    """A program that enqueues jobs, waits for them, cancels them, and starts flows."""

    _numbers = count(1)

    def __init__(
        self,
        world: World,
        server: StorageServer,
        name: str,
        make_app: Callable[[Process], Dibs],
        ledger: Ledger,
        *,
        pause: float,
        seed: str,
    ) -> None:
        super().__init__(world, server, name, make_app)
        self._ledger, self._pause = ledger, pause
        self._random = Random(seed)
        #: The latest flows that were enqueued here.
        self._flow_ids: list[str] = []
        #: The actions that have not ended.
        self._actions: set[asyncio.Task[None]] = set()

    async def main(self, process: Process, app: Dibs) -> None:
        self._actions = set()
        actions = (
            self._enqueue,
            self._enqueue,
            self._enqueue_and_wait,
            self._burst,
            self._cancel,
            self._flow,
            self._flow,
            self._send_to_receiver,
            self._operate,
        )
        async with app:
            while not self.finished:
                action = self._random.choice(actions)
                task = asyncio.get_running_loop().create_task(self._run(process, app, action))
                self._actions.add(task)
                task.add_done_callback(self._actions.discard)
                await asyncio.sleep(self._random.expovariate(1 / self._pause))
            if self._actions:
                await asyncio.wait(self._actions)

    async def _run(
        self, process: Process, app: Dibs, action: Callable[[Dibs, float], Awaitable[None]]
    ) -> None:
        """Run an action. Errors of the storage are a part of life."""
        began, frozen = time.monotonic(), process.frozen_until
        wait = self._random.choice((0.0, 1.0, 10.0, 60.0))
        limit = CALL_TIMEOUT + wait + CALL_TIMEOUT  # an enqueue, the wait, and its last read
        try:
            await action(app, wait)
        except (WaitTimeout, JobEnded):
            pass
        except (StorageError, OutcomeUnknown):
            self._ledger.counts["errors"] += 1
        except DibsError as error:
            self.world.fail("4.7 an error says what happened", f"{process.name}: {error!r}")
        took = time.monotonic() - began
        if took > limit + SLACK and process.frozen_until == frozen:
            self.world.fail(
                "4.7 each call has a deadline",
                f"{action.__name__} in {process.name} took {took:.1f} s, and its deadline was {limit:g} s",
            )

    # -- actions -------------------------------------------------------------------------------------

    def _draw_call(self) -> tuple[int, float, str]:
        draw = self._random
        [manner] = draw.choices(list(MANNERS), list(MANNERS.values()))
        seconds = min(20.0, draw.expovariate(1 / draw.choice((0.01, 0.2, 2.0))))
        return next(ProducerMachine._numbers), round(seconds, 3), manner

    def _draw_settings(self, queue: str) -> dict[str, Any]:
        draw, settings = self._random, dict[str, Any]()
        if draw.random() < 0.4:
            settings["id"] = f"id-{draw.randrange(30)}"
            settings["on_conflict"] = draw.choice(
                (Update(), Update(run_at="never"), Update(data=False), Reject(), Reject(failed=True))
            )
        if draw.random() < 0.2:
            settings["delay"] = draw.choice((0.5, 5, 60, 240))
        if draw.random() < 0.1:
            settings["request_key"] = f"key-{draw.randrange(10**9)}"
        if draw.random() < 0.1:
            settings["priority"] = draw.randrange(-3, 4)
        if queue == "keyed":
            settings["key"] = f"key-{draw.randrange(6)}"
        return settings

    async def _add(self, app: Dibs) -> Any:
        queue = self._random.choice(("plain", "plain", "timed", "keyed", "rated"))
        call = self._draw_call()
        try:
            ticket = await app.get_task(queue).options(**self._draw_settings(queue)).enqueue(*call)
        except StorageError:
            self._ledger.not_written(call[0])
            raise
        if ticket.verdict in ("queued", "updated", "blocked") and not ticket.repeated:
            self._check_ticket(ticket, call[0])
        return ticket

    def _check_ticket(self, ticket: Any, number: int) -> None:
        stored = self._ledger.accepted.get((ticket.queue, ticket.id, ticket.revision))
        if stored != number:
            self.world.fail(
                "4.1 an accepted enqueue is kept",
                f"{ticket} of the call {number} has a revision under which the storage has {stored}",
            )

    async def _enqueue(self, app: Dibs, _wait: float) -> None:
        await self._add(app)

    async def _burst(self, app: Dibs, _wait: float) -> None:
        calls = [self._add(app) for _ in range(self._random.randrange(2, 40))]
        found = await asyncio.gather(*calls, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, StorageError | OutcomeUnknown):
                raise one

    async def _enqueue_and_wait(self, app: Dibs, wait: float) -> None:
        ticket = await self._add(app)
        result = await ticket.result(wait)
        if isinstance(result, str) and result.split()[0] != ticket.id:
            self.world.fail("1 when an enqueue is done", f"{ticket} got the result {result!r} of another id")
        elif isinstance(result, str) and ticket.verdict in ("queued", "updated", "blocked"):
            fence = int(result.split()[1])
            if not self._ledger.covers(ticket.queue, ticket.id, fence, ticket.revision):
                self.world.fail("1 when an enqueue is done", f"{ticket} got {result!r} of another enqueue")

    async def _send_to_receiver(self, app: Dibs, _wait: float) -> None:
        """Enqueue a job for a program without a worker; some ask for a shorter or a longer lease."""
        number, lease = next(ProducerMachine._numbers), self._random.choice((None, None, 3, 12))
        settings: dict[str, Any] = {} if lease is None else {"lease": lease}
        await app.queue(RECEIVED).enqueue({"args": [number]}, **settings)

    async def _operate(self, app: Dibs, _wait: float) -> None:
        """Do what an operator does to flows and ticks: cancel them, cancel their evaluation, retry them."""
        if not self._flow_ids:
            return
        flow, what = self._random.choice(self._flow_ids), self._random.randrange(4)
        if what == 0:
            await app.get_flow(flow).cancel()
        elif what == 1:
            await app.get_flow(flow).retry_failed()
        elif what == 2:
            await app.queue(TICKS[0]).cancel(TICK_ID)
        else:
            await app.queue(EVALUATIONS).cancel(flow)

    async def _cancel(self, app: Dibs, _wait: float) -> None:
        queue = app.queue(self._random.choice(("plain", "timed", "keyed", "rated")))
        await queue.cancel(f"id-{self._random.randrange(30)}", running=self._random.random() < 0.5)

    async def _flow(self, app: Dibs, wait: float) -> None:
        draw, flow = self._random, app.flow()
        nodes: list[Any] = []
        numbers: list[int] = []
        for _ in range(draw.randrange(2, 7)):
            queue = draw.choice(("plain", "plain", "timed"))
            number, seconds, manner = self._draw_call()
            chosen = [place for place in range(len(nodes)) if draw.random() < 0.5]
            job = app.get_task(queue).bind(number, seconds / 4, "sleep" if manner == "follow up" else manner)
            nodes.append(flow.add(job, after=[nodes[place] for place in chosen]))
            self._ledger.parents[number] = tuple(numbers[place] for place in chosen)
            numbers.append(number)
        ticket = await flow.enqueue()
        self._flow_ids.append(ticket.id)
        del self._flow_ids[:-20]
        if wait:
            await ticket.result(wait)


class ReceiverMachine(Machine):
    """A program without a worker: it claims the jobs of one queue by receivers, in short sessions."""

    def __init__(
        self,
        world: World,
        server: StorageServer,
        name: str,
        make_app: Callable[[Process], Dibs],
        ledger: Ledger,
        seed: str,
    ) -> None:
        super().__init__(world, server, name, make_app)
        self._ledger, self._random = ledger, Random(seed)

    async def main(self, process: Process, app: Dibs) -> None:
        async with app:
            while not self.finished:
                with suppress(StorageError, OutcomeUnknown):
                    await self._receive(process, app)
                await asyncio.sleep(self._random.uniform(0.1, 1))

    async def _receive(self, process: Process, app: Dibs) -> None:
        draw = self._random
        wait, handlers = draw.choice((0, 1, 20)), set[asyncio.Task[None]]()
        async with app.queue(RECEIVED).receive(max_jobs=4, lease=6, wait=wait) as claims:
            try:
                async for claim in claims:
                    work = self._handle(process, claim, draw.choice((0.01, 1, 10)))
                    handlers.add(asyncio.get_running_loop().create_task(work))
            finally:
                if handlers:
                    await asyncio.wait(handlers)

    async def _handle(self, process: Process, claim: Claim, seconds: float) -> None:
        key, text = (claim.queue, claim.id, claim.fence), f"{claim.id} {claim.fence}"
        self._ledger.handler_began(process, key)
        await asyncio.sleep(seconds)
        self._ledger.handler_ended(process, key, text)
        with suppress(StorageError, OutcomeUnknown, LeaseLost, JobCancelled):
            await claim.complete(text)
