"""The storage of a step in the caller's transaction, so that its effect and its result commit together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from attrs import define, field

from dibs.client.connection.handler_thread import current_handler_thread
from dibs.client.connection.thread_callbacks import CALLER_THREAD, CallerThread
from dibs.client.connection.transactions import TransactionCalls, in_transaction
from dibs.storage.protocol import Storage


@define
class StepTransactions:
    """The reports of one run that are part of the caller's transactions."""

    #: A Storage; its type is that of the worker's field, so that this class fits the parameter of CurrentJob.
    _storage: Any
    _queue: str
    _id: str
    _fence: int
    #: The connection of the last report.
    _calls: TransactionCalls | None = field(default=None, init=False)

    async def report(self, connection: Any, memo: bytes) -> bool:
        """Store a memo in the transaction of `connection`. Return False if the run has lost its job."""
        calls = await in_transaction(cast("Storage", self._storage), connection)
        self._calls = calls
        return await calls.report(self._queue, self._id, self._fence, memo) != "lost"

    @property
    def is_open(self) -> bool:
        """True if the connection of the last report is in a transaction, which may be that of the report."""
        return self._calls is not None and self._calls.is_open

    async def read_memo(self) -> bytes | None:
        """Return the committed memo of the job; None if another run holds it, or if it has none."""
        [slot] = await cast("Storage", self._storage).get(self._queue, [self._id])
        job = slot.current
        return job.data.memo if job is not None and job.run and job.run.fence == self._fence else None

    def wait(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        """Run `work` on `loop` and wait for it. Meanwhile this thread serves its blocking connection."""
        caller = current_handler_thread() or CallerThread()
        token = CALLER_THREAD.set(caller)
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        finally:
            CALLER_THREAD.reset(token)
        caller.wait(future, lambda: None)
        future.result()
