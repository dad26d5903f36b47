"""What the tests of workers are made of: handlers without the decorators, jobs, and storages that fail."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dibs.client.app import Dibs
from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.client.options.serde import JSON
from dibs.model.job import Job, JobData, NewJob, Outcome
from dibs.model.requests import EnqueueRequest
from dibs.model.retry import Immediate
from dibs.storage.protocol import Storage


def arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The payload is the list of arguments."""
    return tuple(msgspec.json.decode(job.data.payload)), {}


def add(app: Dibs, queue: str, function: Callable[..., Any], **options: Any) -> None:
    """Give a queue its handler; comebacks are immediate unless a test says otherwise."""
    names = HandlerLimits.__struct_fields__
    limits = {"backoff": Immediate(), **{name: options.pop(name) for name in names if name in options}}
    app.handlers[queue] = Handler(
        queue=queue,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        serde=JSON,
        arguments=arguments,
        limits=HandlerLimits(**limits),
        **options,
    )


def request(id: str, *values: Any, **more: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=JSON.encode(list(values)), **more)))


async def put(app: Dibs, queue: str, *requests: EnqueueRequest | str) -> None:
    """Enqueue requests, or ids of jobs without arguments."""
    await app.storage.enqueue(queue, [request(one) if isinstance(one, str) else one for one in requests])


async def outcome(app: Dibs, queue: str, id: str) -> Outcome:
    [slot] = await app.storage.get(queue, [id])
    assert slot.outcome is not None, f"{queue}/{id} has no outcome: {slot}"
    return slot.outcome


async def current(app: Dibs, queue: str, id: str) -> Job:
    [slot] = await app.storage.get(queue, [id])
    assert slot.current is not None, f"{queue}/{id} is not live: {slot}"
    return slot.current


async def counted(app: Dibs, queue: str, word: str, number: int = 1) -> None:
    """Wait until so many jobs of a queue are in a state."""
    since: Mapping[str, str] | None = None
    async with asyncio.timeout(60):
        while getattr((await app.storage.counts([queue]))[queue], word) < number:
            since = (await app.storage.wait([queue], for_="events", since=since, timeout=0.5)).since


async def kinds(app: Dibs, queue: str, id: str) -> list[str]:
    """What the log says of an id."""
    page = await app.storage.events(queue, limit=1000)
    return [event.kind for _, event in page.events if event.id == id]


class Faulty:
    """A storage in front of another, some of whose verbs go wrong as often as a test says."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._faults: dict[str, list[tuple[str, Any]]] = {}
        self.calls: list[str] = []
        self._called = asyncio.Event()
        #: The same with the first argument.
        self.asked: list[tuple[str, Any]] = []

    def fail(self, verb: str, error: Exception, *, after: bool = False) -> None:
        """Let the next call of a verb raise: instead of being made, or after it was."""
        self._faults.setdefault(verb, []).append(("after" if after else "before", error))

    def forgive(self, verb: str) -> None:
        """Let a verb go right again."""
        self._faults.pop(verb, None)

    def answer(self, verb: str, answer: Any) -> None:
        """Let the next call of a verb not be made, and be answered so."""
        self._faults.setdefault(verb, []).append(("answer", answer))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the calls so far meet a condition."""
        async with asyncio.timeout(60):
            while not condition():
                self._called.clear()
                await self._called.wait()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._storage, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self._called.set()
            self.asked.append((name, args[0] if args else None))
            what: Any
            when, what = self._faults[name].pop(0) if self._faults.get(name) else ("", None)
            if when == "answer":
                return what
            if when == "before":
                raise what
            answer = await real(*args, **kwargs)
            if when == "after":
                raise what
            return answer

        return call


F = TypeVar("F", bound=Faulty)


def faulty(app: Dibs) -> AbstractAsyncContextManager[Faulty]:
    """Put a faulty storage into an open app."""
    return behind(app, Faulty)


@asynccontextmanager
async def behind(app: Dibs, kind: Callable[[Storage], F]) -> AsyncIterator[F]:
    """Put something before the storage of an open app."""
    opened = app._storage_handle.opened
    kept, storage = opened.storage, kind(opened.storage)
    opened.storage = storage
    try:
        yield storage
    finally:
        opened.storage = kept


#: A process, and the line to it.
Guest = tuple[int, asyncio.StreamReader, asyncio.StreamWriter]


class Gate:
    """A socket by which handlers in other processes say that they are there, and wait to be let go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._here: dict[str, asyncio.Future[Guest]] = {}
        self._lines: list[asyncio.StreamWriter] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[Gate]:
        gate = cls(path)
        server = await asyncio.start_unix_server(gate._come, str(path))
        try:
            yield gate
        finally:
            server.close()
            for line in gate._lines:
                line.close()
                with suppress(OSError):
                    await line.wait_closed()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.append(writer)
        name, _, pid = (await reader.readline()).decode().strip().partition(" ")
        known = self._at(name)
        if known.done():
            del self._here[name]
        self._at(name).set_result((int(pid), reader, writer))

    def _at(self, name: str) -> asyncio.Future[Guest]:
        return self._here.setdefault(name, asyncio.get_running_loop().create_future())

    async def arrived(self, name: str) -> int:
        """Wait for a handler, and return the process it is in."""
        async with asyncio.timeout(60):
            return (await self._at(name))[0]

    async def let_go(self, *names: str) -> None:
        """Let handlers go on, and wait until they have left."""
        for name in names:
            _, reader, writer = await self._at(name)
            writer.write(b"go\n")
            del self._here[name]
            with suppress(ConnectionError):
                await reader.read()

    async def let_go_unseen(self, name: str) -> None:
        """Let a handler go on as soon as its process can."""
        _, _, writer = await self._at(name)
        writer.write(b"go\n")
        del self._here[name]

    async def welcome(self, name: str, until: asyncio.Future[Any]) -> None:
        """Let a handler go on if it comes, until something has ended."""
        come = self._at(name)
        await asyncio.wait([come, until], return_when=asyncio.FIRST_COMPLETED)
        if come.done():
            await self.let_go_unseen(name)

    def again(self, name: str) -> None:
        """Expect the same name anew."""
        self._here.pop(name, None)


async def ends(pid: int) -> None:
    """Wait until a process is gone, of whomever it is the child."""
    gone = asyncio.Event()
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    asyncio.get_running_loop().add_reader(watched, gone.set)
    try:
        async with asyncio.timeout(10):
            await gone.wait()
    finally:
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)


def ids(number: int) -> Sequence[str]:
    return [f"job-{n:03}" for n in range(number)]
