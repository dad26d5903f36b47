"""Callbacks for the end of one id, called as soon as a message about it arrives.

A wait for ids passes a message through two tasks and two iterations of the event loop before its caller gets
the outcome. A callback gets it in the iteration in which the message arrives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import partial

from attrs import define, field

from dibs.model.job import Outcome
from dibs.storage.abilities import OnOutcome, StopWatching
from dibs.storage.redis.codec.jobs import DECODE_ERRORS
from dibs.storage.redis.codec.slots import decode_outcome


@define(eq=False)
class StoredEndWatches:
    """The callbacks by channel and id. Each is called once at most."""

    _by_channel: defaultdict[str, dict[str, list[OnOutcome]]] = field(
        factory=lambda: defaultdict(dict), init=False
    )

    def __contains__(self, channel: str) -> bool:
        return channel in self._by_channel

    def add(self, channel: str, id: str, on_outcome: OnOutcome) -> StopWatching:
        """Call `on_outcome` with the outcome in the next message about the id; None if it has none."""
        self._by_channel[channel].setdefault(id, []).append(on_outcome)
        return partial(self._remove, channel, id, on_outcome)

    def _remove(self, channel: str, id: str, on_outcome: OnOutcome) -> None:
        """Remove a callback, unless it was called."""
        by_id = self._by_channel.get(channel, {})
        if on_outcome in (callbacks := by_id.get(id, [])):
            callbacks.remove(on_outcome)
        if not callbacks:
            by_id.pop(id, None)
        if not by_id:
            self._by_channel.pop(channel, None)

    def notify(self, channel: str, packed: dict[str, bytes]) -> None:
        """Call the callbacks of these ids, with their packed outcomes; of all ids if there are none."""
        if (by_id := self._by_channel.get(channel)) is None:
            return
        for id in packed.keys() & by_id.keys() if packed else tuple(by_id):
            outcome = _decode(packed.get(id))
            for on_outcome in by_id.pop(id):
                on_outcome(outcome)
        if not by_id:
            del self._by_channel[channel]

    def notify_all(self) -> None:
        """Call all callbacks with None: messages may have been lost."""
        channels: Collection[str] = tuple(self._by_channel)
        for channel in channels:
            self.notify(channel, {})


def _decode(packed: bytes | None) -> Outcome | None:
    """Return the outcome; None if it is missing, or damaged, which a read of the state reports."""
    try:
        return decode_outcome(packed) if packed else None
    except DECODE_ERRORS:
        return None
