"""The executor of a worker process. It starts runs, interrupts them, and checks their timeouts.

`HandlerThreads` run `def` handlers. A watchdog of the event loop names handlers that block the loop,
as time.sleep() does: its thread asks the loop for an answer a few times a second, so a run costs
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Final, Generic, Protocol, TypeVar

from dibs.client.calls.handler import Handler
from dibs.client.calls.run_output import RunOutput
from dibs.model.run_outcome import HandedOff, Raised, Returned, StopReason, Verdict
from dibs.worker.execution.exception_info import verdict_on_error
from dibs.worker.execution.forks import guard_loop
from dibs.worker.execution.invocation import (
    Invocation,
    call_async_handler,
    call_sync_handler,
    interrupted_verdict,
    timeout_verdict,
)
from dibs.worker.execution.outcome import call_hook_function

T = TypeVar("T")


class HandlerThreads(Generic[T]):
    """A pool of threads without a fixed size. `on_result` is called with each result, on the event loop.

    It is not a ThreadPoolExecutor of concurrent.futures, for three reasons. Its pool has a fixed size, so
    handlers that overran would block the others. Python joins its threads at exit, so such a handler would
    keep the process alive. It wakes the event loop once per result instead of once per batch of results.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_result: Callable[[T], None]) -> None:
        self._loop = loop
        self._on_result = on_result
        self._work: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._results: deque[T] = deque()
        self._collect_scheduled = False
        self._numbers = count(1)
        self._started = 0

    def run(self, work: Callable[[], T]) -> None:
        """Run `work` on an idle thread, or on a new thread if all are busy. `work` must not raise.

        Raises RuntimeError, without running `work`, if no thread can be started.
        """
        if not self._idle.acquire(blocking=False):
            name = f"dibs-handler-{next(self._numbers)}"
            threading.Thread(target=self._run_work, name=name, daemon=True).start()
            self._started += 1
        self._work.put(work)

    def close(self) -> None:
        """End idle threads now, and busy threads after their work."""
        for _ in range(self._started):
            self._work.put(None)

    def _run_work(self) -> None:
        while (work := self._work.get()) is not None:
            self._results.append(work())
            # The thread counts as idle before `on_result` is called, because `on_result` may call `run` at
            # once.
            self._idle.release()
            # `_collect_results` resets the flag before it takes results, so a result that is added after the
            # last one was taken schedules the next call.
            if not self._collect_scheduled:
                self._collect_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._collect_results)
                except RuntimeError:  # the loop is closed, and the result of a late handler is not needed
                    return

    def _collect_results(self) -> None:
        self._collect_scheduled = False
        while self._results:
            self._on_result(self._results.popleft())


logger = logging.getLogger("dibs.worker")

#: Seconds between two questions to the event loop.
ASK_EVERY: Final = 0.2
#: Seconds of one run without an answer after which it blocks the loop, in two equal parts. With the time
#: until the question, each blockage of more than a second is found, unless other runs have just blocked the
#: loop: then it takes up to PATIENCE / 2 more.
PATIENCE: Final = 0.8

#: The functions of dibs that call code of the application on the loop, and the name of that code.
_CALLERS: Final[dict[CodeType, str]] = {
    call_async_handler.__code__: "the handler",
    call_hook_function.__code__: "the hook after the run",
}


