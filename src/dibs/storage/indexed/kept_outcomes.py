"""The outcomes of one queue: their numbers by kind, and the expired ones, which prune removes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from dibs.model.job import EMPTY, EndKind, Outcome, Slot


class KeptOutcomes:
    """Values derived from the outcomes in `slots`. QueueIndex reports each change of an outcome."""

    def __init__(self, slots: dict[str, Slot]) -> None:
        self._slots = slots
        #: The number of outcomes of each kind that have not expired.
        self.counts: dict[EndKind, int] = {"completed": 0, "failed": 0, "cancelled": 0}
        #: Expired outcomes in the order of their expiry, until prune removes them.
        self.expired: dict[str, Outcome] = {}
        #: A heap of (expires_at, id). An entry is stale if the outcome of its id has changed.
        self.expiries: list[tuple[int, str]] = []
        #: The length of `expiries` above which stale entries are dropped.
        self._max_expiries = 1000

    def put(self, id: str, before: Outcome | None, after: Outcome | None, now: int) -> None:
        if before is not None and self.expired.pop(id, None) is None:
            self.counts[before.kind] -= 1
        if after is None:
            return
        if after.expires_at is None:
            self.counts[after.kind] += 1
        elif after.expires_at <= now:
            self.expired[id] = after
        else:
            self.counts[after.kind] += 1
            heappush(self.expiries, (after.expires_at, id))
            if len(self.expiries) > self._max_expiries:
                self._drop_stale_expiries()

    def _drop_stale_expiries(self) -> None:
        """Drop the expiries of replaced outcomes.

        Otherwise an id that ends every second, with a retention of a week, would leave 604,800 expiries.
        """
        self._max_expiries = 2 * sum(self.counts.values()) + 1000
        if len(self.expiries) <= self._max_expiries:
            return
        self.expiries = [(at, id) for at, id in set(self.expiries) if self._expiry(id) == at]
        heapify(self.expiries)

    def _expiry(self, id: str) -> int | None:
        outcome = self._slots.get(id, EMPTY).outcome
        return None if outcome is None else outcome.expires_at

    def advance(self, now: int) -> None:
        """Expire the outcomes whose time has come."""
        while self.expiries and self.expiries[0][0] <= now:
            expires_at, id = heappop(self.expiries)
            outcome = self._slots.get(id, EMPTY).outcome
            if outcome is not None and outcome.expires_at == expires_at and id not in self.expired:
                self.expired[id] = outcome
                self.counts[outcome.kind] -= 1
