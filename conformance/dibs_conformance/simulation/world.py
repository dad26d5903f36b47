"""Virtual time, and the simulated processes that live in it. Each process has an event loop and clocks of its
own, so that a kill drops one loop, and a freeze delays one.

The world runs one event after the other. Where nothing is left to do at an instant, time jumps to the next
event. The order of events is theirs in time; the seed draws every delay between processes, so it draws the
order. Within a process asyncio promises the order of its callbacks, and the simulation keeps it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from random import Random
from typing import Any, Final

from attrs import define, frozen

#: Nanoseconds of one second.
SECOND: Final = 1_000_000_000
#: The time at which each simulation begins: 1 January 2030 in UTC, in ns since the epoch.
EPOCH: Final = 1_893_456_000 * SECOND
#: The time that one iteration of an event loop takes, in ns: the shortest, and the range above it.
ITERATION: Final = (20_000, 180_000)
#: The resolution of timers in seconds: it hides the rounding between the clocks of a process and the world.
TIMER_RESOLUTION: Final = 1e-6
#: The most awaits in nested `finally` blocks of a coroutine that is killed.
MOST_CLOSES: Final = 20


@frozen
class BrokenPromise:
    """One broken promise: the clause of the contract, and what happened, in one line."""

    clause: str
    what: str
    #: The time of the world in ns.
    at: int

    def __str__(self) -> str:
        return f"[{self.clause}] at {clock_text(self.at)}: {self.what}"


def clock_text(at: int) -> str:
    """Return a time of the world as hours, minutes and seconds since its beginning."""
    seconds = at / SECOND
    return f"{int(seconds // 3600):02}:{int(seconds // 60) % 60:02}:{seconds % 60:06.3f}"


class World:
    """The events that are still to come, the time, and the processes.

    All times are in ns since the beginning of the simulation.
    """

    def __init__(self, seed: int) -> None:
        #: Draws every delay. The product draws from the module `random`, which has a seed of its own.
        self.random = Random(seed)
        self.now = 0
        #: The number of events so far.
        self.events = 0
        #: The first promise that was broken; None while all hold.
        self.violation: BrokenPromise | None = None
        self._numbers = count()
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def call_at(self, at: int, function: Callable[..., None], *args: Any) -> None:
        """Call `function` at a time; at once if it has passed."""
        heapq.heappush(self._events, (max(at, self.now), next(self._numbers), function, args))

    def call_in(self, seconds: float, function: Callable[..., None], *args: Any) -> None:
        self.call_at(self.now + int(seconds * SECOND), function, *args)

    def run(self, until: int) -> None:
        """Run all events up to a time, or up to the first violation."""
        events = self._events
        while events and events[0][0] <= until and self.violation is None:
            self.now, _, function, args = heapq.heappop(events)
            self.events += 1
            function(*args)
        if self.violation is None:
            self.now = until

    def fail(self, clause: str, what: str) -> None:
        """Record a broken promise, and end the run. The first one counts."""
        if self.violation is None:
            self.violation = BrokenPromise(clause, what, self.now)


@define
class Clock:
    """The two clocks of a process: the monotonic one, and the date, which may jump."""

    _world: World
    #: Seconds of this clock in one second of the world.
    rate: float = 1.0
    #: The reading of the monotonic clock at the beginning, in seconds: each machine booted at another time.
    _booted: float = 0.0
    #: Ns by which the date is ahead.
    skew: int = 0

    def monotonic(self) -> float:
        return self._booted + self._world.now * self.rate / SECOND

    def date_ns(self) -> int:
        return EPOCH + int(self._world.now * self.rate) + self.skew

    def world_time(self, monotonic: float) -> int:
        """Return the time of the world at which the monotonic clock shows `monotonic`."""
        return math.ceil((monotonic - self._booted) * SECOND / self.rate)


def _close(coroutine: Any) -> None:
    """Close a coroutine. One that awaits in a `finally` block is closed there, too."""
    for _ in range(MOST_CLOSES):
        with contextlib.suppress(BaseException):
            coroutine.close()
            return


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in each run of a seed."""

    _numbers = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number = next(SimulatedTask._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number


class ProcessLoop(asyncio.BaseEventLoop):
    """An event loop that the world steps. It has no sockets, no threads and no signals."""

    _ready: Any
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process
        #: `is_running` reads it.
        self._thread_id = threading.get_ident()

    def time(self) -> float:
        return self.process.clock.monotonic()

    def call_soon(  # type: ignore[override] # with the types of `args` it would not fit here either
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        process = self.process
        if not process.dead:
            self._ready.append(handle)
            if process.is_idle:
                process.wake_at(process.world.now)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined] # noqa: SLF001 - as BaseEventLoop does
        if not self.process.dead and not self._ready and self.process.is_idle:
            self.process.wake_at(self.process.clock.world_time(when))
        return timer

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> SimulatedTask:
        return SimulatedTask(coro, loop=self, name=name, context=context)

    def run_once(self) -> None:
        """Run the callbacks that are ready, and those of the timers that are due."""
        limit, ready, timers = self.time() + TIMER_RESOLUTION, self._ready, self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() < limit):
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001
            if timer.cancelled():
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        before = asyncio._get_running_loop()  # noqa: SLF001 - in asyncio.__all__
        asyncio._set_running_loop(self)  # noqa: SLF001 - in asyncio.__all__
        try:
            for _ in range(len(ready)):
                if not ready:
                    break  # the process has ended
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - as BaseEventLoop does
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001
        if self._timer_cancelled_count > 100 and self._timer_cancelled_count > len(timers) / 2:
            self._remove_cancelled_timers()

    def _remove_cancelled_timers(self) -> None:
        self._scheduled = [timer for timer in self._scheduled if not timer.cancelled()]
        heapq.heapify(self._scheduled)
        self._timer_cancelled_count = 0

    @property
    def next_timer(self) -> float | None:
        """The monotonic time of the next timer, or None."""
        return self._scheduled[0].when() if self._scheduled else None


