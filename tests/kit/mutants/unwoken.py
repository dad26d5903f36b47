"""Storages whose waits miss some changes, or end without any. Each wraps a memory storage.

The test of `push_wakeups`, which every run makes, finds those in MUTED and NeverWoken. L0 finds AlwaysWoken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from attrs import frozen

from dibs.model.requests import RetryLater, SettingsPatch
from dibs.model.results import WaitResult
from dibs.storage.memory import MemoryStorage
from dibs.storage.protocol import Storage


class Mute:
    """A memory storage that wakes no waiter after some calls of one verb."""

    def __init__(self, storage: Any, mute: Muted) -> None:
        self._storage, self._mute = storage, mute

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._storage, name)
        return self._muted(verb) if name == self._mute.verb else verb

    def _muted(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **words: Any) -> Any:
            if not self._mute.applies(*arguments, **words):
                return await verb(*arguments, **words)
            # A verb of a memory storage does not await, so no other call runs meanwhile.
            wakeups = self._storage._shared.wakeups
            wakeups.notify = lambda _: None
            try:
                return await verb(*arguments, **words)
            finally:
                del wakeups.notify

        return call


@frozen
class Muted:
    """The calls after which a storage wakes no waiter, and a part of the text that the kit reports."""

    verb: str
    found: str
    applies: Callable[..., bool] = lambda *_, **__: True

    def __call__(self, storage: MemoryStorage) -> Storage:
        return Mute(storage, self)


def is_resume(_: str, patch: SettingsPatch) -> bool:
    return patch.paused is False


def is_limit(_: str, patch: SettingsPatch) -> bool:
    return isinstance(patch.max_active, int)


def has_output(_: str, *__: Any, output: Any = ()) -> bool:
    return bool(output)


def is_retry(_: str, settlements: Any) -> bool:
    return isinstance(settlements[0].action, RetryLater)


def is_end(_: str, settlements: Any) -> bool:
    return not isinstance(settlements[0].action, RetryLater)


class AlwaysWoken(Mute):
    """A storage whose waits return at once."""

    async def wait(self, queues: Any, **words: Any) -> WaitResult:
        timeout = words.get("timeout")
        if timeout is None or (type(timeout) is float and timeout > 0):
            words["timeout"] = 0
        found = await self._storage.wait(queues, **words)
        await asyncio.sleep(0)
        return WaitResult(woken=True, since=found.since)


class NeverWoken(Mute):
    """A storage whose waits always last until their timeout."""

    async def wait(self, queues: Any, **words: Any) -> WaitResult:
        await asyncio.sleep(words.get("timeout") or 0)
        found = await self._storage.wait(queues, **{**words, "timeout": 0})
        return WaitResult(woken=False, since=found.since)


class WakesLate(Mute):
    """A storage where a report of a late holder, or of a memo alone, wakes every waiter."""

    async def report(self, queue: str, id: str, fence: int, *reported: Any, **when: Any) -> Any:
        answer = await self._storage.report(queue, id, fence, *reported, **when)
        if answer == "lost" or reported[0] is None:
            self._storage._shared.wakeups.wake_all()
        return answer


class WakesAll(Mute):
    """A storage where a report wakes every waiter, whatever it waits for."""

    async def report(self, *arguments: Any, **when: Any) -> Any:
        answer = await self._storage.report(*arguments, **when)
        self._storage._shared.wakeups.wake_all()
        return answer


#: The storages that wake no waiter after one kind of change.
MUTED: Final = (
    Muted("settle", "a wait for work after retry", is_retry),
    Muted("settle", "a wait for ids after complete", is_end),
    Muted("reap", "a wait for work after reap"),
    Muted("drop", "a wait for work after drop"),
    Muted("configure", "a wait for work after resume", is_resume),
    Muted("configure", "a wait for work after configure max_active", is_limit),
    Muted("retry_failed", "a wait for work after retry_failed"),
    Muted("amend", "a wait for work after amend run_at"),
    Muted("cancel", "a wait for ids after cancel of a waiting job"),
    Muted("finish", "a wait for ids after finish"),
    Muted("report", "a wait for progress after report"),
    Muted("report", "a wait for progress after report of output", has_output),
    Muted("settle", "a wait for progress after the end of a run", is_end),
)
