"""Encoding of steps (the settlements of one queue, then a claim in it) as arguments of serve.lua.

storage/redis/lua/serve.lua documents the layout.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from dibs.storage.redis.codec.requests import Argument
from dibs.storage.redis.codec.settlements import SettlementBatch

#: The time in ms, the packed answers to the settlements, and the reply of the claim; b"" for no claim.
StepReply = tuple[bytes, bytes, Any]


@define
class StepBatch:
    """Collects the steps of one script call."""

    #: Number of steps.
    count: int = field(default=0, init=False)
    #: Arguments of all steps.
    arguments: list[Argument] = field(factory=list, init=False)
    #: Index in KEYS of each queue that a step names.
    _indexes: dict[str, int] = field(factory=dict, init=False)

    @property
    def queues(self) -> list[str]:
        """The queues for KEYS, in their order."""
        return list(self._indexes)

    def add(self, queue: str, batch: SettlementBatch, limit: int) -> None:
        self.count += 1
        index = self._index_of(queue)
        settlements, follow_ups = len(batch.arguments) // 2, batch.follow_ups
        # A step without settlements cannot enqueue a fail job, so it needs no prefix of a fail queue.
        fail_index = self._index_of(batch.targets[0]) if settlements else index
        self.arguments += (
            index,
            queue,
            fail_index,
            settlements,
            len(follow_ups) // 3,
            limit,
            *batch.arguments,
        )
        # A batch counts its own queues; KEYS has the queues of all steps.
        targets = [queue, *batch.targets]
        for number, id, request in zip(follow_ups[::3], follow_ups[1::3], follow_ups[2::3], strict=True):
            self.arguments += (self._index_of(targets[int(number) - 1]), id, request)

    def _index_of(self, queue: str) -> int:
        return self._indexes.setdefault(queue, len(self._indexes) + 1)
