"""The survivor: a thread of this process with a storage of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from dibs_conformance.concurrent.actions import Order
from dibs_conformance.concurrent.calls import Call, Look
from dibs_conformance.concurrent.performer import look
from dibs_conformance.concurrent.thread_clients import Player
from dibs_conformance.crashes.scenes import PATIENCE, Survivor
from dibs_conformance.target import Locations


class Witness(Survivor):
    """Does its orders one after the other."""

    def __init__(self, locations: Locations, location: str) -> None:
        self.player = Player("ann")
        self.player.does(lambda: self.player.open(locations, location)).result(PATIENCE)
        self._late: Future[list[Call]] | None = None

    def does(self, order: Order, patience: float) -> list[Call] | None:
        future = self.player.does(lambda: self.player.perform(order, time.monotonic))
        try:
            return future.result(patience)
        except TimeoutError:
            self._late = future
            return None

    def rest(self) -> list[Call]:
        late, self._late = self._late, None
        return [] if late is None else late.result(PATIENCE)

    def look(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Look:
        player = self.player
        return player.does(lambda: player.run(look(player.storage, queue, ids, now, log=log))).result(
            PATIENCE
        )

    def close(self) -> None:
        self.player.close()


@contextmanager
def witness(locations: Locations, location: str) -> Iterator[Witness]:
    """Open a witness on a place, and close it whatever comes."""
    made = Witness(locations, location)
    try:
        yield made
    finally:
        made.close()
