"""Which run is in whose hands, and under which lease: what a supervisor knows of its processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from dibs.worker import messages

M = TypeVar("M", bound=Hashable)


class HeldRun(Struct, eq=False, gc=False):
    """One run in the hands of one member."""

    queue: str
    lease: str
    run: messages.ClaimedRun
    #: When this was heard of, by time.monotonic().
    taken: float = 0.0
    #: Its time is over, it was told to stop, and has until then, by time.monotonic().
    stops_by: float = 0.0
    #: It did not.
    overran: bool = False
    #: It was told that somebody asked for it to stop.
    told_to_cancel: bool = False

    def ends_by(self, started: float) -> float | None:
        """Return when it must have ended that began at `started`; None is never, or by other means."""
        if not started or self.run.timeout is None or self.overran:
            return None
        return max(self.stops_by, started + self.run.timeout / 1000)


class HeldRuns(Generic[M]):
    """Every run that a member said it holds, until it says otherwise."""

    def __init__(self) -> None:
        self._of: dict[M, dict[int, HeldRun]] = {}
        self._leases: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def claimed(self, member: M, message: messages.RunsClaimed) -> None:
        held, queue, lease = self._of.setdefault(member, {}), message.queue, message.lease
        now = time.monotonic()
        held.update({run.place: HeldRun(queue, lease, run, now) for run in message.runs})
        self._leases[lease] += len(message.runs)

    def ended(self, member: M, message: messages.RunsSettled) -> Counter[str]:
        """Take the runs back, and return how many came to which end."""
        held = self._of.get(member, {})
        return Counter({word: self._take(held, places) for word, places in message.ends.items()})

    def _take(self, held: dict[int, HeldRun], places: Iterable[int]) -> int:
        taken = [held.pop(place) for place in places if place in held]
        for lease, number in Counter([holding.lease for holding in taken]).items():
            self._leases[lease] -= number
        return len(taken)

    def at(self, member: M, place: int, fence: int) -> HeldRun | None:
        """Return what a member holds at a place, if it is still the run with this fence."""
        holding = self._of.get(member, {}).get(place)
        return holding if holding is not None and holding.run.fence == fence else None

    def under(self, lease: str) -> int:
        """Return how many runs are held under a lease."""
        return self._leases[lease]

    def of(self, member: M) -> list[HeldRun]:
        """Return what a member holds."""
        return list(self._of.get(member, {}).values())

    def forget(self, member: M) -> None:
        """Take everything back that a member holds."""
        held = self._of.pop(member, {})
        self._take(held, list(held))

    def with_ids(self, queue: str, ids: tuple[str, ...], now: int) -> dict[M, list[tuple[str, str, int]]]:
        """Return who holds these ids of a queue, claimed before `now`, and was not told yet.

        A later claim of the same id is another run, and what was said of the id then was not about it.
        """
        wanted, found = set(ids), dict[M, list[tuple[str, str, int]]]()
        for member, held in self._of.items():
            for holding in held.values():
                run = holding.run
                if holding.queue != queue or holding.told_to_cancel:
                    continue
                if run.id in wanted and run.claimed_at < now:
                    # Once: a process that does not listen must not have its pipe filled.
                    holding.told_to_cancel = True
                    found.setdefault(member, []).append((queue, run.id, run.fence))
        return found
