"""Blocking form of dibs.flow.chain.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from typing import Any

from dibs.client.sync.thread_calls import run_enqueue
from dibs.client.sync.ticket import BlockingTicket
from dibs.flow.chain import Chain


class BlockingChain:
    """Blocking form of Chain, returned by its property `sync`.

    Calls of tasks that run one after the other, returned by `app.chain(...)`.

    Each call gets the result of the call before it as its first argument. The result of the chain is that of
    the last call.
    """

    def __init__(self, source: Chain) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def id(self) -> str:
        """Id of the flow that runs the calls."""
        return self._source.id

    def enqueue(self, *, connection: Any = None) -> BlockingTicket[Any]:
        """Enqueue the calls as one flow, and return its ticket. See Flow.enqueue."""
        return BlockingTicket(
            run_enqueue(
                self._storage_handle, "await chain.enqueue(...)", self._source.enqueue(connection=connection)
            )
        )