class LoopWatchdog:
    """A thread that warns once of each handler and hook that blocks the event loop of this thread.

    A handler that holds the interpreter (the GIL) blocks this thread, too; the supervisor finds it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, is_busy: Callable[[], bool]) -> None:
        self._loop = loop
        self._is_busy = is_busy
        self._loop_thread = threading.get_ident()
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._warned: set[tuple[str, str]] = set()
        threading.Thread(target=self._watch, name="dibs-watchdog", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(ASK_EVERY):
            if self._is_busy() and not self._ask_loop():
                return

    def _ask_loop(self) -> bool:
        """Ask the loop for an answer, and warn of the code that blocks it. Return False if it is closed."""
        self._answered.clear()
        try:
            self._loop.call_soon_threadsafe(self._answered.set)
        except RuntimeError:
            return False
        # Warn only if the same run blocks throughout: short steps of many runs also keep the loop busy.
        suspect, periods = None, 0
        while not self._answered.wait(PATIENCE / 2) and not self._closed.is_set():
            found = self._find_blocking_run()
            # The first run that is found counts from the time of the question.
            periods = periods + 1 if found == suspect or suspect is None else 0
            suspect = found
            if periods == 2 and found is not None:
                self._warn(*found)
        return True

    def _find_blocking_run(self) -> tuple[str, Invocation] | None:
        """Return the name of the code of the application on the loop, and its run."""
        for frame in self._frames():
            if what := _CALLERS.get(frame.f_code):
                return what, frame.f_locals["invocation"]
        return None

    def _frames(self) -> Iterator[FrameType]:
        """Yield the frames of the loop's thread, the innermost first."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the only way to another thread
        while frame is not None:
            yield frame
            frame = frame.f_back

    def _warn(self, what: str, invocation: Invocation) -> None:
        if (what, invocation.handler.queue) in self._warned:
            return
        self._warned.add((what, invocation.handler.queue))
        logger.warning(
            "%s: %s has blocked the event loop for %g s (%s), so no other job of this process could go on. "
            "Await instead, for example asyncio.sleep() for time.sleep(), or write it with `def`: it then "
            "runs on a thread",
            invocation.handler.queue, what, PATIENCE, self._location(invocation), extra=invocation.log_fields,
        )  # fmt: skip

    def _location(self, invocation: Invocation) -> str:
        """Return the line that blocks, of the file of the handler if that file is on the stack."""
        code = getattr(invocation.handler.function, "__code__", None)
        frames = list(self._frames())
        own = [frame for frame in frames if code and frame.f_code.co_filename == code.co_filename]
        frame = (own or frames)[0]
        return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


#: Seconds an `async def` handler may continue after its cancellation before it counts as overrun.
CANCEL_SECONDS: Final = 10.0


class ProcessExecutor(Protocol):
    """The executor of handlers with executor="process": it gives each run a child process."""

    async def run(self, invocation: Invocation, entered: Callable[[], None]) -> Verdict:
        """Run the job in a child process and return its verdict. Never raise.

        Call `entered` once, when the child process has entered the handler. Do not start the handler if
        `invocation.stop_reason` is set.
        """

    def interrupt(self, invocation: Invocation, stop: StopReason) -> None:
        """Ask a run to stop, for the reason `stop`."""


