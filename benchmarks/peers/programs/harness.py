"""The common part of the Python programs: steps, queues, counting of jobs, and results as lines of JSON.

Environment variables: the step in PEER_STEP, its number of jobs in PEER_COUNT, the number of queues in
PEER_QUEUES, the URL of the server or the folder in PEER_URL, the path of a FIFO in PEER_REPORT, and the bytes
of a large argument in PEER_PAYLOAD.

    prepare   create tables
    enqueue   enqueue COUNT jobs in bulk; prints the seconds
    single    enqueue one job after the other for COUNT ms; prints jobs a second
    blocking  the same with the blocking API of a program that has two
    work      run jobs; writes the time of the first and of the last handler call to the FIFO
    send      enqueue one job, wait for a line of standard input, then enqueue COUNT jobs, one every 3 ms;
              each job carries the time of its enqueue
    receive   run the jobs of `send`; writes the ms from the enqueue to the handler of each to the FIFO
    result    enqueue COUNT jobs one after the other and wait for the result of each; prints the ms
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

STEP = os.environ.get("PEER_STEP", "")
COUNT = int(os.environ.get("PEER_COUNT", "0"))
URL = os.environ.get("PEER_URL", "")
KEEP = int(os.environ.get("PEER_KEEP", "0"))
PAYLOAD = int(os.environ.get("PEER_PAYLOAD", "0"))
#: The second argument of a job. With PEER_PAYLOAD it is a text of so many bytes that compress badly.
Y = random.Random(7).randbytes((PAYLOAD + 1) // 2).hex() if PAYLOAD else 22
NUMBER_OF_QUEUES = int(os.environ.get("PEER_QUEUES", "1"))
QUEUES = [f"peers-{n}" for n in range(NUMBER_OF_QUEUES)] if NUMBER_OF_QUEUES > 1 else ["peers"]
#: Seconds between two jobs of `send`. The worker is idle again before each job.
PAUSE = 0.003
#: The parent process adds a job to those of `send`, to know when the worker is ready.
FIRST = 1


def now() -> int:
    """Return ns on the monotonic clock, which all processes of a machine share."""
    return time.monotonic_ns()


def report(**values: object) -> None:
    """Send a line to the parent process. Not standard output: some peers redirect it to their log."""
    fifo = os.open(os.environ["PEER_REPORT"], os.O_WRONLY)
    data = json.dumps(values).encode() + b"\n"
    while data:
        data = data[os.write(fifo, data) :]
    os.close(fifo)


class JobCounter:
    """Counts the calls of the handler, and reports the first and the last."""

    def __init__(self) -> None:
        self.calls = 0
        self.latencies_ms: list[float] = []
        self.count = self._receive if STEP == "receive" else self._work

    def _work(self, sent: int) -> None:
        del sent
        self.calls += 1
        if self.calls == 1:
            report(first=now())
        if self.calls == COUNT:
            report(last=now())

    def _receive(self, sent: int) -> None:
        """Keep the latency of a job, whose enqueue was at `sent`."""
        self.latencies_ms.append((now() - sent) / 1e6)
        self.calls += 1
        if self.calls == FIRST:
            report(first=now())
        if self.calls == FIRST + COUNT:
            report(last=now(), ms=self.latencies_ms[FIRST:])


def print_result(**values: object) -> None:
    print(json.dumps(values), flush=True)


def queue_of(n: int) -> str:
    """Return the queue of a job of `send`."""
    return QUEUES[n % len(QUEUES)]


def send_times() -> Iterator[tuple[int, str]]:
    """Yield the current time in ns and the queue for each job of `send`."""
    yield now(), QUEUES[0]
    sys.stdin.readline()
    for n in range(COUNT):
        time.sleep(PAUSE)
        yield now(), queue_of(n)


async def send_times_async() -> AsyncIterator[tuple[int, str]]:
    """Yield the same as `send_times`; the event loop runs between the jobs."""
    yield now(), QUEUES[0]
    await asyncio.to_thread(sys.stdin.readline)
    for n in range(COUNT):
        await asyncio.sleep(PAUSE)
        yield now(), queue_of(n)


def time_enqueue(enqueue_all: Callable[[], object]) -> None:
    """Enqueue all jobs, and print the seconds."""
    started = time.perf_counter()
    enqueue_all()
    print_result(seconds=time.perf_counter() - started)


def time_single(enqueue: Callable[[int], object]) -> None:
    """Enqueue one job after the other for COUNT ms, and print jobs a second."""
    started = time.perf_counter()
    n, end = 0, started + COUNT / 1000
    while time.perf_counter() < end:
        enqueue(n)
        n += 1
    print_result(per_second=n / (time.perf_counter() - started))


async def time_single_async(enqueue: Callable[[int], Awaitable[object]]) -> None:
    """Do the same as `time_single` with an enqueue that is awaited."""
    started = time.perf_counter()
    n, end = 0, started + COUNT / 1000
    while time.perf_counter() < end:
        await enqueue(n)
        n += 1
    print_result(per_second=n / (time.perf_counter() - started))


def time_results(run: Callable[[int], object]) -> None:
    """Run COUNT jobs one after the other, and print the ms of each."""
    times = []
    for n in range(COUNT):
        started = time.perf_counter()
        run(n)
        times.append((time.perf_counter() - started) * 1000)
        time.sleep(PAUSE)
    print_result(ms=times)


async def time_results_async(run: Callable[[int], Awaitable[object]]) -> None:
    times = []
    for n in range(COUNT):
        started = time.perf_counter()
        await run(n)
        times.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(PAUSE)
    print_result(ms=times)


def chunks(size: int) -> Iterator[Iterable[int]]:
    """Yield the numbers of all jobs in ranges of `size`."""
    for start in range(0, COUNT, size):
        yield range(start, min(start + size, COUNT))


def chunks_by_queue(size: int) -> Iterator[tuple[str, Iterable[int]]]:
    """Yield a queue in turn, and the numbers of its next jobs in a range of at most `size`.

    Each queue gets the same number of jobs, give or take one.
    """
    parts = [range(n, COUNT, len(QUEUES)) for n in range(len(QUEUES))]
    for start in range(0, len(parts[0]), size):
        for queue, part in zip(QUEUES, parts, strict=True):
            yield queue, part[start : start + size]
