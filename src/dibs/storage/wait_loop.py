"""The loop of `Storage.wait` for storages on a server: look, sleep, look again.

Redis and Postgres use it. The indexed storages (memory and file) need no loop: every change passes through
their process or their log, so one sleep is enough.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from dibs.model.job import Outcome
from dibs.model.results import WaitResult
from dibs.storage.protocol import Watch
from dibs.storage.sleeper import Sleeper

#: The state of all queues of a wait, as one look returns it.
StateT = TypeVar("StateT")


class QueueWait(Sleeper, ABC, Generic[StateT]):
    """One call of `Storage.wait`: its arguments, and the loop until one of its queues changes.

    The loop looks at the queues, and then sleeps until a message (the storage calls `wake`), the next due
    job, the next poll or the deadline. So a lost message costs the time until the next poll. A storage
    defines how to subscribe, to look and to compare.
    """

    def __init__(
        self, queues: Sequence[str], watch: Watch, ids: Collection[str], since: Mapping[str, str]
    ) -> None:
        super().__init__()
        self.queues, self.watch = queues, watch
        self.ids = frozenset(ids)
        #: Tokens of the states with which the next look is compared, by queue.
        self.since: Mapping[str, str] = since

    async def run(self, timeout: float | None) -> WaitResult:
        """Wait for at most `timeout` seconds; None waits for ever. Raises StorageError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            # Subscribe before the first look: a message then reports every change after that look.
            await self.subscribe()
            return await self._until_changed(deadline)
        finally:
            self.unsubscribe()

    async def _until_changed(self, deadline: float | None) -> WaitResult:
        state = self.recall()
        while True:
            # A message from here on ends the next sleep, also a message that arrives during the look.
            was_woken, self.woken = self.woken, False
            if state is None:
                state = await self.look()
            if self.has_changed(state, was_woken=was_woken):
                return WaitResult(woken=True, since=self.tokens(state), outcomes=self.outcomes(state))
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                woken = self.woken and self.ends_on_message()
                return WaitResult(woken=woken, since=self.tokens(state), outcomes=self.outcomes(state))
            self.remember(state)
            due, pause = self.seconds_until_due(state), self.seconds_until_poll(state)
            pause = min(seconds for seconds in (left, due, pause) if seconds is not None)
            woken = await self.sleep(pause)
            self.check_open()
            if self.ends_on_message() if woken else due == pause:
                return WaitResult(woken=True, since=self.tokens(state))
            state = self.recall_after_message(state) if woken else None

    # -- defined by each storage ---------------------------------------------------------------------

    @abstractmethod
    async def subscribe(self) -> None:
        """Subscribe to the messages of the queues; a message that concerns this wait calls `wake`."""

    @abstractmethod
    def unsubscribe(self) -> None:
        """Undo `subscribe`, also after a `subscribe` that was cancelled."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise NotRunning if the storage was closed."""

    @abstractmethod
    async def look(self) -> StateT:
        """Read the state of the queues from the server."""

    @abstractmethod
    def recall(self) -> StateT | None:
        """Return the state that the first look would find, None if it is unknown."""

    def recall_after_message(self, state: StateT) -> StateT | None:
        """Return the state after a message that ended the sleep, None if it is unknown."""
        return None

    @abstractmethod
    def ends_on_message(self) -> bool:
        """Return whether a message ends the wait; if not, the loop compares the state after the message."""

    @abstractmethod
    def has_changed(self, state: StateT, *, was_woken: bool) -> bool:
        """Return whether a state concerns this wait; `was_woken`: a message arrived before the look."""

    def remember(self, state: StateT) -> None:
        """Take the tokens of a state into `since`."""
        self.since = self.tokens(state)

    @abstractmethod
    def tokens(self, state: StateT) -> Mapping[str, str]:
        """Return the token of each queue."""

    def outcomes(self, state: StateT) -> Mapping[str, Outcome]:
        """Return outcomes of the watched ids that messages included."""
        return {}

    @abstractmethod
    def seconds_until_due(self, state: StateT) -> float | None:
        """Return the seconds until the next scheduled job, None without one."""

    @abstractmethod
    def seconds_until_poll(self, state: StateT) -> float:
        """Return the most seconds until the next look."""
