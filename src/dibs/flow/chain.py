"""`Chain`: calls of tasks, each with the result of the call before it as its first argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dibs.client.calls.bound_job import Bound
from dibs.client.task import TaskEnqueuer
from dibs.client.ticket import Ticket
from dibs.errors import Refused
from dibs.flow.builder import Flow

if TYPE_CHECKING:
    from dibs.client.sync.flow import BlockingChain


class Chain:
    """Calls of tasks that run one after the other, returned by `app.chain(...)`.

    Each call gets the result of the call before it as its first argument. The result of the chain is that of
    the last call.
    """

    def __init__(self, flow: Flow, calls: Sequence[Bound[Any] | TaskEnqueuer[..., Any]]) -> None:
        if not calls:
            raise Refused("this chain has no calls; pass tasks, or task.bind(...)", field="jobs")
        jobs = [call.bind() if isinstance(call, TaskEnqueuer) else call for call in calls]
        self._client = flow._client  # noqa: SLF001 - a chain is a flow of one shape
        self._flow = flow
        node = flow.add(jobs[0])
        for job in jobs[1:]:
            node = flow.add_next(job, node)
        flow.returns(node)
        self.id: str = flow.id
        """Id of the flow that runs the calls."""

    def __repr__(self) -> str:
        return f"<Chain {self.id!r}>"

    @property
    def sync(self) -> BlockingChain:
        """This chain with blocking methods, for code without an event loop."""
        from dibs.client.sync.flow import BlockingChain  # noqa: PLC0415 - async programs never load it

        return BlockingChain(self)

    async def enqueue(self, *, connection: Any = None) -> Ticket[Any]:
        """Enqueue the calls as one flow, and return its ticket. See Flow.enqueue."""
        return await self._flow.enqueue(connection=connection)
