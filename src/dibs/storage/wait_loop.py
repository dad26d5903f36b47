"""The loop of `Storage.wait` for Redis and Postgres: read the state of the queues, sleep, read it again.

Memory and file storages need no such loop. Each process holds their jobs in memory, and so knows when a queue
changes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from dibs.model.job import Outcome
from dibs.model.results import WaitResult
from dibs.storage.protocol import Watch
from dibs.storage.sleeper import Sleeper

#: The state of all queues of a wait, as one read from the server returns it.
StateT = TypeVar("StateT")


class QueueWait(Sleeper, ABC, Generic[StateT]):
    """One call of `Storage.wait`: its arguments, and the loop until one of its queues changes.

    The loop reads the state of the queues from the server. Then it sleeps until the server sends a message
    (the storage calls `wake`), a scheduled job falls due, the next poll is due, or the deadline passes. A
    lost message thus delays the wait until the next poll. Each storage defines how to subscribe to messages,
    how to read the state, and how to compare it.
    """

    def __init__(
        self, queues: Sequence[str], watch: Watch, ids: Collection[str], since: Mapping[str, str]
    ) -> None:
        super().__init__()
        self.queues, self.watch = queues, watch
        self.ids = frozenset(ids)
        #: For each queue, the token of its last known state. The loop compares the next state with it.
        self.since: Mapping[str, str] = since
        self._ended: set[str] | None = set()
        self._reported: set[str] | None = set()

    def note_ended(self, ids: Iterable[str] | None) -> None:
        """Add watched ids that have ended. None: some ids have ended, and it is unknown which ones."""
        if ids is None:
            self._ended = None
        elif self._ended is not None:
            self._ended.update(ids)

    def note_reported(self, ids: Iterable[str] | None) -> None:
        """Add watched ids that have reported progress. None: it is unknown which ones have."""
        if ids is None:
            self._reported = None
        elif self._reported is not None:
            self._reported.update(ids)

    async def run(self, timeout: float | None) -> WaitResult:
        """Wait for at most `timeout` seconds, without limit for None. Raise StorageError if a read fails."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            # Subscribe before the first read, so that a message reports every change after that read.
            was_subscribed = await self.subscribe()
            return await self._until_changed(deadline, missed_ends=self._may_miss_ends(was_subscribed))
        finally:
            self.unsubscribe()

    def _may_miss_ends(self, was_subscribed: bool) -> bool:  # noqa: FBT001 - the only argument
        """Return whether a watched id may have ended or reported before the wait was subscribed.

        No message reports that, and without a token the wait has no earlier state to compare with.
        """
        by_id = self.watch in ("ids", "progress")
        return by_id and not was_subscribed and any(one not in self.since for one in self.queues)

    async def _until_changed(self, deadline: float | None, *, missed_ends: bool) -> WaitResult:
        state = self.known_state()
        while True:
            # A message from here on ends the next sleep, also a message that arrives during the read.
            was_woken, self.woken = self.woken, False
            if state is None:
                state = await self.read_state()
            if missed_ends or self.has_changed(state, was_woken=was_woken):
                if missed_ends:
                    self.note_ended(None)
                    self.note_reported(None)
                return self._result(state, woken=True)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                woken = self.woken and self.ends_on_message()
                return self._result(state, woken=woken)
            self.store_tokens(state)
            due, pause = self.seconds_until_due(state), self.seconds_until_poll(state)
            pause = min(seconds for seconds in (left, due, pause) if seconds is not None)
            woken = await self.sleep(pause)
            self.check_open()
            if self.ends_on_message() if woken else due == pause:
                return WaitResult(
                    woken=True,
                    since=self.tokens(state),
                    ended=self.ended_ids(state),
                    reported=self.reported_ids(),
                )
            state = self.known_state_after_message(state) if woken else None

    def _result(self, state: StateT, *, woken: bool) -> WaitResult:
        outcomes = self.outcomes(state)
        return WaitResult(
            woken=woken,
            since=self.tokens(state),
            outcomes=outcomes,
            ended=self.ended_ids(state),
            reported=self.reported_ids(),
        )

    # -- defined by each storage ---------------------------------------------------------------------

    @abstractmethod
    async def subscribe(self) -> bool:
        """Subscribe to the server's messages about the queues. Each message for this wait calls `wake`.

        Return whether the storage received these messages already when the call began.
        """

    @abstractmethod
    def unsubscribe(self) -> None:
        """Undo `subscribe`. Called also if `subscribe` failed or was cancelled."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise NotRunning if the storage was closed during a sleep."""

    @abstractmethod
    async def read_state(self) -> StateT:
        """Read the state of the queues from the server."""

    @abstractmethod
    def known_state(self) -> StateT | None:
        """Return the state of the queues if messages and claims made it known; None if it must be read."""

    def known_state_after_message(self, state: StateT) -> StateT | None:
        """Return `state` with the content of the message that ended the sleep; None to read the state again.

        By default, every message leads to a new read.
        """
        return None

    @abstractmethod
    def ends_on_message(self) -> bool:
        """Return whether any message ends the wait. If not, the loop compares the state after a message."""

    @abstractmethod
    def has_changed(self, state: StateT, *, was_woken: bool) -> bool:
        """Return whether `state` ends the wait.

        `was_woken` is True if a message arrived before the state was read.
        """

    def store_tokens(self, state: StateT) -> None:
        """Make `state` the state with which the next state is compared."""
        self.since = self.tokens(state)

    @abstractmethod
    def tokens(self, state: StateT) -> Mapping[str, str]:
        """Return the token of each queue, which the caller passes as `since` to its next wait."""

    def outcomes(self, state: StateT) -> Mapping[str, Outcome]:
        """Return the outcomes of watched ids that the server sent in messages.

        The caller then need not read them. By default there are none.
        """
        return {}

    def ended_ids(self, state: StateT) -> frozenset[str] | None:
        """Return the watched ids that have ended; None if they are unknown, and for other waits.

        All ids that ended before the tokens of `tokens` must be in it.
        """
        return None if self._ended is None or self.watch != "ids" else frozenset(self._ended)

    def reported_ids(self) -> frozenset[str] | None:
        """Return the watched ids that have reported; None if they are unknown, and for other waits."""
        return None if self._reported is None or self.watch != "progress" else frozenset(self._reported)

    @abstractmethod
    def seconds_until_due(self, state: StateT) -> float | None:
        """Return the seconds until the next scheduled job falls due; None if no job is scheduled."""

    @abstractmethod
    def seconds_until_poll(self, state: StateT) -> float:
        """Return the seconds after which the loop reads the state again, even without a message."""