class Executor:
    """The executor of `async def` handlers on the event loop, `def` handlers on threads, others in processes.

    Each run gets a task of its own. A task that awaits one handler after the other would save no time (waking
    it costs a future, as much as the task), and it would pass the context variables of one job, and a
    cancellation that comes late, to the next job.

    `ended` is called once per run, with its verdict. `timed_out` is called with a run that exceeded its
    timeout, and the seconds it has to stop. `overran` is called with a run that did not stop.
    """

    def __init__(
        self,
        started: MutableSequence[float],
        process_executor: ProcessExecutor,
        *,
        ended: Callable[[Invocation, Verdict], None],
        timed_out: Callable[[Invocation, float], None],
        overran: Callable[[Invocation], None],
        killable: bool,
        start_handler: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        #: For each index of a run: when its handler was entered, by time.monotonic(), 0 if it was not.
        #: The supervisor shares this array and also checks the deadlines, so a start costs no message.
        self._started = started
        self._process_executor = process_executor
        self._ended, self._timed_out, self._overran = ended, timed_out, overran
        #: True if the supervisor kills this process when a handler does not stop. Until then the run stays
        #: unsettled, so that the job does not run twice at a time. If False, the run is settled as timed out
        #: and its capacity is free again, although the handler still runs.
        self._killable = killable
        #: Starts a `def` handler on the thread of a blocking test; None: each gets a thread of its own.
        self._start_handler = start_handler
        self._loop = asyncio.get_running_loop()
        guard_loop(self._loop)
        self._threads: HandlerThreads[tuple[Invocation, Verdict]] = HandlerThreads(
            self._loop, lambda result: self._finish_run(*result)
        )
        #: The context variables at the start of the worker, with those that the lifespan has set. Each run
        #: gets a copy, so it never sees the context variables of another run.
        self.context = copy_context()
        self._active: set[Invocation] = set()
        self._watchdog: LoopWatchdog | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def start(self, invocation: Invocation) -> None:
        """Start a run. The caller has set `invocation.current`."""
        self._active.add(invocation)
        handler = invocation.handler
        if handler.executor == "process":
            invocation.task = self._loop.create_task(self._run_in_process(invocation))
        elif handler.is_async:
            invocation.task = self._loop.create_task(
                self._run_async_handler(invocation), context=self.context.copy()
            )
        else:
            self._start_thread(invocation)
        if invocation.deadline is not None and invocation.deadline < self._timer_at:
            self._set_timer(invocation.deadline)

    def interrupt(self, invocation: Invocation, stop: StopReason) -> None:
        """Ask a run to stop. A second call changes nothing: the first reason stays.

        A `def` handler cannot be interrupted; it can only check `job.cancelled`.
        """
        if invocation.finished or invocation.stop_reason is not None:
            return
        invocation.stop_reason = stop
        if stop == "cancel":
            invocation.current.request_cancel()
        if invocation.handler.executor == "process":
            self._process_executor.interrupt(invocation, stop)
        elif invocation.task is not None and invocation.entered:
            invocation.task.cancel()

    def abandon(self, invocation: Invocation) -> None:
        """Stop a run whose result no longer counts, before another worker may get its job.

        A coroutine that swallowed its cancellation is closed: it gets GeneratorExit where it waits.
        """
        task = invocation.task
        if invocation.stop_reason is None or task is None or invocation.handler.executor == "process":
            self.interrupt(invocation, "release")
            return
        # Retrieve the exception: otherwise asyncio logs the RuntimeError that a closed coroutine raises.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        with suppress(RuntimeError):  # the handler ignores GeneratorExit, too
            task.get_coro().close()
        task.cancel()

    def watch_loop(self, is_busy: Callable[[], bool]) -> None:
        """Warn of handlers and hooks that block the event loop, while `is_busy` returns True."""
        self._watchdog = LoopWatchdog(self._loop, is_busy)

    def close(self) -> None:
        """End the threads and the timer. The caller closes the process executor."""
        self._threads.close()
        if self._watchdog is not None:
            self._watchdog.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- the three ways to run a handler -------------------------------------------------------------

    async def _run_async_handler(self, invocation: Invocation) -> None:
        if invocation.stop_reason is None:
            # The same as `_mark_entered`, without the call, because this code runs for each job.
            invocation.entered = True
            self._started[invocation.index] = time.monotonic()
            verdict = await call_async_handler(invocation)
        else:
            verdict = interrupted_verdict()
        self._finish_run(invocation, verdict)

    def _start_thread(self, invocation: Invocation) -> None:
        if self._start_handler is not None:
            self._start_handler(partial(self._run_for_test, invocation))
            return
        try:
            self._threads.run(lambda: (invocation, self._run_sync_handler(invocation)))
        except RuntimeError as error:  # the operating system allows no more threads
            self._finish_run(invocation, verdict_on_error(error))

    def _run_for_test(self, invocation: Invocation) -> None:
        verdict = self._run_sync_handler(invocation)
        self._loop.call_soon_threadsafe(self._finish_run, invocation, verdict)

    def _run_sync_handler(self, invocation: Invocation) -> Verdict:
        if not self._mark_entered(invocation):
            return interrupted_verdict()
        return call_sync_handler(invocation, self.context.copy())

    async def _run_in_process(self, invocation: Invocation) -> None:
        if invocation.stop_reason is None:
            verdict = await self._run_in_child(invocation)
        else:
            verdict = interrupted_verdict()
        self._finish_run(invocation, verdict)

    async def _run_in_child(self, invocation: Invocation) -> Verdict:
        try:
            return await self._process_executor.run(invocation, lambda: self._start_clock(invocation))
        except Exception as error:  # noqa: BLE001 - the operating system allows no more processes, or a bug
            return verdict_on_error(error)

    def _start_clock(self, invocation: Invocation) -> None:
        """Start the time of a handler that a child process has entered: its process may start slowly."""
        invocation.entered = True
        self._started[invocation.index] = time.monotonic()
        invocation.start_timeout()
        self._watch_deadline(invocation)

    def _mark_entered(self, invocation: Invocation) -> bool:
        if invocation.stop_reason is not None:
            return False
        invocation.entered = True
        self._started[invocation.index] = time.monotonic()
        return True

    def _finish_run(self, invocation: Invocation, verdict: Verdict) -> None:
        self._active.discard(invocation)
        if invocation.finished:
            return
        output = invocation.current.output
        if output is not None and not output.is_sent:
            self._loop.create_task(self._finish_after_output(invocation, verdict, output))
            return
        invocation.finished = True
        # Free these objects now, so that the next run reuses their memory. Hundreds of runs wait for their
        # settlement, and with these objects the garbage collector would run three times as often.
        invocation.task = None
        invocation.cost = invocation.current.cost
        del invocation.current
        if invocation.stop_reason == "timeout" and not _replaces_timeout(verdict):
            verdict = timeout_verdict(invocation, verdict)
        self._report_end(invocation, verdict)

    async def _finish_after_output(self, invocation: Invocation, verdict: Verdict, output: RunOutput) -> None:
        """Send the last output of a run before it is settled."""
        await output.finish()
        self._finish_run(invocation, verdict)

    def _report_end(self, invocation: Invocation, verdict: Verdict) -> None:
        if (entered_at := self._started[invocation.index]) and invocation.handler.executor != "process":
            invocation.seconds = time.monotonic() - entered_at
        self._ended(invocation, verdict)

    # -- deadlines: one timer for all runs, as most runs end long before their deadline ----------------

    def _watch_deadline(self, invocation: Invocation) -> None:
        if invocation.deadline is not None and invocation.deadline < self._timer_at:
            self._set_timer(invocation.deadline)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = time.monotonic()
        for invocation in list(self._active):
            if invocation.deadline is not None and invocation.deadline <= now:
                self._time_out_run(invocation, now)
        deadlines = [run.deadline for run in self._active if run.deadline is not None]
        if deadlines:
            self._set_timer(max(min(deadlines), now + 0.001))

    def _time_out_run(self, invocation: Invocation, now: float) -> None:
        if invocation.stop_reason is None:
            self.interrupt(invocation, "timeout")
            if invocation.task is not None:
                invocation.deadline = now + CANCEL_SECONDS
                self._timed_out(invocation, CANCEL_SECONDS)
                return
        self._give_up_run(invocation)

    def _give_up_run(self, invocation: Invocation) -> None:
        """Report a run that did not stop. Settle it if the supervisor will not kill this process."""
        invocation.overran = True
        invocation.deadline = None
        if not self._killable:
            self._active.discard(invocation)
            invocation.finished = True
            invocation.cost = invocation.current.cost
            self._report_end(invocation, timeout_verdict(invocation))
        self._overran(invocation)


def runs_on_thread(handler: Handler) -> bool:
    """Return whether a handler runs on a thread: such a run cannot be interrupted."""
    return handler.executor != "process" and not handler.is_async


def _replaces_timeout(verdict: Verdict) -> bool:
    """Return whether the verdict of the handler counts although the run exceeded its timeout."""
    return isinstance(verdict, Returned | HandedOff) or (isinstance(verdict, Raised) and verdict.permanent)
