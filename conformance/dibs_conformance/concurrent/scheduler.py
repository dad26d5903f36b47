"""Who goes next: threads of which one runs at a time, and every line of the storage is a step.

Each client has threads: its own, and those its storage starts. At a line of the storage's own code the
running client may be put on hold and another one let go on, as a seed says: so steps interleave inside a
verb. A client that makes no step for a while waits for something, most often for a lock that one on hold
has; then the next one goes on, as in Postgres's isolation tester. To be wrong about that costs nothing but
order: judged is what the clients were told, and when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Final

from dibs_conformance.concurrent.source_lines import Lines

#: Seconds without a step after which a client counts as waiting.
PATIENCE: Final = 0.002
#: Seconds after which a round that does not end is a failure of its own: somebody waits for ever.
FOREVER: Final = 60.0
#: Lines between two changes of turn, on average; which of these is drawn for each round.
PACES: Final = (3, 10, 40, 150)


class Stuck(Exception):
    """A round did not end: clients wait for each other for ever."""


class Stepper:
    """Lets one client run at a time."""

    def __init__(self, watched: tuple[str, ...]) -> None:
        self._lines = Lines(watched, self._line)
        self._turn = threading.Condition()
        self._owners: dict[int, str] = {}
        self._ready: list[str] = []
        self._running = ""
        self._random = Random(0)
        self._pace = PACES[0]
        self._left = 0
        self._clients: set[str] = set()
        #: Who the threads belong to that start now.
        self._adopter = ""
        self.steps = 0
        self.switches = 0
        self.waits = 0
        self._stamps = count(1)

    def stamp(self) -> float:
        """The next moment, of a clock that only counts."""
        return float(next(self._stamps))

    @contextmanager
    def adopting(self, client: str) -> Iterator[None]:
        """What runs here, and every thread that is started here, belongs to this client."""
        self._adopter = client
        self._owners[threading.get_ident()] = client
        with self._lines.watched():
            yield

    def _line(self) -> None:
        owner = self._owners.setdefault(threading.get_ident(), self._running or self._adopter)
        if self._ready:
            self._step(owner)

    # -- turns ---------------------------------------------------------------------------------------

    def _step(self, me: str) -> None:
        self.steps += 1
        if self._running == me:
            self._left -= 1
            if self._left > 0:
                return
        with self._turn:
            if me in self._clients:
                if self._running == me:
                    self._next()
                self._await_turn(me)

    def _await_turn(self, me: str) -> None:
        """Go on when it is our turn; one that was put aside gets in line again."""
        while self._running != me:
            if me not in self._ready:
                self._ready.append(me)
            if not self._running:
                self._next()
            else:
                self._turn.wait(FOREVER)

    def _next(self) -> None:
        """Let another ready client, or the same, go on."""
        self._left = 1 + int(self._random.expovariate(1 / self._pace))
        chosen = self._random.choice(sorted(self._ready)) if self._ready else ""
        self.switches += chosen != self._running
        self._running = chosen
        self._turn.notify_all()

    def begin(self, me: str) -> None:
        """Wait for the first turn of a round."""
        with self._turn:
            self._await_turn(me)

    def end(self, me: str) -> None:
        """Leave the round."""
        with self._turn:
            self._clients.discard(me)
            if me in self._ready:
                self._ready.remove(me)
            if self._running == me:
                self._next()
            self._turn.notify_all()

    def prepare(self, clients: list[str], seed: int) -> None:
        """Before the clients of a round begin: who they are, and the seed of their turns."""
        with self._turn:
            self._random = Random(seed)
            self._pace = self._random.choice(PACES)
            self._clients, self._ready = set(clients), list(clients)
            self._next()

    def conduct(self) -> None:
        """Watch over the round from the thread that waits for it. Raises Stuck."""
        deadline = time.monotonic() + FOREVER
        with self._turn:
            before = -1
            while self._clients:
                self._turn.wait(PATIENCE)
                if self.steps == before:
                    self._put_aside()
                before = self.steps
                if time.monotonic() > deadline:
                    raise Stuck(f"{', '.join(sorted(self._clients))} did not return in {FOREVER:.0f} s")
            self._running, self._ready = "", []

    def _put_aside(self) -> None:
        """The running client made no step: it waits for one of the others, if there is another."""
        others = [name for name in self._ready if name != self._running]
        if others:
            self.waits += bool(self._running)
            self._ready = others
            self._next()
