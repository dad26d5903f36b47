"""The limits of calls: a deadline for each, and a bound on the enqueues of one event loop that are
pending at a time.

After its deadline a call raises StorageBusy or OutcomeUnknown: `CallTimeout` makes the errors, and
`BoundedStorage` gives each verb of a storage a deadline; the coalesced verbs have their own
(coalescing.py).

An enqueue takes a slot before it encodes its arguments, and gives the slot back when it ends. Calls
without a free slot wait in lines, one line per queue. The lines take turns, so many calls of one queue
do not delay those of another queue.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast

from attrs import define, field, frozen

from dibs.client.options.arguments import Seconds, duration_seconds
from dibs.errors import DibsError, OutcomeUnknown, Refused, StorageBusy
from dibs.storage.abilities import LockWaits, ability
from dibs.storage.protocol import READS, VERBS, Storage
from dibs.storage.unsent import mark_unsent, unsent_wait

#: Seconds of the deadline of a call, if the app sets no other.
DEFAULT_CALL_TIMEOUT: Final = 30.0
#: Seconds that a storage waits for a lock in the first attempt, for a call or a batch of any size.
LOCK_WAIT: Final = 0.1
#: Most attempts for locked ids at the same time. Each takes a connection of the storage.
MAX_ATTEMPTS: Final = 3
#: The part of a deadline for which the server of a storage waits for a lock. The rest is for its answer.
LOCK_SHARE: Final = 0.9


def check_call_timeout(call_timeout: Seconds | None) -> float | None:
    """Return the deadline in seconds, None for no limit. Raises Refused if it is no duration above 0."""
    if call_timeout is None:
        return None
    seconds = duration_seconds("call_timeout", call_timeout)
    if seconds <= 0:
        raise Refused(
            f"call_timeout is {call_timeout!r}; it must be above 0 seconds, or None for no limit",
            field="call_timeout",
        )
    return seconds


def with_lock_waits(storage: Storage, seconds: float) -> Storage | None:
    """Return the storage with limited waits for locks; None if it has no such limit."""
    limited = ability(storage, LockWaits)
    return None if limited is None else limited.limit_lock_waits(seconds)


@frozen
class CallTimeout:
    """The deadline of the calls of one verb: its seconds, None for no limit, and the names for messages."""

    seconds: float | None = None
    #: The verb and its queue, as in "enqueue to queue 'mail'".
    label: str = "the call"
    url: str = "the storage"

    def unsent_error(self, waits_for: str) -> StorageBusy:
        """Return the error of a call that was not sent, or that the storage surely did not apply."""
        return StorageBusy(
            f"{self.url}: {self.label} had no answer within {self.seconds:g} s, and nothing was written; it "
            f"waited for {waits_for}. Repeat it later",
            waits_for=waits_for,
        )

    def unanswered_error(self) -> OutcomeUnknown:
        """Return the error of a call that was sent, and that may have taken effect."""
        return OutcomeUnknown(
            f"{self.url}: {self.label} was sent and had no answer within {self.seconds:g} s, so it may or "
            "may not take effect; read the state of the job, or repeat it with the same id or request_key"
        )

    def cancelled_error(self, error: BaseException | None, *, read_only: bool) -> DibsError:
        """Return the error of a call that was cancelled at its deadline with `error`."""
        waits_for = unsent_wait(error)
        if waits_for is None and not read_only:
            return self.unanswered_error()
        return self.unsent_error(waits_for or "the reply of the storage")


class BoundedStorage:
    """A storage whose verbs, except `wait`, end at a deadline.

    It forwards all other names to the storage, so it serves wherever a Storage is expected.
    """

    def __init__(self, storage: Storage, seconds: float) -> None:
        self._storage = storage
        self._seconds = seconds
        #: Limits the second attempts at the same time, because each holds a connection while it waits.
        self._attempts = asyncio.Semaphore(MAX_ATTEMPTS)

    @classmethod
    def of(cls, storage: Storage, seconds: float | None) -> Storage:
        """Return the storage with a deadline of `seconds` for each verb; unchanged if `seconds` is None."""
        return storage if seconds is None else cast("Storage", cls(storage, seconds))

    def __getattr__(self, name: str) -> Any:
        if name in VERBS:
            return partial(self._call, name)
        return getattr(self._storage, name)

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                limited = with_lock_waits(self._storage, LOCK_WAIT)
                try:
                    return await getattr(limited or self._storage, name)(*args, **kwargs)
                except StorageBusy as error:
                    # A read waits for no lock of another transaction. Its server has ended the statement.
                    if limited is None or name in READS:
                        raise
                    return await self._wait_for_lock(limit, error, name, *args, **kwargs)
        except TimeoutError as error:
            if not limit.expired():
                raise
            timeout = CallTimeout(self._seconds, name, self._storage.url)
            raise timeout.cancelled_error(error.__cause__, read_only=name in READS) from None

    async def _wait_for_lock(
        self, limit: asyncio.Timeout, busy: StorageBusy, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Repeat a call that met a lock, and wait for the lock until shortly before the deadline."""
        try:
            await self._attempts.acquire()
        except asyncio.CancelledError as error:
            mark_unsent(error, busy.waits_for)
            raise
        try:
            left = (limit.when() or 0.0) - asyncio.get_running_loop().time()
            patient = with_lock_waits(self._storage, left * LOCK_SHARE)
            return await getattr(patient, name)(*args, **kwargs)
        finally:
            self._attempts.release()


