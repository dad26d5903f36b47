"""One run: its handler is called, and what came of it becomes a verdict."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextvars import Context
from typing import Any

from msgspec.structs import replace

from dibs.client.calls.current_job import CURRENT, CurrentJob
from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.model.job import Error, Job
from dibs.model.requests import SettleAction
from dibs.model.run_outcome import Raised, Returned, StopReason, Verdict
from dibs.worker.execution import exception_info as blame


class Invocation:
    """A claimed job in the hands of this process."""

    __slots__ = (
        "begun", "claimed_at", "current", "deadline", "end", "fence", "handler", "job", "limits", "over",
        "overran", "place", "stop", "taken", "task", "value",
    )  # fmt: skip

    #: What the handler sees of it.
    current: CurrentJob
    #: How it is settled, once that is known.
    end: SettleAction

    def __init__(self, handler: Handler, job: Job, place: int) -> None:
        assert job.run is not None, "a claim hands out active jobs"  # noqa: S101
        self.handler = handler
        self.job = job
        self.fence = job.run.fence
        self.claimed_at = job.run.claimed_at
        own = job.data.overrides
        self.limits: HandlerLimits = handler.limits if own is None else handler.limits.with_overrides(own)
        #: Its place among the flags that say what was started.
        self.place = place
        #: When it came here, by time.monotonic().
        self.taken = time.monotonic()
        #: By time.monotonic(), None without limit.
        self.deadline: float | None = None
        #: What an `auto` handler returned, for its hook.
        self.value: Any = None
        #: The task of an `async def` handler.
        self.task: asyncio.Task[None] | None = None
        #: Its code has been entered.
        self.begun = False
        #: Why it is to stop; the first reason counts.
        self.stop: StopReason | None = None
        #: It has its settlement: whatever it still does is of no account.
        self.over = False
        #: It did not stop in time, and only the end of its process will end it.
        self.overran = False

    @property
    def key(self) -> tuple[str, str, int]:
        """What nobody else can be: queue, id and fence."""
        return self.handler.queue, self.job.id, self.fence

    @property
    def about(self) -> dict[str, Any]:
        """What a log record says of the run it is about; dibs.telemetry.logs has the same inside of it."""
        job = self.job
        return {"queue": self.handler.queue, "id": job.id, "attempt": job.attempts, "fence": self.fence}

    def time_out_at(self) -> float | None:
        """Let the time run from now, and return when it is over."""
        if self.limits.timeout is not None:
            self.deadline = time.monotonic() + self.limits.timeout / 1000
        return self.deadline


async def call(run: Invocation) -> Verdict:
    """Call an `async def` handler in this task. Never raises, short of the task's end."""
    CURRENT.set(run.current)
    middleware = run.handler.middleware
    try:
        if middleware is None:
            value = await _called(run)
        else:
            with middleware(run.current):
                value = await _called(run)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit in a handler ends the run, not the worker
        return blame.raised(error)
    return returned(run, value)


def call_plain(run: Invocation) -> Verdict:
    """Call a `def` handler on this thread. Never raises."""
    # A context of its own: what one job sets there, the next on this thread must not see.
    return Context().run(_call_plain, run)


def _call_plain(run: Invocation) -> Verdict:
    CURRENT.set(run.current)
    try:
        if run.handler.middleware is None:
            value = _called(run)
        else:
            with run.handler.middleware(run.current):
                value = _called(run)
    except BaseException as error:  # noqa: BLE001 - SystemExit in a handler ends the run, not the thread
        return blame.raised(error)
    return returned(run, value)


def _called(run: Invocation) -> Any:
    arguments, keywords = run.handler.arguments(run.job)
    return run.handler.function(*arguments, **keywords)


def returned(run: Invocation, value: Any) -> Verdict:
    """Return the verdict on a handler that came to its end; what cannot be stored fails it for good."""
    run.value = value
    try:
        return Returned(run.handler.serde.encode(value), run.current.follow_ups)
    except Exception as error:  # noqa: BLE001 - a serde of the user's may raise anything
        if inspect.iscoroutine(value):
            value.close()
        message = f"{run.handler.queue} returned {_kind(value)}, which its serde cannot write: {error}"
        return Raised(error=blame.plain("ResultNotSerializable", message), permanent=True)


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def too_late(run: Invocation, verdict: Verdict | None = None) -> Raised:
    """Return the verdict on a run that was interrupted, with the place where it stood, if that is known."""
    trace = verdict.error.traceback if isinstance(verdict, Raised) else ""
    return Raised(error=replace(took_too_long(run.limits.timeout), traceback=trace))


def took_too_long(timeout: int | None) -> Error:
    """Return the error of a run that took longer than this many ms."""
    return blame.plain("TimeoutError", f"took longer than its timeout of {(timeout or 0) / 1000:g} s")
