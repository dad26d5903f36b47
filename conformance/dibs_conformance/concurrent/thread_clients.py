"""Clients as threads of this process, each with a loop and a storage of its own on one place."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any, TypeVar

from dibs.storage.protocol import Storage
from dibs_conformance.concurrent.actions import Order
from dibs_conformance.concurrent.calls import Call, Look
from dibs_conformance.concurrent.performer import Stamp, look, perform
from dibs_conformance.concurrent.scheduler import Stepper
from dibs_conformance.concurrent.source_lines import homes
from dibs_conformance.target import Locations, LoopRunner, OpenedStorage

T = TypeVar("T")
#: Seconds a round may take.
PATIENCE = 60.0
NAMES = ("ann", "bob", "cat", "dan")


class Player:
    """One client: a thread that does what it is given, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kit-{name}")
        self.opened: OpenedStorage | None = None
        self._runner: LoopRunner | None = None

    @property
    def storage(self) -> Storage:
        assert self.opened is not None  # noqa: S101 - open comes first
        return self.opened.storage

    def does(self, work: Callable[[], T]) -> Future[T]:
        return self._thread.submit(work)

    def open(self, locations: Locations, location: str) -> None:
        self._runner = self._runner or LoopRunner()
        self.opened = OpenedStorage(locations, self._runner, location)

    def close(self) -> None:
        if self.opened is not None:
            self.does(self.opened.close).result()
        if self._runner is not None:
            self.does(self._runner.close).result()
        self._thread.shutdown()

    def perform(self, order: Order, stamp: Stamp) -> list[Call]:
        return self.run(perform(self.storage, self.name, order, stamp))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._runner is not None  # noqa: S101 - open comes first
        return self._runner.run(work)


class Troupe:
    """Some players on one place; a stepper decides who goes on, or nobody does."""

    def __init__(self, locations: Locations, size: int, *, stepping: bool) -> None:
        location = self.location = locations.new()
        self.players = [Player(name) for name in NAMES[:size]]
        first = self.players[0]
        first.does(lambda: first.open(locations, location)).result()
        watched = homes(type(first.storage)) if stepping else ()
        self.stepper = Stepper(watched)
        self._stepping = stepping
        for player in self.players:
            player.does(self._opening(player, locations, location)).result()

    def _opening(self, player: Player, locations: Locations, location: str) -> Callable[[], None]:
        def opening() -> None:
            # The first one opened to find out whose lines to watch; its threads were not watched.
            if player.opened is not None:
                player.opened.close()
            with self.stepper.adopting(player.name):
                player.open(locations, location)

        return opening

    def close(self) -> None:
        for player in self.players:
            player.close()

    def look(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Look:
        """See everything, with everybody at rest."""
        first = self.players[0]
        return first.does(lambda: first.run(look(first.storage, queue, ids, now, log=log))).result()

    def begun(self, orders: Sequence[Order]) -> Callable[[], list[Call]]:
        """Let each player begin its program, all at once; what is returned waits for the end."""
        cast = list(zip(self.players, orders, strict=False))
        start = Barrier(len(cast))
        futures = [player.does(self._turns(player, order.own(), start)) for player, order in cast]
        return lambda: [call for future in futures for call in future.result(PATIENCE)]

    def play(
        self, orders: Sequence[Order], seed: int, *, beside: Callable[[], None] | None = None
    ) -> list[Call]:
        """Let each player do its program, all at once, and something happen beside it."""
        if self._stepping:
            self.stepper.prepare([player.name for player, _ in zip(self.players, orders, strict=False)], seed)
        calls = self.begun(orders)
        if self._stepping:
            self.stepper.conduct()
        if beside is not None:
            beside()
        return calls()

    def _turns(self, player: Player, order: Order, start: Barrier) -> Callable[[], list[Call]]:
        def play() -> list[Call]:
            if not self._stepping:
                start.wait()
                return player.perform(order, self.stepper.stamp)
            self.stepper.begin(player.name)
            try:
                with self.stepper.adopting(player.name):
                    return player.perform(order, self.stepper.stamp)
            finally:
                self.stepper.end(player.name)

        return play


@contextmanager
def troupe(locations: Locations, size: int, *, stepping: bool) -> Iterator[Troupe]:
    """Open a troupe, and close it whatever comes."""
    made = Troupe(locations, size, stepping=stepping)
    try:
        yield made
    finally:
        made.close()
