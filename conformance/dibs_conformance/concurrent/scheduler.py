"""A deterministic scheduler: one client runs at a time, and every line of storage code is a step.

Each client has its own thread and the threads that its storage starts. At a line of storage code the
scheduler may pause the running client and resume another, as the seed decides. So calls interleave in the
middle.

A client without a step for STEP_TIMEOUT probably waits for a lock of a paused client. Then the scheduler runs
another client, as the isolation tester of Postgres does. A wrong guess changes only the order of steps: the
check uses only the calls and their timestamps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Final

from dibs_conformance.concurrent.source_lines import LineTracer

#: Seconds without a step after which a client counts as waiting.
STEP_TIMEOUT: Final = 0.002
#: Seconds after which an unfinished round raises Deadlock.
ROUND_TIMEOUT: Final = 60.0
#: Mean number of lines a client runs before a switch. Each round draws one of these.
STEPS_PER_TURN: Final = (3, 10, 40, 150)


class Deadlock(Exception):
    """Raised if a round does not end within ROUND_TIMEOUT, as when clients wait for each other."""


class Scheduler:
    """Runs one client at a time, and switches clients at lines of storage code."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._lines = LineTracer(folders, self._on_line)
        self._condition = threading.Condition()
        self._owners: dict[int, str] = {}
        self._ready: list[str] = []
        self._running = ""
        self._random = Random(0)
        self._mean_steps = STEPS_PER_TURN[0]
        self._steps_left = 0
        self._clients: set[str] = set()
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
        if self._ready:
            self._step(owner)

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
        chosen = self._random.choice(sorted(self._ready)) if self._ready else ""
        self.switches += chosen != self._running
        self._running = chosen
        self._condition.notify_all()

    def enter_round(self, client: str) -> None:
        """Wait for the client's first turn in a round."""
        with self._condition:
            self._await_turn(client)

    def leave_round(self, client: str) -> None:
        """Remove the client from the round."""
        with self._condition:
            self._clients.discard(client)
            if client in self._ready:
                self._ready.remove(client)
            if self._running == client:
                self._switch_client()
            self._condition.notify_all()

    def start_round(self, clients: list[str], seed: int) -> None:
        """Set the clients of a round and the seed of its switches. Call it before the clients begin."""
        with self._condition:
            self._random = Random(seed)
            self._mean_steps = self._random.choice(STEPS_PER_TURN)
            self._clients, self._ready = set(clients), list(clients)
            self._switch_client()

    def watch_round(self) -> None:
        """Watch the round from the thread that waits for its end. Raises Deadlock."""
        deadline = time.monotonic() + ROUND_TIMEOUT
        with self._condition:
            steps_before = -1
            while self._clients:
                self._condition.wait(STEP_TIMEOUT)
                if self.steps == steps_before:
                    self._skip_waiting_client()
                steps_before = self.steps
                if time.monotonic() > deadline:
                    raise Deadlock(
                        f"{', '.join(sorted(self._clients))} did not return within {ROUND_TIMEOUT:.0f} s"
                    )
            self._running, self._ready = "", []

    def _skip_waiting_client(self) -> None:
        """Run another client: the running client made no step, so it probably waits for a paused client."""
        others = [name for name in self._ready if name != self._running]
        if others:
            self.waits += bool(self._running)
            self._ready = others
            self._switch_client()
