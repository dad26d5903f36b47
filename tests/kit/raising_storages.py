"""Storages that raise, hang, end their process or answer with a wrong type, for tests of the report.

Each is a memory or file storage in which one verb misbehaves from its third call on, so that a history
precedes the failure. Functions at module level can be pickled for client processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from attrs import field, frozen

from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import open_storage

#: The calls that work before a verb misbehaves, for each storage object.
WORKING_CALLS = 2


async def raise_key_error() -> NoReturn:
    raise KeyError("no such shelf")


async def raise_runtime_error() -> NoReturn:
    raise RuntimeError("the shelf fell")


async def raise_eof_error() -> NoReturn:
    raise EOFError


async def raise_timeout() -> NoReturn:
    raise TimeoutError("too late")


async def raise_base_group() -> NoReturn:
    raise BaseExceptionGroup("several", [SystemExit(3), KeyError("inside")])


async def raise_system_exit() -> NoReturn:
    raise SystemExit(3)


async def raise_cancelled() -> NoReturn:
    raise asyncio.CancelledError


async def answer_number() -> Any:
    return 42


async def hang_awaiting() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def hang_blocking() -> NoReturn:
    while True:
        time.sleep(0.05)  # noqa: ASYNC251 - it blocks on purpose


async def exit_process() -> NoReturn:
    os._exit(3)


async def kill_process() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


#: What a storage does instead of an answer, and the words of its finding.
MISDEEDS: dict[str, tuple[Callable[[], Awaitable[Any]], str]] = {
    "KeyError": (raise_key_error, "raised KeyError: 'no such shelf'"),
    "RuntimeError": (raise_runtime_error, "raised RuntimeError: the shelf fell"),
    "EOFError": (raise_eof_error, "raised EOFError"),
    "TimeoutError": (raise_timeout, "raised TimeoutError: too late"),
    "BaseExceptionGroup": (raise_base_group, "SystemExit: 3"),
    "SystemExit": (raise_system_exit, "SystemExit"),
    "CancelledError": (raise_cancelled, "raised CancelledError"),
    "wrong answer": (answer_number, "42"),
    "hangs at an await": (hang_awaiting, "did not return within"),
    "hangs in a block": (hang_blocking, "did not return within"),
    "os._exit": (exit_process, "os._exit(3)"),
}


class RaisingStorage:
    """A storage whose verb misbehaves. Its other attributes are those of the wrapped storage."""

    def __init__(self, storage: Storage, verb: str, misdeed: str) -> None:
        self._storage, self._verb, self._misdeed, self._calls = storage, verb, misdeed, 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        return self._wrap(attribute) if name == self._verb else attribute

    def _wrap(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def misbehave(*args: Any, **named: Any) -> Any:
            self._calls += 1
            if self._calls <= WORKING_CALLS:
                return await method(*args, **named)
            return await MISDEEDS[self._misdeed][0]()

        misbehave.__code__ = misbehave.__code__.replace(co_name=self._verb)
        return misbehave


@frozen
class OpenRaising:
    """Opens a storage that misbehaves in a verb, or in "open" or "close". It can be pickled."""

    verb: str
    misdeed: str
    #: The URL before the name of a location.
    url: str = "memory:"
    #: True: misbehave only if the parent of this process is not the one that made the object.
    only_elsewhere: bool = False
    home: int = field(factory=os.getpid)

    @asynccontextmanager
    async def __call__(self, location: str, clock: Clock) -> AsyncIterator[Storage]:
        harmless = self.only_elsewhere and os.getpid() == self.home
        if self.verb == "open" and not harmless:
            await MISDEEDS[self.misdeed][0]()
        async with open_storage(f"{self.url}{location}", clock) as storage:
            yield storage if harmless else RaisingStorage(storage, self.verb, self.misdeed)
        if self.verb == "close" and not harmless:
            await MISDEEDS[self.misdeed][0]()
