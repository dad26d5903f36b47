"""Clients as processes, each with a storage of its own on one place. One may be killed or stopped under way.

A process tells of a call before it makes it and again when it returned, so that what was under way is known
even if nobody lives to tell. The moments are those of the machine's monotonic clock.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from dibs_conformance.concurrent.actions import Order
from dibs_conformance.concurrent.calls import Call, Look
from dibs_conformance.concurrent.performer import look, perform
from dibs_conformance.concurrent.source_lines import Lines, homes
from dibs_conformance.concurrent.system_calls import Mishap, System
from dibs_conformance.target import Locations, LoopRunner, OpenedStorage, OpenStorage

#: Seconds in which a process must answer.
PATIENCE = 60.0
#: Loaded once in the process from which the others are forked.
PRELOADED = ["__main__", __name__]


@dataclass(frozen=True)
class Doom:
    """A signal that a process sends itself right before a line of the storage, the n-th of an order."""

    signal: signal.Signals
    line: int


@dataclass(frozen=True)
class Done:
    """What an order took: lines of the storage, calls to the system, and which of these was made to fail."""

    lines: int = 0
    calls: int = 0
    failed: str = ""


class Silent(Exception):
    """A process neither answered nor died."""


def context() -> BaseContext:
    """How processes are started: forked from one that has loaded everything, where the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(PRELOADED)
    return forking


class Member:
    """One process, as its conductor sees it."""

    def __init__(self, target: str | OpenStorage, location: str, name: str) -> None:
        self.name = name
        self._wire, theirs = context().Pipe()
        self._process: BaseProcess = context().Process(  # type: ignore[attr-defined]
            target=serve, args=(target, location, name, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._calls: list[Call] = []
        #: What its last order took.
        self.done = Done()
        self.died = False
        self._answering = True
        self._heard()

    def does(self, order: Order, doom: Doom | Mishap | None = None) -> None:
        """Give an order; the answer comes by `calls`."""
        self._calls, self._answering = [], True
        self._wire.send((order, doom))

    def calls(self, patience: float = PATIENCE) -> list[Call]:
        """What it did, once it is done or dead. Raises Silent."""
        while self._answering:
            self._heard(patience)
        return self._calls

    def _heard(self, patience: float = PATIENCE) -> None:
        """Take in one message."""
        if not self._wire.poll(patience):
            raise Silent(f"process {self.name} did not answer in {patience:.0f} s")
        try:
            told = self._wire.recv()
        except (EOFError, ConnectionResetError):
            self._answering, self.died = False, True
            return
        if isinstance(told, Done):
            self.done, self._answering = told, False
            return
        if self._calls and told.invoked == self._calls[-1].invoked:
            self._calls.pop()
        self._calls.append(told)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None  # noqa: S101 - it was started
        return self._process.pid

    def go_on(self) -> None:
        """Continue after a stop."""
        if self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by a signal."""
        try:
            with open(f"/proc/{self._process.pid}/stat") as stat:  # noqa: PTH123 - not a file
                return stat.read().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    def has_answered(self, patience: float) -> bool:
        """Whether it is done, or dead; what it told by then is kept."""
        while self._answering and self._wire.poll(patience):
            self._heard()
        return not self._answering

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        if not self.died:
            with suppress(OSError):
                self._wire.send(None)
            self._process.join(5)
            if self._process.is_alive():
                self._process.kill()
        self._process.join(PATIENCE)
        self._wire.close()


class Company:
    """Some members on one place, and a storage here to see what is there."""

    def __init__(self, locations: Locations, names: Sequence[str]) -> None:
        self.location = locations.new()
        self._runner = LoopRunner()
        self._opened = OpenedStorage(locations, self._runner, self.location)
        self.members = [Member(locations.target, self.location, name) for name in names]

    def play(self, orders: Sequence[Order], seed: int) -> list[Call]:
        """Let each member do its program, all at once. The seed decides nothing here: the machine does."""
        del seed
        cast = list(zip(self.members, orders, strict=False))
        for member, order in cast:
            member.does(order)
        return [call for member, _ in cast for call in member.calls()]

    def look(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Look:
        """See everything, with everybody at rest."""
        return self._runner.run(look(self._opened.storage, queue, ids, now, log=log))

    def close(self) -> None:
        for member in self.members:
            member.close()
        self._opened.close()
        self._runner.close()


@contextmanager
def company(locations: Locations, names: Sequence[str]) -> Iterator[Company]:
    """Start a company, and end it whatever comes."""
    made = Company(locations, names)
    try:
        yield made
    finally:
        made.close()


# -- in the process ----------------------------------------------------------------------------------


class Fate:
    """Counts the lines of the storage, and brings about what is to happen at one."""

    def __init__(self) -> None:
        self.lines = 0
        self._doom: Doom | None = None

    def begin(self, doom: Doom | None) -> None:
        self.lines, self._doom = 0, doom

    def line(self) -> None:
        self.lines += 1
        if self._doom is not None and self.lines == self._doom.line:
            os.kill(os.getpid(), self._doom.signal)


def serve(target: str | OpenStorage, location: str, name: str, wire: Connection) -> None:
    """Do what comes by the wire, until it says None or is gone."""
    fate, system, locations, runner = Fate(), System(), Locations(target), LoopRunner()
    system.stand_between()
    opened = OpenedStorage(locations, runner, location)
    watched = homes(type(opened.storage))
    opened.close()
    lines = Lines(watched, fate.line)
    with lines.watched():
        opened = OpenedStorage(locations, runner, location)
    wire.send(Done())
    try:
        for order, doom in orders(wire):
            fate.begin(doom if isinstance(doom, Doom) else None)
            system.begin(doom if isinstance(doom, Mishap) else None)
            with lines.watched():
                runner.run(perform(opened.storage, name, order, time.monotonic, wire.send))
            system.end()
            wire.send(Done(fate.lines, system.calls, system.failed))
    finally:
        opened.close()
        runner.close()


def orders(wire: Connection) -> Iterator[tuple[Order, Doom | Mishap | None]]:
    while True:
        try:
            told: Any = wire.recv()
        except EOFError:
            return
        if told is None:
            return
        yield told
