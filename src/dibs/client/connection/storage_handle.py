"""The storage handle of an app: it opens the storage at first use, once in each process and event loop.

A blocking enqueue runs its coroutine on its own thread, as far as it needs no event loop. With a
storage that has `enqueue_blocking` it ends there. Otherwise it leaves the thread in `move_to_loop`,
and the blocking call continues it on an event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from attrs import define, field, frozen

from dibs.client.calls.handler import EnqueueMiddleware
from dibs.client.connection.call_limits import (
    DEFAULT_CALL_TIMEOUT,
    DEFAULT_MAX_PENDING,
    CallSlots,
    check_max_pending,
    open_within,
)
from dibs.client.connection.open_storage import (
    ForwardedStorage,
    LoopStorages,
    Opening,
    OpenStorage,
    close_opened,
    is_thread_safe,
)
from dibs.errors import ConfigurationError, NoStorage, NotRunning, StorageUnavailable
from dibs.model.check_jobs import CheckedBatch, check_request
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.storage.abilities import BlockingEnqueue, ability
from dibs.storage.addresses import absolute_url, check_url, redact_url
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.storage.running_loop import current_loop, no_loop_error, running_loop

if TYPE_CHECKING:
    from pathlib import Path

#: Environment variable with the URL of the storage.
URL_VARIABLE = "DIBS_URL"


def working_folder() -> str:
    """Return the working directory; "" if it was removed, where only an absolute path can be used."""
    try:
        return os.getcwd()  # noqa: PTH109 - an app does not import pathlib for this
    except FileNotFoundError:
        return ""


def resolve_url(url: str | None, folder: str | None = None) -> str:
    """Return `url`, else $DIBS_URL, else `url` under [tool.dibs] in the nearest pyproject.toml.

    The path of a file: URL becomes absolute: a relative one is below `folder`, by default the working
    directory. Raises NoStorage if there is no URL, ConfigurationError for a URL with a line break and for an
    invalid pyproject.toml.
    """
    folder = working_folder() if folder is None else folder
    found = url or os.environ.get(URL_VARIABLE) or _find_project_url(folder)
    if not found:
        raise NoStorage
    check_url(found)
    return absolute_url(found, folder)


def _find_project_url(start: str) -> str | None:
    from pathlib import Path  # noqa: PLC0415 - an app with a URL does not pay for this import

    current = Path(start)
    for folder in (current, *current.parents):
        project = folder / "pyproject.toml"
        if project.is_file():
            return _read_project_url(project)
    return None


def _read_project_url(project: Path) -> str | None:
    import tomllib  # noqa: PLC0415 - as for pathlib in `_find_project_url`

    try:
        tool = tomllib.loads(project.read_text("utf-8")).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{project} is not valid TOML: {error}") from error
    url = tool.get("dibs", {}).get("url")
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(
            f"{project}: url under [tool.dibs] is of type {type(url).__name__}; it must be a string"
        )
    # All processes of a project then use the same directory, from every working directory.
    return absolute_url(url, str(project.parent)) if url else None


T = TypeVar("T")


class _Thread(threading.local):
    #: The target of the enqueues that this thread runs now; None outside `start_on_thread`.
    target: ThreadEnqueues | None = None


_THREAD: Final = _Thread()


@frozen(eq=False)
class ThreadEnqueues:
    """The part of an OpenStorage that an enqueue uses, for a thread without an event loop.

    A call holds no slot of `max_pending`, because its thread waits for it.
    """

    #: Returns the storage of the running event loop, opened at first use.
    _ensure_open: Callable[[], Awaitable[OpenStorage]]
    _opened: OpenStorage
    _storage: BlockingEnqueue

    @property
    def slots(self) -> ThreadEnqueues:
        return self

    @property
    def coalesced(self) -> ThreadEnqueues:
        return self

    def acquire(self, _queue: str) -> None:
        return

    def release(self, _turn: None) -> None:
        return

    async def enqueue(
        self, queue: str, request: EnqueueRequest, _expires: float | None = None
    ) -> EnqueueResult:
        """Check one request and enqueue it. Raises Refused, OutcomeUnknown, StorageError."""
        limits = self._opened.limits
        plain = check_request(request, limits)
        batch = CheckedBatch.of((request,), limits, plain=plain)
        answers = self._storage.enqueue_blocking(queue, batch, self._opened.call_timeout)
        if answers is not None:
            return answers[0]
        await move_to_loop()
        return await self._enqueue_on_loop(queue, request)

    async def _enqueue_on_loop(self, queue: str, request: EnqueueRequest) -> EnqueueResult:
        # Another loop than that of `_opened`, if that loop has ended.
        opened = await self._ensure_open()
        if (storage := ability(opened.storage, BlockingEnqueue)) is not None:
            storage.prepare_blocking()
        turn = opened.slots.acquire(queue)
        try:
            expires = None if turn is None else await turn
            return await opened.coalesced.enqueue(queue, request, expires)
        finally:
            opened.slots.release(turn)


def thread_enqueues(
    opened: OpenStorage | None, ensure_open: Callable[[], Awaitable[OpenStorage]]
) -> ThreadEnqueues | None:
    """Return the target for enqueues on threads; None if the storage is not open or has no such enqueue."""
    if opened is None or not opened.loop.is_running():
        return None
    storage = ability(opened.storage, BlockingEnqueue)
    return None if storage is None else ThreadEnqueues(ensure_open, opened, storage)


def current_target() -> ThreadEnqueues | None:
    """Return the target of the enqueue that this thread runs without an event loop, or None."""
    return _THREAD.target


def start_on_thread(
    call: Coroutine[Any, Any, T], target: ThreadEnqueues
) -> tuple[T, None] | tuple[None, Coroutine[Any, Any, T]]:
    """Run an enqueue on this thread, as far as it needs no event loop.

    Return its result and None; or None and a coroutine that runs the rest of the call on an event loop.
    """
    _THREAD.target = target
    try:
        call.send(None)
    except StopIteration as end:
        return end.value, None
    finally:
        _THREAD.target = None
    return None, _continue(call)


@coroutine
def move_to_loop() -> Generator[None, None, None]:
    """Suspend the call that runs on a thread, so that it continues on an event loop.

    Only code that `start_on_thread` runs may await this.
    """
    yield


async def _continue(call: Coroutine[Any, Any, T]) -> T:
    return await _Begun(call)


@frozen
class _Begun(Generic[T]):
    """An awaitable for a coroutine that has begun already. `await` accepts only coroutines that have not."""

    _call: Coroutine[Any, Any, T]

    def __await__(self) -> Generator[Any, Any, T]:
        return self._call.__await__()


@define(eq=False)
class SingleStorage:
    """A storage object that cannot be opened twice: `memory:`, or the object of `override_storage`."""

    storage: Storage
    #: The process that made the object.
    process: int = field(factory=os.getpid)
    #: The event loop that opened the object, unless the object is thread-safe.
    home: asyncio.AbstractEventLoop | None = None
    #: True after a loop has opened the object and before `StorageHandle.close`, if it is thread-safe.
    is_entered: bool = False
    _home_lock: threading.Lock = field(factory=threading.Lock, init=False)

    def claim_home(self) -> asyncio.AbstractEventLoop:
        """Return the home of the object: the running loop of this thread, unless another home is running."""
        here = asyncio.get_running_loop()
        with self._home_lock:
            if self.home is None or not self.home.is_running():
                self.home = here
            return self.home

    def check_process(self) -> None:
        """Raise StorageUnavailable in a fork, which cannot reach the object."""
        if self.process != os.getpid():
            raise StorageUnavailable(
                f"{self.storage.url} is in the memory of process {self.process}: a fork cannot reach it; "
                "share jobs between processes by a file, Redis or Postgres storage"
            )


# slots=False, because `override` replaces all attributes through vars(self).
@define(eq=False, slots=False)
class StorageHandle:
    """The lazily opened storages of an app, one for each event loop of each process.

    Concurrent first callers of a loop open its storage once. After a fork the handle opens new storages, and
    leaves those of the parent alone. Event loops share a storage object only if it cannot be opened twice.
    """

    # Not in the repr: both may hold a password, and tools that report frame locals print reprs.
    _url: str | None = field(repr=False)
    _options: dict[str, Any] = field(repr=False)
    #: Seconds until a call without an answer ends with StorageBusy or OutcomeUnknown; None for no limit.
    call_timeout: float | None = DEFAULT_CALL_TIMEOUT
    #: Most enqueues of an event loop that are pending at a time.
    max_pending: int = field(default=DEFAULT_MAX_PENDING, converter=check_max_pending)
    #: The middleware of `app.middleware(enqueue=...)`, composed to one.
    enqueue_middleware: EnqueueMiddleware | None = field(default=None, init=False)
    #: The working directory at the first use of the app; "" before. The relative path of a file: URL is below
    #: it, also after os.chdir. A worker process gets the folder of its parent.
    folder: str = field(default="", init=False)
    #: The open storages by process id. A fork keeps those of its parent here, because the destruction of a
    #: connection might end the session of the parent at the server.
    _by_process: dict[int, LoopStorages] = field(factory=dict, init=False)
    #: The one object of an unshared storage, under the key 0. A dict, because `setdefault` is atomic.
    _single: dict[int, SingleStorage] = field(factory=dict, init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def url(self) -> str:
        """The URL of the storage, with its password. Raises NoStorage if there is no URL."""
        self.folder = self.folder or working_folder()
        return resolve_url(self._url, self.folder)

    @property
    def redacted_url(self) -> str:
        """The URL of the storage without its password, for messages."""
        if (opened := self._loops.any_opened()) is not None:
            return opened.storage.url
        return redact_url(self._url) if self._url else "not opened yet"

    @property
    def opened(self) -> OpenStorage:
        """The storage of the running event loop; without one, the storage of any event loop.

        Raises NotRunning before the first use and after close.
        """
        try:
            opened = self._loops.opened.get(asyncio.get_running_loop())
        except RuntimeError:
            opened = self._loops.any_opened()
        if opened is None:
            raise NotRunning(_CLOSED_MESSAGE if self._closed else _NOT_OPEN_MESSAGE)
        return opened

    @property
    def is_open(self) -> bool:
        """True if an event loop of this process has the storage open."""
        return self._loops.any_opened() is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The running event loop for blocking calls: one where the app was entered, or else None.

        A storage object that belongs to one event loop is used there.
        """
        if (loop := self._loops.entered_loop()) is not None:
            return loop
        single = self._single.get(0)
        home = single.home if single is not None and single.process == os.getpid() else None
        return home if home is not None and home.is_running() else None

    def call_slots(self) -> list[CallSlots]:
        """Return the slots for enqueues of each event loop of this process that has the storage open."""
        return [opened.slots for opened in tuple(self._loops.opened.values())]

    @property
    def _loops(self) -> LoopStorages:
        process = os.getpid()
        return self._by_process.get(process) or self._by_process.setdefault(process, LoopStorages())

    async def ensure_open(self) -> OpenStorage:
        """Return the storage of this event loop, opened at first use.

        Raises NotRunning, NoStorage, StorageError.
        """
        loops = self._by_process.get(os.getpid())
        # Not through `running_loop`, because every call of the app comes here.
        try:
            opened = None if loops is None else loops.opened.get(asyncio.get_running_loop())
        except RuntimeError:
            if current_target() is None:
                raise no_loop_error() from None
            await move_to_loop()
            return await self.ensure_open()
        return await self._open() if opened is None else opened

    async def open_for_enqueue(self) -> OpenStorage:
        """Return what an enqueue uses: `ensure_open`, or the target of this thread without an event loop."""
        loop = current_loop()
        if loop is None:
            if (target := current_target()) is None:
                raise no_loop_error()
            return cast("OpenStorage", target)
        opened = self.opened_on(loop)
        return await self._open() if opened is None else opened

    def opened_on(self, loop: asyncio.AbstractEventLoop) -> OpenStorage | None:
        """Return the storage that is open on a loop of this process, or None."""
        loops = self._by_process.get(os.getpid())
        return None if loops is None else loops.opened.get(loop)

    async def _open(self) -> OpenStorage:
        """Open the storage in a task of its own, so that a cancelled caller does not affect the others.

        All callers get the error of a failed task. The next caller tries again.
        """
        if self._closed:
            raise NotRunning(_CLOSED_MESSAGE)
        loop, loops = running_loop(), self._loops
        if (opening := loops.opening.get(loop)) is not None:
            return await opening.wait()
        # An empty context, because the opening belongs to all of its callers and not to the first one alone.
        task = loop.create_task(self._open_on_loop(loops), context=Context())
        loops.opening[loop] = Opening(task)
        task.add_done_callback(lambda _: loops.opening.pop(loop, None))
        return await asyncio.shield(task)

    async def _open_on_loop(self, loops: LoopStorages) -> OpenStorage:
        loop = asyncio.get_running_loop()
        loops.forget_closed_loops()
        opened = loops.opened[loop] = await self._enter_storage()
        # Checked after the entry above: a concurrent `close` finds the entry, or this check finds its mark.
        if self._closed and loops.opened.pop(loop, None) is not None:
            await opened.close()
            raise NotRunning(_CLOSED_MESSAGE)
        await opened.close_at_loop_end(loops.opened)
        return opened

    async def _enter_storage(self) -> OpenStorage:
        single = self._single.get(0)
        if single is None:
            storage = open_storage(self.url, **self._options)
            if storage.capabilities.shared:
                entered = await open_within(storage, self.call_timeout)
                return self._opened(entered)
            single = self._single.setdefault(0, SingleStorage(storage))
        single.check_process()
        if is_thread_safe(single.storage):
            single.is_entered = True
            return self._opened(await single.storage.__aenter__(), is_owner=False)
        return await self._enter_at_home(single)

    async def _enter_at_home(self, single: SingleStorage) -> OpenStorage:
        """Open a storage object on this event loop, or forward to the loop where it is open already."""
        home = single.claim_home()
        if home is asyncio.get_running_loop():
            entered = await open_within(single.storage, self.call_timeout)
            return self._opened(entered)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.ensure_open(), home))
        forwarded = cast("Storage", ForwardedStorage(single.storage, home))
        return self._opened(forwarded, is_owner=False)

    def _opened(self, storage: Storage, *, is_owner: bool = True) -> OpenStorage:
        return OpenStorage(
            storage, is_owner=is_owner, call_timeout=self.call_timeout, max_pending=self.max_pending
        )

    @asynccontextmanager
    async def opened_temporarily(self) -> AsyncIterator[None]:
        """Open the storage for a block, and close it afterwards if this event loop had not opened it before.

        Unlike `close`, this lets the app open the storage again at its next use.
        """
        loop, loops = running_loop(), self._loops
        was_open = loop in loops.opened
        await self.ensure_open()
        # Count this block as entered: blocking calls of its handlers run here, and the end of an
        # `async with app` inside it does not close the app.
        loops.entered.append(loop)
        try:
            yield
        finally:
            loops.remove_entered(loop)
            if not was_open:
                await self._close_on_loop(loops)

    @contextmanager
    def override(self, storage: Storage) -> Iterator[None]:
        """Use `storage` for a block, and restore the previous state afterwards, open or not."""
        before = dict(vars(self))
        vars(self).update(
            vars(StorageHandle(storage.url, {})),
            call_timeout=self.call_timeout,
            max_pending=self.max_pending,
            enqueue_middleware=self.enqueue_middleware,
            _single={0: SingleStorage(storage)},
        )
        try:
            yield
        finally:
            vars(self).update(before)

    async def enter(self) -> None:
        """Open the storage and count the caller as a user of it. Works after `close`, too."""
        loop, loops = running_loop(), self._loops
        # Counted before the storage is open, so that a `leave` on another thread does not close the app.
        with loops.lock:
            loops.entered.append(loop)
            self._closed = False
        try:
            await self.ensure_open()
        except BaseException:
            loops.remove_entered(loop)
            raise

    async def leave(self) -> None:
        """Undo one `enter`.

        The last `leave` of an event loop closes the storage of this loop, and the last of all loops closes
        the storages of all loops.
        """
        loop, loops = running_loop(), self._loops
        with loops.lock:
            loops.remove_entered(loop)
            is_last = self._closed = not loops.entered
        await (self._close_storages() if is_last else self._close_on_loop(loops))

    async def close(self) -> None:
        """Close the storages of all event loops. Every use raises NotRunning until the next `enter`."""
        with self._loops.lock:
            self._closed = True
            self._loops.entered.clear()
        await self._close_storages()

    async def _close_storages(self) -> None:
        await self._loops.close_all()
        single = self._single.get(0)
        if single is not None and single.process == os.getpid() and single.is_entered:
            single.is_entered = False
            await single.storage.__aexit__(None, None, None)

    async def _close_on_loop(self, loops: LoopStorages) -> None:
        """Close the storage of this event loop, unless a block that entered the app on it is running."""
        loop = asyncio.get_running_loop()
        if loop not in loops.entered and (opened := loops.opened.pop(loop, None)) is not None:
            await close_opened(opened)


_CLOSED_MESSAGE = "this app is closed; enter it again with `async with app`"
_NOT_OPEN_MESSAGE = "this app is not open yet; use `async with app`, or await one of its methods first"
