"""The parts of the verb `wait`: how a wait notices a change, and how it compares queues with its tokens.

SQLite sends no notification of a commit. It has `PRAGMA data_version`, a number that changes when another
connection commits and costs a few bytes to read. One task polls that number for all waits of the storage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from dibs.storage.protocol import Watch
from dibs_sqlite import limits
from dibs_sqlite.reading import end_of_log
from dibs_sqlite.transaction import QueueRows, Transaction, searchable


class Observation(Struct, frozen=True):
    """The state of the queues of one wait, as one read finds it."""

    #: True if a queue has changed since its token.
    changed: bool
    #: The current token of each queue.
    tokens: Mapping[str, str]
    #: Seconds until the next scheduled job is due; None if no job is scheduled.
    due_in: float | None


def observe(
    tx: Transaction, watch: Watch, names: Sequence[str], ids: Sequence[str], since: Mapping[str, str]
) -> Observation:
    """Read the queues of a wait, and compare them with the tokens in `since`.

    Without a token, a queue has changed for a wait for work if a job is due now. For a wait for events or ids
    it has not changed.
    """
    queues = [tx.queue(name) for name in names]
    tokens = {queue.name: _current_token(tx, queue, watch) for queue in queues}
    changed = [_has_changed(tx, queue, watch, ids, since.get(queue.name)) for queue in queues]
    due = [limits.next_due(tx, queue) for queue in queues] if watch == "work" else []
    next_due = min((at for at in due if at is not None), default=None)
    return Observation(any(changed), tokens, None if next_due is None else (next_due - tx.now) / 1000)


def _current_token(tx: Transaction, queue: QueueRows, watch: Watch) -> str:
    if watch == "work":
        return f"{queue.work}.{tx.now}"
    return end_of_log(queue) if watch == "events" else str(tx.number)


def _has_changed(
    tx: Transaction, queue: QueueRows, watch: Watch, ids: Sequence[str], token: str | None
) -> bool:
    if watch == "events":
        return token is not None and token != end_of_log(queue)
    if watch == "work":
        work, _, seen_at = (token or f"{queue.work}.0").partition(".")
        return work != str(queue.work) or limits.has_opened(tx, queue, _parse_token(seen_at))
    if watch == "progress" and _has_reported(queue, ids, token):
        return True
    return token is not None and any(_ending_number(queue, id) > _parse_token(token) for id in ids)


def _has_reported(queue: QueueRows, ids: Sequence[str], token: str | None) -> bool:
    """Return whether one of the ids, or any id if `ids` is empty, has reported progress after the token."""
    if token is None:
        return False
    if not ids:
        return queue.reported > _parse_token(token)
    return any((queue.scalar("reported", id=searchable(id)) or 0) > _parse_token(token) for id in ids)


def _ending_number(queue: QueueRows, id: str) -> int:
    """Return the number of the step in which a run of the id last ended.

    For an unknown id, return the number of the last step that removed an id, which may have been this one.
    """
    found = queue.scalar("ending", id=searchable(id))
    return queue.removal if found is None else int(found)


def _parse_token(token: str) -> int:
    # Read a token of another storage as 0. The wait then reports a change, and its caller checks the queue
    # once too often.
    return int(token) if token.isdecimal() and len(token) < 19 else 0


class ChangeNotifier:
    """Wakes the waits of a storage. While a wait is pending, it polls for commits of other connections.

    A wait enters the notifier with `with`, takes `next_change`, reads the file, and then sleeps until
    `next_change` is set. So it misses no change between its read and its sleep.
    """

    def __init__(self, version: Callable[[], Awaitable[int]], poll: float) -> None:
        self._version, self._poll = version, poll
        self._next_change = asyncio.Event()
        self._waits = 0
        self._polling: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Wake every wait. Called after each commit of this storage, and after one of another connection."""
        changed, self._next_change = self._next_change, asyncio.Event()
        changed.set()

    @property
    def next_change(self) -> asyncio.Event:
        """The event that the next call of `notify` sets."""
        return self._next_change

    def __enter__(self) -> None:
        self._waits += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll_version())

    def __exit__(self, *_: object) -> None:
        self._waits -= 1
        if not self._waits and self._polling is not None:
            self._polling.cancel()
            self._polling = None

    async def _poll_version(self) -> None:
        seen = await self._version()
        # Another connection may have committed between the first read of a wait and the read of `seen`.
        self.notify()
        while True:
            await asyncio.sleep(self._poll)
            version = await self._version()
            if version != seen:
                seen = version
                self.notify()


class WaitDeadline:
    """A deadline `seconds` from now on the monotonic clock; None for no deadline."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def seconds_left(self, *others: float | None) -> float | None:
        """Return the seconds until the deadline or the smallest of `others`, if that is less.

        Return None if there is no deadline and all of `others` are None.
        """
        left = None if self._at is None else max(0.0, self._at - time.monotonic())
        return min((seconds for seconds in (left, *others) if seconds is not None), default=None)

    @property
    def has_passed(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at


async def sleep_until(event: asyncio.Event, timeout: float | None) -> None:
    """Wait until the event is set, for at most `timeout` seconds (None: no limit). Raise no TimeoutError."""
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return