async def open_within(storage: Storage, seconds: float | None) -> Storage:
    """Open a storage. Raise StorageBusy if it is not open after `seconds`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await storage.__aenter__()
    except TimeoutError:
        if not limit.expired():
            raise
        timeout = CallTimeout(seconds, "opening the storage", storage.url)
        raise timeout.unsent_error("the answers of the server to a new connection") from None


#: Default of `Dibs(max_pending=...)`.
DEFAULT_MAX_PENDING: Final = 10_000
#: Most calls that start in one iteration of the event loop. A start encodes and checks arguments, which takes
#: 5 to 50 microseconds of CPU, so 500 starts take at most 25 ms.
MAX_STARTS: Final = 500
#: Number of cancelled calls at which they are removed from the lines, all at once.
MAX_ABANDONED: Final = 1000
#: Most waiting calls that get StorageBusy at their deadlines in one iteration of the event loop.
MAX_EXPIRED: Final = 1000

#: The future of a call that waits for a slot. It is done when the call gets the slot, and its result is the
#: deadline of the call, on the clock of the event loop.
Turn = asyncio.Future[float]

_holds_slot: ContextVar[bool] = ContextVar("holds_slot", default=False)


def check_max_pending(max_pending: int) -> int:
    """Return `max_pending`. Raises Refused unless it is a whole number from 1."""
    if isinstance(max_pending, bool) or not isinstance(max_pending, int) or max_pending < 1:
        raise Refused(
            f"max_pending is {max_pending!r}; pass a whole number from 1, the number of enqueues that may be "
            "pending at a time",
            field="max_pending",
        )
    return max_pending


@contextmanager
def nested_calls() -> Iterator[None]:
    """Start the calls inside a `with` block at once, also without a free slot.

    The block is the middleware of an enqueue, which holds a slot. If the enqueues of a middleware waited, all
    slots might belong to callers of this middleware, and none would become free.
    """
    token = _holds_slot.set(True)
    try:
        yield
    finally:
        _holds_slot.reset(token)


@define(eq=False)
class WaitingLine:
    """The calls of one queue that wait for slots, first come first served, with their deadlines."""

    turns: deque[Turn] = field(factory=deque, init=False)
    deadlines: deque[float] = field(factory=deque, init=False)

    def clear_abandoned(self) -> None:
        """Remove the calls that were cancelled."""
        kept = [pair for pair in zip(self.turns, self.deadlines, strict=True) if not pair[0].done()]
        self.turns, self.deadlines = deque(pair[0] for pair in kept), deque(pair[1] for pair in kept)


@define(eq=False)
class CallSlots:
    """The slots of one event loop.

    At most `max_pending` calls hold a slot, and at most MAX_STARTS start in one iteration of the loop.

    Call `acquire`, await the turn if it returns one, and call `release` with it in every case:

        turn = slots.acquire(queue)
        try:
            deadline = None if turn is None else await turn
            ...
        finally:
            slots.release(turn)
    """

    max_pending: int = DEFAULT_MAX_PENDING
    #: Seconds from the start of a call to its deadline, or None, and the URL of the storage for messages.
    _seconds: float | None = None
    _url: str = "the storage"
    #: Number of calls that wait for a slot.
    waiting: int = field(default=0, init=False)
    #: Number of calls so far that had to wait because max_pending calls were before them.
    throttled: int = field(default=0, init=False)
    #: Number of calls that may start before the next `_grant`. It is 0 while a call waits, so that no later
    #: call overtakes it.
    _starts_left: int = field(default=0, init=False)
    #: Number of slots given so far, with those of `_starts_left`, and number of slots given back.
    _given: int = field(default=0, init=False)
    _ended: int = field(default=0, init=False)
    #: The lines by queue, in the order of their next turns.
    _lines: OrderedDict[str, WaitingLine] = field(factory=OrderedDict, init=False)
    #: Number of calls that were cancelled in a line and have not been removed yet.
    _abandoned: int = field(default=0, init=False)
    _is_granting: bool = field(default=False, init=False)
    #: The queues of the calls that the last `_grant` started.
    _starting: set[str] = field(factory=set, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _no_line: asyncio.Event = field(factory=asyncio.Event, init=False)

    @property
    def pending(self) -> int:
        """Number of calls that hold a slot."""
        return self._given - self._starts_left - self._ended

    def acquire(self, queue: str) -> Turn | None:
        """Take a slot and return None, or join the line of the queue and return the turn to wait for.

        The turn raises StorageBusy at the deadline of the call.
        """
        if left := self._starts_left:
            self._starts_left = left - 1
            return None
        return self._join_line(queue)

    def release(self, turn: Turn | None) -> None:
        """Give back the slot, or leave the line if the turn has not come."""
        if turn is None or (turn.done() and not turn.cancelled() and turn.exception() is None):
            self._ended += 1
            if self._lines:
                self._schedule_grant()
        elif turn.cancelled():
            self._leave_line()

    def is_starting(self, queue: str) -> bool:
        """Return whether calls from the line of a queue start in the next iteration of the loop."""
        return self._is_granting and (queue in self._starting or queue in self._lines)

    async def drain(self) -> None:
        """Wait until no call is in a line. Called before the storage closes."""
        while self.waiting:
            self._no_line.clear()
            await self._no_line.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- lines ---------------------------------------------------------------------------------------

    def _join_line(self, queue: str) -> Turn | None:
        if _holds_slot.get():
            self._given += 1
            return None
        loop = asyncio.get_running_loop()
        pending = self._given - self._ended
        if pending + self.waiting >= self.max_pending:
            self.throttled += 1
        deadline = math.inf
        if self._seconds is not None:
            deadline = loop.time() + self._seconds
            if self._timer is None:
                self._timer = loop.call_at(deadline, self._on_timer)
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = WaitingLine()
        turn: Turn = loop.create_future()
        line.turns.append(turn)
        line.deadlines.append(deadline)
        self.waiting += 1
        if not self._is_granting and pending < self.max_pending:
            self._schedule_grant()
        return turn

    def _leave_line(self) -> None:
        """Count a cancelled call as abandoned. It stays in its line until `clear_abandoned` or its turn.

        A removal from the middle of a long line is slow, so many calls are removed at once.
        """
        self.waiting -= 1
        self._abandoned += 1
        if self._abandoned > max(MAX_ABANDONED, self.waiting):
            for line in self._lines.values():
                line.clear_abandoned()
            self._abandoned = 0
        if not self.waiting:
            self._lines.clear()
            self._abandoned = 0
            self._no_line.set()

    def _schedule_grant(self) -> None:
        if not self._is_granting:
            self._is_granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        """Start the next calls of the lines, at most MAX_STARTS, and the others in later iterations."""
        self._is_granting = False
        self._starting.clear()
        granted, most = 0, min(MAX_STARTS, self.max_pending - self.pending)
        while granted < most and self._lines:
            granted += self._grant_next()
        self._given += granted
        self.waiting -= granted
        if not self.waiting:
            self._no_line.set()
        if granted:
            # Also if no call waits: a new call must not start before the calls that got their slots just now.
            self._schedule_grant()
        elif not self._lines:
            self._starts_left = max(0, most)
            self._given += self._starts_left

    def _grant_next(self) -> int:
        """Start the first call of the line whose turn it is. Return 1, or 0 if it was cancelled."""
        queue, line = next(iter(self._lines.items()))
        turn, deadline = line.turns.popleft(), line.deadlines.popleft()
        if not line.turns:
            del self._lines[queue]
        elif len(self._lines) > 1:
            self._lines.move_to_end(queue)
        if turn.done():
            self._abandoned -= 1
            return 0
        self._starting.add(queue)
        turn.set_result(deadline)
        return 1

    def _on_timer(self) -> None:
        """Raise StorageBusy in the calls whose deadlines passed in a line, and set the timer again."""
        loop = asyncio.get_running_loop()
        now, left, nearest = loop.time(), MAX_EXPIRED, math.inf
        for queue, line in tuple(self._lines.items()):
            while left and line.turns and line.deadlines[0] <= now:
                line.deadlines.popleft()
                left -= self._expire(queue, line.turns.popleft())
            if line.turns:
                nearest = min(nearest, line.deadlines[0])
            else:
                del self._lines[queue]
        if not self.waiting:
            self._no_line.set()
        self._timer = None if nearest == math.inf else loop.call_at(nearest, self._on_timer)

    def _expire(self, queue: str, turn: Turn) -> int:
        """End a call at its deadline. Return 1, or 0 if it was cancelled before."""
        if turn.done():
            self._abandoned -= 1
            return 0
        timeout = CallTimeout(self._seconds, f"enqueue to queue {queue!r}", self._url)
        turn.set_exception(
            timeout.unsent_error(
                f"one of max_pending={self.max_pending} slots of this event loop: {self.pending} calls are "
                f"pending and {self.waiting} wait for a slot"
            )
        )
        self.waiting -= 1
        return 1
