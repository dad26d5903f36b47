"""A deterministic scheduler: one client runs at a time, and every line of storage code is a step.

Each client has its own thread and the threads that its storage starts. At a line of storage code the
scheduler may pause the running client and resume another, as the seed decides. So calls interleave in the
middle.

A client without a step for STEP_TIMEOUT probably waits for a lock of a paused client. Then the scheduler runs
another client, as the isolation tester of Postgres does. A wrong guess changes only the order of steps: the
check uses only the calls and their timestamps.

A round may have a hold: its first client runs alone up to a point in its call, and continues there when all
other clients are done, or wait for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_COROUTINE
from itertools import count
from pathlib import Path
from random import Random
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from dibs_conformance.verbs.actions import Hold

Trace = Callable[[FrameType, str, Any], Any]


class LineTracer:
    """Calls `on_line` before each line of code below some folders, in the traced threads.

    It calls `on_coroutine` whenever a coroutine begins or continues there.
    """

    def __init__(
        self,
        folders: tuple[str, ...],
        on_line: Callable[[], None],
        on_coroutine: Callable[[], None] = lambda: None,
    ) -> None:
        self._folders, self._on_line, self._on_coroutine = folders, on_line, on_coroutine
        self._is_traced: dict[CodeType, bool] = {}

    @contextmanager
    def trace(self) -> Iterator[None]:
        """Trace this thread while the context lasts. Threads started within are traced until they end."""
        if not self._folders:
            yield
            return
        before = sys.gettrace()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)

    def _trace(self, frame: FrameType, _: str, __: Any) -> Trace | None:
        code = frame.f_code
        is_traced = self._is_traced.get(code)
        if is_traced is None:
            is_traced = self._is_traced[code] = code.co_filename.startswith(self._folders)
        if not is_traced:
            return None
        if code.co_flags & CO_COROUTINE:
            self._on_coroutine()
        return self._trace_line

    def _trace_line(self, _: FrameType, event: str, __: Any) -> Trace:
        if event == "line":
            self._on_line()
        return self._trace_line


def source_folders(kind: type) -> tuple[str, ...]:
    """Return the folders of the storage's class and its base classes."""
    modules = [sys.modules[cls.__module__] for cls in kind.__mro__ if cls.__module__ in sys.modules]
    return tuple({f"{folder(module)}/" for module in modules if is_storage_module(module)})


def is_storage_module(module: ModuleType) -> bool:
    """Return whether a module belongs to a storage, not to the standard library or the protocol."""
    name = module.__name__
    return name.partition(".")[0] not in sys.stdlib_module_names and name != "dibs.storage.protocol"


def folder(module: ModuleType) -> str:
    return str(Path(module.__file__ or "").resolve().parent)


#: Seconds without a step after which a client counts as waiting.
STEP_TIMEOUT: Final = 0.002
#: The same while a hold lasts. A client that only waits for a reply of a server must not end the hold.
HOLD_TIMEOUT: Final = 0.05
#: Seconds after which a turn ends, and a hold, in any case: a client that polls for a lock makes steps while
#: it waits.
MAX_TURN: Final = 0.02
MAX_HOLD: Final = 0.1
#: Seconds after which an unfinished round raises Deadlock.
ROUND_TIMEOUT: Final = 60.0
#: Mean number of lines a client runs before a switch. Each round draws one of these.
STEPS_PER_TURN: Final = (3, 10, 40, 150)


class Deadlock(Exception):
    """Raised if a round does not end within ROUND_TIMEOUT, as when clients wait for each other."""


