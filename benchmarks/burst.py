"""Measure stalls, waits and memory under a burst of calls: `python -m benchmarks.burst [URL ...] [--servers]
[--calls N] [--pending N]`.

N calls of `task.enqueue` start at once on one event loop. A heartbeat records how long each iteration of the
loop lasts. Two callers come after the burst, one on the queue of the burst and one on another queue. The line
"bare" is the same burst without dibs: N tasks that wait for one future each, answered 1000 at a time. Its
stalls are those of `asyncio.gather` and of N first steps in one iteration; no library can shorten them. A
full collection of Python's garbage collector also takes longer the more tasks wait; `--without-gc` leaves
this out.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from subprocess import run
from typing import Any, Final, cast

from attrs import define, field

from benchmarks.__main__ import kind_of
from benchmarks.client_calls import UnclosedStorage, app, app_on, double
from benchmarks.memory_use import resident_bytes
from benchmarks.storages import empty_storage, private_servers
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage

#: Seconds between two beats of the heartbeat.
BEAT: Final = 0.002
#: Seconds from which an iteration of the event loop counts as a stall.
STALL: Final = 0.05
#: Calls that a chunk creates before it yields to the event loop, in the mode "chunks".
CHUNK: Final = 1000
#: Futures that the bare burst answers in one iteration of the event loop.
BARE_BATCH: Final = 1000

Call = Callable[[int], Coroutine[Any, Any, Any]]


@define
class Stalls:
    """The times between the beats of a heartbeat on this event loop, in seconds.

    On a shared machine compare the CPU times of this thread, which leave out the time of other programs.
    """

    seconds: list[float] = field(factory=list)
    cpu_seconds: list[float] = field(factory=list)

    @asynccontextmanager
    async def recorded(self) -> AsyncIterator[None]:
        """Record the beats during a block."""
        heartbeat = asyncio.create_task(self._beat())
        await asyncio.sleep(BEAT)
        try:
            yield
            await asyncio.sleep(2 * BEAT)
        finally:
            heartbeat.cancel()

    async def _beat(self) -> None:
        last, last_cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(BEAT)
            now, cpu = time.perf_counter(), time.thread_time()
            self.seconds.append(now - last - BEAT)
            self.cpu_seconds.append(cpu - last_cpu)
            last, last_cpu = now, cpu

    def report(self) -> dict[str, Any]:
        """Return the three longest stalls in ms, and the number of stalls over STALL, by clock and by CPU."""
        return {
            "longest_ms": _longest_ms(self.seconds),
            "over_50_ms": sum(one > STALL for one in self.seconds),
            "longest_cpu_ms": _longest_ms(self.cpu_seconds),
            "over_50_cpu_ms": sum(one > STALL for one in self.cpu_seconds),
        }


def _longest_ms(seconds: list[float]) -> list[int]:
    return [round(one * 1000) for one in sorted(seconds, reverse=True)[:3]]


async def gather_all(call: Call, calls: int) -> None:
    """Start all calls in one iteration of the event loop."""
    await asyncio.gather(*(call(number) for number in range(calls)))


async def create_in_chunks(call: Call, calls: int) -> None:
    """Start the calls in chunks, and yield to the event loop after each."""
    tasks = []
    for number in range(calls):
        tasks.append(asyncio.create_task(call(number)))
        if number % CHUNK == CHUNK - 1:
            await asyncio.sleep(0)
    for task in tasks:
        await task


MODES: Final[dict[str, Callable[[Call, int], Awaitable[None]]]] = {
    "gather": gather_all,
    "chunks": create_in_chunks,
}


async def measure_burst(call: Call, late: dict[str, Call], calls: int, mode: str) -> dict[str, Any]:
    """Return the stalls, the waits of the late callers in ms, and the calls a second."""
    stalls, waits = Stalls(), {}

    async def call_late(name: str) -> None:
        started = time.perf_counter()
        await late[name](calls)
        waits[f"late_{name}_ms"] = round((time.perf_counter() - started) * 1000)

    async def burst() -> None:
        await MODES[mode](call, calls)

    async with stalls.recorded():
        started, started_cpu = time.perf_counter(), time.process_time()
        burst_task = asyncio.create_task(burst())
        # The first sleep ends after the calls are created, the second one after their first steps.
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(*map(call_late, late))
        await burst_task
        seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    figures = {"calls_per_s": round(calls / seconds), "cpu_us_per_call": round(cpu / calls * 1e6, 1)}
    return {**stalls.report(), **waits, **figures}


class BareCalls:
    """Calls without a library: each waits for a future, and a task answers BARE_BATCH of them at a time."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answering: asyncio.Task[None] | None = None

    async def call(self, _number: int) -> None:
        """Wait until this call is answered."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer_all())
        await answer

    async def _answer_all(self) -> None:
        while self._waiting:
            for _ in range(min(BARE_BATCH, len(self._waiting))):
                self._waiting.popleft().set_result(None)
            await asyncio.sleep(0)
        self._answering = None


async def measure_storage(url: str, calls: int, mode: str) -> dict[str, Any]:
    """Return the figures of a burst on an empty storage."""
    late = app.queue("late")
    async with empty_storage(url) as storage, app_on(storage):
        await double.enqueue(0)
        await late.enqueue(0)
        return await measure_burst(
            double.enqueue, {"same_queue": double.enqueue, "other_queue": late.enqueue}, calls, mode
        )


class PausedStorage(UnclosedStorage):
    """A storage that answers no enqueue before `resume`, so that every call stays pending."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._resumed = asyncio.Event()

    def resume(self) -> None:
        """Answer the enqueues that wait in this storage."""
        self._resumed.set()

    async def enqueue(self, queue: str, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Enqueue after `resume`."""
        await self._resumed.wait()
        return await self._storage.enqueue(queue, requests)


async def measure_memory(calls: int, *, bare: bool) -> dict[str, Any]:
    """Return the MB of resident memory that pending calls take together, with the tasks of the caller."""
    async with open_storage("memory:") as storage:
        paused = PausedStorage(storage)
        async with app_on(cast("Storage", paused)):
            call = await _never_answered() if bare else double.enqueue
            gc.collect()
            before = resident_bytes()
            tasks = []
            for number in range(calls):
                tasks.append(asyncio.create_task(call(number)))
                if number % CHUNK == CHUNK - 1:
                    await asyncio.sleep(0)
            used = resident_bytes() - before
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            paused.resume()
    return {"pending": calls, "rss_mb": round(used / 1e6), "bytes_per_call": round(used / calls)}


async def _never_answered() -> Call:
    loop = asyncio.get_running_loop()

    async def call(_number: int) -> None:
        await loop.create_future()

    return call


def in_new_process(*arguments: str) -> None:
    """Measure in a new process, so that the memory and the garbage of one burst do not slow down another."""
    run([sys.executable, "-m", "benchmarks.burst", "--one", *arguments], check=True)


def measure_one(case: str, calls: int, mode: str) -> None:
    """Print a line of JSON for one case: "bare", "memory-bare", "memory-dibs" or a URL."""
    if case.startswith("memory-"):
        figures = asyncio.run(measure_memory(calls, bare=case == "memory-bare"))
    elif case == "bare":
        bare = BareCalls()
        figures = asyncio.run(measure_burst(bare.call, {"same_queue": bare.call}, calls, mode))
    else:
        figures = asyncio.run(measure_storage(case, calls, mode))
    name = kind_of(case) if ":" in case else case
    print(json.dumps({"case": name, "mode": mode, **figures}), flush=True)


def main() -> None:
    """Measure all storages and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.burst", description=__doc__)
    parser.add_argument("urls", nargs="*", default=["memory:"], help="storages (default: memory:)")
    parser.add_argument("--servers", action="store_true", help="start a Redis and a Postgres as well")
    parser.add_argument("--calls", type=int, default=200_000, help="calls of a burst (default: 200000)")
    parser.add_argument("--pending", type=int, default=1_000_000, help="calls of the measurement of memory")
    parser.add_argument("--mode", choices=MODES, help="how the calls start (default: each way)")
    parser.add_argument("--without-gc", action="store_true", help="disable the garbage collector")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.without_gc:
        gc.disable()
    if options.one:
        measure_one(options.urls[0], options.calls, options.mode)
        return
    without_gc = ["--without-gc"] if options.without_gc else []
    with ExitStack() as stack:
        urls, servers = stack.enter_context(private_servers()) if options.servers else ([], "")
        for mode in [options.mode] if options.mode else MODES:
            for case in ("bare", *options.urls, *urls):
                in_new_process(case, "--calls", str(options.calls), "--mode", mode, *without_gc)
        for case in ("memory-bare", "memory-dibs") if options.pending else ():
            in_new_process(case, "--calls", str(options.pending), "--mode", "chunks")
        print(servers)


if __name__ == "__main__":
    main()
