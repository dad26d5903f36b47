"""What a worker did, in numbers: for the caller at the end, and for whoever watches on the way."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct, field

#: What may become of a claimed run; the first seven as the log of a queue has them (contract 3, Events).
WORDS: Final = (
    "completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released", "lost",
)  # fmt: skip


class QueueReport(Struct, kw_only=True):
    """The runs of one queue: how many were claimed, and what became of them."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    stalled: int = 0
    timed_out: int = 0
    released: int = 0
    #: The storage no longer knew them under our fence.
    lost: int = 0
    #: Jobs whose lease, of whatever worker, was found expired.
    reaped: int = 0

    @property
    def running(self) -> int:
        """How many are claimed and not settled."""
        return self.claimed - sum(int(getattr(self, word)) for word in WORDS)


class WorkReport(Struct, kw_only=True):
    """What all processes of one call of work did."""

    queues: dict[str, QueueReport] = field(default_factory=dict)
    #: The worker processes that live now, as process ids; none when the work is done in this process.
    processes: tuple[int, ...] = ()
    #: How many processes died unasked.
    crashes: int = 0
    #: How many `def` handlers went on after their time was over.
    overruns: int = 0
    seconds: float = 0.0

    def of(self, queue: str) -> QueueReport:
        """Return the numbers of a queue."""
        return self.queues.setdefault(queue, QueueReport())

    def total(self, word: str) -> int:
        """Return the sum of one number over all queues."""
        return sum(int(getattr(queue, word)) for queue in self.queues.values())

    def count(self, queue: str, words: Counter[str]) -> None:
        """Add what became of runs of a queue."""
        numbers = self.of(queue)
        for word, number in words.items():
            setattr(numbers, word, getattr(numbers, word) + number)