class Process:
    """One simulated process: an event loop that can be killed, frozen and thawed."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        draw = world.random
        # Quartz is off by up to 100 ppm.
        self.clock = Clock(world, 1 + draw.uniform(-1e-4, 1e-4), float(draw.randrange(10**6)))
        self.loop = ProcessLoop(self)
        self.loop.set_exception_handler(self._on_unhandled)
        #: True after a kill.
        self.dead = False
        #: The application of the process.
        self.app: Any = None
        #: True after it has opened the storage. Until then its program may end with the error of the storage.
        self.has_opened = False
        #: Holds what must live as long as the process.
        self.stack = contextlib.ExitStack()
        #: Kills the process as a fault of its own code does. Its machine sets it.
        self.crash: Callable[[], None] = self.kill
        #: The time of the world at which the process goes on.
        self.frozen_until = 0
        #: The time of the next step; None if there is none.
        self._wakes_at: int | None = None
        #: True unless an iteration is running now.
        self.is_idle = True

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def start(self, main: Coroutine[Any, Any, Any], on_end: Callable[[SimulatedTask], None]) -> None:
        """Run a coroutine as the main task. `on_end` is called with the task, on the loop."""
        self.loop.create_task(main, name=f"main of {self.name}").add_done_callback(on_end)

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the loop: a message has arrived. A dead process receives nothing."""
        if not self.dead:
            self.loop.call_soon(function, *args, context=Context())

    def wake_at(self, at: int) -> None:
        """Step the process at a time, unless it is stepped before."""
        if self._wakes_at is None or at < self._wakes_at:
            self._wakes_at = at
            self.world.call_at(at, self._step, at)

    def _step(self, at: int) -> None:
        if at != self._wakes_at or self.dead:
            return
        self._wakes_at = None
        if self.frozen_until > self.world.now:
            self.wake_at(self.frozen_until)
            return
        self.is_idle = False
        self.loop.run_once()
        self.is_idle = True
        if self.loop._ready:  # noqa: SLF001 - the loop is a part of the process
            shortest, longest = ITERATION
            self.wake_at(self.world.now + shortest + int(self.world.random.random() * longest))
        elif (when := self.loop.next_timer) is not None:
            self.wake_at(max(self.world.now, self.clock.world_time(when)))

    def freeze(self, seconds: float) -> None:
        """Stop the process for a time, as a stopped virtual machine or a long garbage collection does."""
        self.frozen_until = max(self.frozen_until, self.world.now + int(seconds * SECOND))

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until > self.world.now

    def kill(self) -> None:
        """End the process at once, as SIGKILL does. Nothing that its code does from now on has an effect.

        Its coroutines are closed, because the interpreter would close them at an unknown time.
        """
        if self.dead:
            return
        self.dead = True
        before = asyncio._get_running_loop()  # noqa: SLF001 - in asyncio.__all__
        asyncio._set_running_loop(self.loop)  # noqa: SLF001
        try:
            for task in self.tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - a kill says nothing
                _close(task.get_coro())
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001
        self.loop._ready.clear()  # noqa: SLF001
        self.loop._scheduled.clear()  # noqa: SLF001

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended, the oldest first."""
        return sorted(asyncio.all_tasks(self.loop), key=hash)

    def _on_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self.world.fail("no task fails unseen", f"{self.name}: {context['message']}: {error!r}")
