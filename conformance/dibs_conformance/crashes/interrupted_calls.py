"""Tests of calls that are cancelled, or whose connection to the server is cut.

A call is cancelled at each of its awaits, and the same storage object is used again. A proxy cuts a
connection after the n-th byte of a request or a reply. A call takes effect completely or not at all, and
reports truthfully; no later call may get its reply.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import coroutine
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from attrs import frozen

from dibs_conformance.concurrent.client import make_call
from dibs_conformance.crashes.scenes import SCENES, FaultCampaign, ThreadSurvivor, min_points, thread_survivor
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.values import merge_findings
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs import VERBS
from dibs_conformance.verbs.actions import ClientCall, Program

T = TypeVar("T")
#: Limit on the awaits tried per scene. No operation has so many.
MAX_AWAITS = 200
#: Concurrent reads after a cancellation. Each must get its own answer.
READERS = 8


class AwaitCanceller:
    """Counts the awaits of a coroutine, and cancels the current task at one of them."""

    def __init__(self, at: int) -> None:
        self.count, self._at = 0, at

    @coroutine
    def run(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run the coroutine and forward everything it awaits."""
        error_in: BaseException | None = None
        while True:
            try:
                awaited = work.send(None) if error_in is None else work.throw(error_in)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            error_in = None
            self.count += 1
            if self.count == self._at:
                task = asyncio.current_task()
                assert task is not None  # noqa: S101 - this coroutine runs in a task
                task.cancel()
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine again
                error_in = error


@frozen
class CancellationRunner:
    """The runner of scenes with a cancelled call.

    It cancels calls on the storage object that also makes the later calls. So both share its connections.
    """

    _survivor: ThreadSurvivor
    _campaign: FaultCampaign[str]

    def cancel_scene(self, name: str) -> None:
        """Cancel the operation of a scene at its first await, at its second, and so on until it completes."""
        for at in range(MAX_AWAITS):
            if self._campaign.failure is not None or not self._cancel_at(name, at):
                break

    def _cancel_at(self, name: str, at: int) -> bool:
        history = self._campaign.new_history()
        program = history.run_setup(SCENES[name])
        client = self._survivor.client
        call, was_cancelled = client.wait_for(client.submit(lambda: client.run(self._cancel(program, at))))
        if was_cancelled:
            self._campaign.count_fault()
        history.add([call])
        problem = client.wait_for(client.submit(lambda: client.run(self._check_readers(history.queue))))
        if problem:
            self._campaign.failure = LawFailure(
                law=self._campaign.law, why=f"{name}, cancelled at await {at}: {problem}"
            )
        history.finish()
        self._campaign.check(history)
        return was_cancelled

    async def _cancel(self, program: Program, at: int) -> tuple[ClientCall, bool]:
        """Make the call, cancel it at await number `at`, and return it with whether it was cancelled.

        With `at` 0 the call is cancelled before it starts.
        """
        [action] = program.actions
        now = program.now + action.clock_offset
        call = ClientCall(
            client="bob",
            operation=action.operation,
            queue=program.queue,
            args=VERBS[action.operation].arguments(action, program.queue, program.state),
            now=now,
            invoked=time.monotonic(),
        )
        task = asyncio.ensure_future(self._make_call(call, AwaitCanceller(at)))
        if at == 0:
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return call, True
        call.returned = time.monotonic()
        return call, False

    async def _make_call(self, call: ClientCall, awaits: AwaitCanceller) -> None:
        await awaits.run(make_call(self._survivor.client.storage, call))

    async def _check_readers(self, queue: str) -> str:
        """Read with several tasks at the same time. Return a description of wrong answers, or ""."""
        storage, ids = self._survivor.client.storage, [f"reader {n}" for n in range(READERS)]
        answers = await asyncio.gather(*(storage.get(queue, [id] * (n + 1)) for n, id in enumerate(ids)))
        sizes = [len(answer) for answer in answers]
        return "" if sizes == list(range(1, READERS + 1)) else f"readers got {sizes} slots"


def try_cancellation(plan: LevelPlan, until: float) -> Findings:
    """Cancel each scene at each of its awaits."""
    location = plan.locations.new()
    with thread_survivor(plan.locations, location) as survivor:
        campaign: FaultCampaign[str] = FaultCampaign(
            "a cancelled caller leaves nothing half done",
            "A call cancelled at any await takes effect completely or not; no other call gets its reply.",
            "cancel",
            survivor,
            "cancelled",
            plan.seed,
        )
        campaign.run(list(SCENES), CancellationRunner(survivor, campaign).cancel_scene, until)
        return campaign.findings()


Direction = Literal["request", "reply"]
LOOPBACK = "127.0.0.1"
CHUNK = 65536


