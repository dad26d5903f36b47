"""A ticket: what an enqueue hands out, to wait for its own end and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from dibs.client.connection.outcome_wait import OutcomeWait, outcome_result
from dibs.client.connection.queue_client import EnqueuedBatch, QueueClient
from dibs.client.options.durations import Seconds, duration_ms
from dibs.client.status import Status, status_at
from dibs.errors import ConfigurationError
from dibs.model.results import CancelStatus, EnqueueResult, EnqueueStatus
from dibs.model.ticket_state import TicketState

if TYPE_CHECKING:
    from dibs.client.sync.handles import BlockingTicket

R = TypeVar("R")
#: Tells the type of a result when one is decoded: not before, for its names may be defined further below.
Returns = Callable[[], Any]

#: For how long a result is waited for unless something else is said, in seconds.
DEFAULT_WAIT = 60.0


def anything() -> Any:
    """Say that a result may be anything."""
    return Any


class Ticket(Generic[R]):
    """One enqueue: of which id, with which revision, and what became of it."""

    def __init__(
        self,
        client: QueueClient,
        id: str,
        revision: int,
        returns: Returns = anything,
        answer: EnqueueResult | None = None,
    ) -> None:
        self._client = client
        self._returns = returns
        self._outcome = answer.outcome if answer and answer.status in ("completed", "failed") else None
        self.queue: str = client.name
        self.id: str = id
        #: What a wait waits for; with queue and id it finds this enqueue again: queue.ticket(id, revision).
        self.revision: int = revision
        #: What the enqueue did: queued, updated, blocked; or under Reject duplicate, completed, failed.
        #: None for a ticket that was made from id and revision.
        self.verdict: EnqueueStatus | None = answer.status if answer else None
        #: Whether its request_key was known: then nothing changed, and this is the first one's answer.
        self.repeated: bool = answer.repeated if answer else False

    def __repr__(self) -> str:
        return f"<Ticket {self.queue}/{self.id} {self.verdict or self.revision}>"

    @property
    def sync(self) -> BlockingTicket[R]:
        """The same, blocking."""
        from dibs.client.sync.handles import BlockingTicket  # noqa: PLC0415 - only who blocks pays for it

        return BlockingTicket(self)

    async def result(self, wait: Seconds | None = DEFAULT_WAIT) -> R:
        """Return what the job returned, waiting at most `wait` seconds (None: as long as it takes).

        Exactly this enqueue's end counts (contract 1, Done). Raises JobFailed, JobCancelled,
        OutcomeNotKept, and WaitTimeout, which leaves the job alone. The outcome is kept for at least
        the wait and a minute.
        """
        result: R = self._decoded(outcome_result(self._client, self.id, await self._end(wait)))
        return result

    async def _end(self, wait: Seconds | None) -> TicketState:
        if self._outcome is not None:
            return TicketState(self._outcome.kind, self._outcome)
        seconds = None if wait is None else duration_ms("wait", wait) / 1000
        return await OutcomeWait(self._client, self.id, self.revision, seconds).end()

    def _decoded(self, raw: bytes | None) -> Any:
        if raw is None:
            return None
        try:
            return self._client.serde.decode(raw, self._returns())
        except ValueError as error:
            raise ConfigurationError(
                f"the result of {self.queue}/{self.id} is not what its handler's return type says: {error}"
            ) from error

    async def status(self) -> Status:
        """Return how this enqueue stands now; `not_kept` once it ended and its outcome is gone."""
        return status_at(self.queue, self.id, await self._client.get(self.id), self.revision)

    async def cancel(self, *, running: bool = False) -> CancelStatus:
        """Cancel the id: waiting or blocked is gone; with `running` also ask the active run to stop.

        Returns cancelled, requested, active, completed, failed or not_found (contract 3, cancel).
        """
        storage = await self._client.storage()
        return (await storage.cancel(self.queue, [self.id], running=running))[0]


class Tickets(Sequence[Ticket[R]]):
    """The tickets of a batch, in its order. They are made when one is first asked for: often none is."""

    def __init__(self, client: QueueClient, sent: EnqueuedBatch, returns: Returns = anything) -> None:
        self._client = client
        self._sent = sent
        self._returns = returns

    def __repr__(self) -> str:
        return f"<{len(self)} tickets of {self._client.name}>"

    def __len__(self) -> int:
        return len(self._sent.ids)

    @overload
    def __getitem__(self, index: int) -> Ticket[R]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ticket[R]]: ...
    def __getitem__(self, index: int | slice) -> Ticket[R] | list[Ticket[R]]:
        """Return one of them, or some as a list."""
        return self._made[index]

    def __iter__(self) -> Iterator[Ticket[R]]:
        return iter(self._made)

    @cached_property
    def _made(self) -> list[Ticket[R]]:
        return [
            Ticket(self._client, id, answer.revision, self._returns, answer)
            for id, answer in zip(self._sent.ids, self._sent.answers, strict=True)
        ]