class Scheduler:
    """Runs one client at a time, and switches clients at lines of storage code."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._lines = LineTracer(folders, self._on_line, self._on_coroutine)
        self._condition = threading.Condition()
        self._owners: dict[int, str] = {}
        self._ready: list[str] = []
        self._running = ""
        self._random = Random(0)
        self._mean_steps = STEPS_PER_TURN[0]
        self._steps_left = 0
        self._clients: set[str] = set()
        #: The hold of this round, and the steps of its unit until it begins; None once it has begun.
        self._hold: Hold | None = None
        self._steps_until_hold = 0
        #: The client to be held, and then the client that is held; "" without one.
        self._to_hold, self._held = "", ""
        #: The times at which the hold and the turn of the running client began.
        self._held_since, self._turn_began = 0.0, 0.0
        #: The client that owns threads started now.
        self._default_owner = ""
        self.steps = 0
        self.switches = 0
        self.waits = 0
        self._ticks = count(1)

    def next_tick(self) -> float:
        """Return the next timestamp of a logical clock."""
        return float(next(self._ticks))

    @contextmanager
    def running_as(self, client: str) -> Iterator[None]:
        """Assign this thread, and every thread started within, to a client."""
        self._default_owner = client
        self._owners[threading.get_ident()] = client
        with self._lines.trace():
            yield

    def _on_line(self) -> None:
        owner = self._owners.setdefault(threading.get_ident(), self._running or self._default_owner)
        if self._ready and not self._count_to_hold(owner, "line"):
            self._step(owner)

    def _on_coroutine(self) -> None:
        owner = self._owners.get(threading.get_ident())
        if owner is not None and self._ready:
            self._count_to_hold(owner, "coroutine")

    # -- holds ---------------------------------------------------------------------------------------

    def _count_to_hold(self, client: str, unit: str) -> bool:
        """Count a step of the client to be held, and hold it at its point. Return whether it runs alone."""
        if client != self._to_hold or self._running != client:
            return False
        assert self._hold is not None  # noqa: S101 - start_round sets both
        self.steps += 1
        self._steps_until_hold -= unit == self._hold.unit
        if self._steps_until_hold <= 0:
            with self._condition:
                self._to_hold, self._held = "", client
                self._held_since = time.monotonic()
                self._switch_client()
                self._await_turn(client)
        return True

    # -- turns ---------------------------------------------------------------------------------------

    def _step(self, client: str) -> None:
        self.steps += 1
        if self._running == client:
            self._steps_left -= 1
            if self._steps_left > 0:
                return
        with self._condition:
            if client in self._clients:
                if self._running == client:
                    self._switch_client()
                self._await_turn(client)

    def _await_turn(self, client: str) -> None:
        """Wait for this client's turn. A client that was skipped queues again."""
        while self._running != client:
            if client not in self._ready:
                self._ready.append(client)
            if not self._running:
                self._switch_client()
            else:
                self._condition.wait(ROUND_TIMEOUT)

    def _switch_client(self) -> None:
        """Choose the client that runs next, maybe the same."""
        self._steps_left = 1 + int(self._random.expovariate(1 / self._mean_steps))
        ready = [name for name in sorted(self._ready) if name != self._held] or self._ready
        chosen = self._random.choice(ready) if ready else ""
        if chosen == self._held:
            self._held = ""
        self.switches += chosen != self._running
        self._running, self._turn_began = chosen, time.monotonic()
        self._condition.notify_all()

    def enter_round(self, client: str) -> None:
        """Wait for the client's first turn in a round."""
        with self._condition:
            self._await_turn(client)

    def leave_round(self, client: str) -> None:
        """Remove the client from the round."""
        with self._condition:
            self._clients.discard(client)
            if client == self._to_hold:
                self._to_hold = ""
            if client in self._ready:
                self._ready.remove(client)
            if self._running == client:
                self._switch_client()
            self._condition.notify_all()

    def start_round(self, clients: list[str], seed: int, hold: Hold | None = None) -> None:
        """Set the clients of a round and the seed of its switches. Call it before the clients begin.

        With `hold`, the first client stops there.
        """
        with self._condition:
            self._random = Random(seed)
            self._mean_steps = self._random.choice(STEPS_PER_TURN)
            self._clients, self._ready = set(clients), list(clients)
            self._hold, self._held = hold, ""
            self._to_hold = clients[0] if hold is not None and len(clients) > 1 else ""
            self._steps_until_hold = 0 if hold is None else hold.at
            self._running = self._to_hold
            if not self._running:
                self._switch_client()
            self._condition.notify_all()

    @property
    def running_clients(self) -> list[str]:
        """The clients whose program of this round has not ended, the running one first."""
        return sorted(self._clients, key=lambda name: name != self._running)

    def watch_round(self, timeout: float = ROUND_TIMEOUT) -> None:
        """Watch the round from the thread that waits for its end. Raise Deadlock after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._condition:
            steps_before, last_step = -1, time.monotonic()
            while self._clients:
                self._condition.wait(STEP_TIMEOUT)
                now = time.monotonic()
                if self.steps != steps_before:
                    steps_before, last_step = self.steps, now
                if self._held and now - self._held_since > MAX_HOLD:
                    self._held = ""
                if last_step < now or self._turn_began + MAX_TURN < now:
                    self._skip_waiting_client(now - last_step)
                if now > deadline:
                    raise Deadlock(
                        f"{', '.join(sorted(self._clients))} did not return within {timeout:.0f} s"
                    )
            self._running, self._ready = "", []

    def _skip_waiting_client(self, idle: float) -> None:
        """Run another client: the running client made no step, so it probably waits for a paused client.

        A hold begins and ends only after no client made a step for `HOLD_TIMEOUT` seconds.
        """
        others = [name for name in self._ready if name != self._running]
        if idle < HOLD_TIMEOUT:
            if self._running and self._running == self._to_hold:
                return
            others = [name for name in others if name != self._held]
        if others:
            self.waits += bool(self._running)
            self._ready = others
            self._switch_client()