class Proxy:
    """The proxy: it forwards connections of a local port to a server, on an event loop in its own thread."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kit-proxy", daemon=True)
        self._thread.start()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._remaining: dict[Direction, int | None] = {"request": None, "reply": None}
        self.bytes: dict[Direction, int] = {"request": 0, "reply": 0}
        self.cuts = 0
        self._server = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._relay, LOOPBACK, 0)

    def arm(self, direction: Direction | None = None, after: int = 0) -> None:
        """Reset the counts, and cut the next connection after `after` bytes in a direction.

        Without a direction, the proxy only counts bytes.
        """

        async def set_up() -> None:
            self.bytes = {"request": 0, "reply": 0}
            self._remaining = {"request": None, "reply": None}
            self.cuts = 0
            if direction is not None:
                self._remaining[direction] = after

        asyncio.run_coroutine_threadsafe(set_up(), self._loop).result(10)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, server_writer)
        self._writers.update(pair)
        for direction, source, sink in (("request", reader, server_writer), ("reply", server_reader, writer)):
            task = asyncio.ensure_future(self._forward(direction, source, sink, pair))  # type: ignore[arg-type]
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self,
        direction: Direction,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while chunk := await source.read(CHUNK):
                remaining = self._remaining[direction]
                self.bytes[direction] += len(chunk)
                sink.write(chunk if remaining is None else chunk[:remaining])
                await sink.drain()
                if remaining is not None:
                    if len(chunk) >= remaining:
                        self._remaining[direction] = None
                        self.cuts += 1
                        break
                    self._remaining[direction] = remaining - len(chunk)
        except OSError:
            pass
        finally:
            await self._close_pair(pair)

    async def _close_pair(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        """Close the connections to the client and to the server. Bytes written before still arrive."""
        for writer in pair:
            self._writers.discard(writer)
            if not writer.is_closing():
                writer.close()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @classmethod
    @contextmanager
    def for_url(cls, url: str) -> Iterator[Self]:
        """Start a proxy to the server of a URL, and close it at the end."""
        host, port = server_of(url)
        proxy = cls(host, port)
        try:
            yield proxy
        finally:
            proxy.close()

    def proxied_url(self, url: str) -> str:
        """Return the URL with the proxy's address."""
        parts = urlsplit(url)
        credentials = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return urlunsplit(parts._replace(netloc=f"{credentials}{LOOPBACK}:{self.port}"))


def server_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None  # noqa: S101 - has_server was checked before
    assert parts.port is not None  # noqa: S101
    return parts.hostname, parts.port


def has_server(url: str) -> bool:
    """Return whether a URL has a host and a port."""
    try:
        parts = urlsplit(url)
        return parts.hostname is not None and parts.port is not None
    except ValueError:
        return False


#: The name of a scene, and the number of bytes before the cut.
CutPoint = tuple[str, int]

REQUEST_CUT = (
    "a cut request tells the truth",
    "After a cut at any byte of a request, the call reports truthfully: done, refused or unknown.",
    "request cut",
)
REPLY_CUT = (
    "a cut reply tells the truth",
    "After a cut at any byte of a reply, the call reports truthfully: done, refused or unknown.",
    "reply cut",
)


@frozen
class ConnectionCutter:
    """The runner of scenes on a client behind a proxy that cuts the connection."""

    _client: ThreadSurvivor
    _proxy: Proxy

    def sizes(self, campaign: FaultCampaign[CutPoint]) -> dict[str, dict[Direction, int]]:
        """Return the number of bytes that each scene sends and receives."""
        found: dict[str, dict[Direction, int]] = {}
        for name in SCENES:
            self._run_scene(campaign, name, None, 0)
            found[name] = dict(self._proxy.bytes)
        return found

    def cut(self, campaign: FaultCampaign[CutPoint], direction: Direction, point: CutPoint) -> None:
        self._run_scene(campaign, point[0], direction, point[1])
        if self._proxy.cuts:
            campaign.count_fault()

    def _run_scene(
        self, campaign: FaultCampaign[CutPoint], name: str, direction: Direction | None, after: int
    ) -> None:
        history = campaign.new_history()
        program = history.run_setup(SCENES[name])
        self._proxy.arm(direction, after)
        calls = self._client.run(program, 60) or self._client.wait_late()
        history.add(calls)
        history.finish()
        campaign.check(history)


def try_cut_connections(plan: LevelPlan, until: float) -> Findings:
    """Cut connections within requests in the first half of the time, and within replies in the second."""
    url, now = plan.locations.new(), time.monotonic()
    with (
        thread_survivor(plan.locations, url) as survivor,
        Proxy.for_url(url) as proxy,
        thread_survivor(plan.locations, proxy.proxied_url(url)) as client,
    ):
        requests: FaultCampaign[CutPoint] = FaultCampaign(
            *REQUEST_CUT, survivor, "request", plan.seed, min_points=min_points(plan)
        )
        replies: FaultCampaign[CutPoint] = FaultCampaign(
            *REPLY_CUT, survivor, "reply", plan.seed, min_points=min_points(plan)
        )
        cutter = ConnectionCutter(client, proxy)
        sizes = cutter.sizes(requests)
        sent = [(name, n) for name, size in sizes.items() for n in range(1, size["request"] + 1)]
        got = [(name, n) for name, size in sizes.items() for n in range(1, size["reply"] + 1)]
        requests.run(sent, lambda point: cutter.cut(requests, "request", point), (now + until) / 2)
        if requests.failure is None:
            replies.run(got, lambda point: cutter.cut(replies, "reply", point), until)
        return merge_findings(requests.findings(), replies.findings())
