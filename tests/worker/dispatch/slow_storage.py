"""A slow storage, whose replies come late and in the order that a test chooses."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from dibs.errors import OutcomeUnknown
from dibs.storage.protocol import Storage
from tests.worker.faulty_storage import FaultyStorage

#: The verbs by which a worker claims and settles.
VERBS: Final = ("claim", "settle_and_claim", "settle")
#: Iterations of the event loop that a request takes: enough for all prefetched jobs to run.
ITERATIONS: Final = 50


class CaughtCall:
    """One request in flight. A caught request is applied and answered when the test calls for it."""

    def __init__(self, verb: str, arguments: tuple[Any, ...]) -> None:
        self.verb = verb
        self.arguments = arguments
        self.caught = False
        loop = asyncio.get_running_loop()
        self.applying: asyncio.Future[None] = loop.create_future()
        self.applied: asyncio.Future[None] = loop.create_future()
        self.answering: asyncio.Future[None] = loop.create_future()

    async def apply(self) -> None:
        """Apply the request to the storage, and keep the reply in flight."""
        self.applying.set_result(None)
        await self.applied

    def reply(self) -> None:
        """Apply the request if it is not applied yet, and send the reply."""
        if not self.applying.done():
            self.applying.set_result(None)
        self.answering.set_result(None)

    def lose(self) -> None:
        """Apply the request, and lose the reply."""
        self.applying.set_result(None)
        self.answering.set_exception(OutcomeUnknown("the reply was lost"))

    def refuse(self, error: Exception) -> None:
        """Raise `error` instead of applying the request."""
        self.applying.set_exception(error)


class SlowStorage(FaultyStorage):
    """A storage that delays its verbs for claims and settlements, and counts the requests in flight."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._in_flight: list[CaughtCall] = []
        self._pair: asyncio.Future[tuple[CaughtCall, CaughtCall]] | None = None
        #: The largest number of requests in flight at the same time.
        self.most_in_flight = 0
        #: The number of claims under each lease.
        self.claims_by_lease = Counter[str]()

    async def two_requests(self) -> tuple[CaughtCall, CaughtCall]:
        """Catch two requests in flight before they are applied, and return them in their order."""
        self._pair = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(60):
            return await self._pair

    def _catch(self) -> None:
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        if self._pair is not None and not self._pair.done() and len(self._in_flight) > 1:
            first, second = self._in_flight
            first.caught = second.caught = True
            self._pair.set_result((first, second))

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name not in VERBS:
            return real

        async def slow(*arguments: Any) -> Any:
            call = CaughtCall(name, arguments)
            self._in_flight.append(call)
            self._catch()
            self.claims_by_lease.update(arguments[-2:-1] if name != "settle" else ())
            try:
                return await self._arrived(call, real)
            finally:
                self._in_flight.remove(call)

        return slow

    async def _arrived(self, call: CaughtCall, real: Any) -> Any:
        for _ in range(ITERATIONS):
            await asyncio.sleep(0)
        if not call.caught:
            return await real(*call.arguments)
        await call.applying
        answer = await real(*call.arguments)
        call.applied.set_result(None)
        await call.answering
        return answer
