"""A storage far away, whose answers come late, and in the order that a test says."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from dibs.errors import OutcomeUnknown
from dibs.storage.protocol import Storage
from tests.worker.workshop import Faulty

#: The verbs by which a worker claims and settles.
TRIPS: Final = ("claim", "settle_and_claim", "settle")
#: How many turns of the loop a request is under way: enough for all that was claimed ahead to run.
TURNS: Final = 50


class Call:
    """One request in the air; caught, it is made and answered when a test says so."""

    def __init__(self, verb: str, words: tuple[Any, ...]) -> None:
        self.verb = verb
        self.words = words
        self.caught = False
        loop = asyncio.get_running_loop()
        self.making: asyncio.Future[None] = loop.create_future()
        self.made: asyncio.Future[None] = loop.create_future()
        self.answering: asyncio.Future[None] = loop.create_future()

    async def make(self) -> None:
        """Let it happen in the storage; the answer is still on its way."""
        self.making.set_result(None)
        await self.made

    def land(self) -> None:
        """Let it happen if it has not, and be answered."""
        if not self.making.done():
            self.making.set_result(None)
        self.answering.set_result(None)

    def lose(self) -> None:
        """Let it happen, and its answer be lost."""
        self.making.set_result(None)
        self.answering.set_exception(OutcomeUnknown("the reply was lost"))

    def refuse(self, error: Exception) -> None:
        """Let it not happen."""
        self.making.set_exception(error)


class Far(Faulty):
    """Counts what is in the air at once."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._air: list[Call] = []
        self._two: asyncio.Future[tuple[Call, Call]] | None = None
        #: How many were in the air at once at most.
        self.most = 0
        #: How many claims there were under each lease.
        self.under = Counter[str]()

    async def two(self) -> tuple[Call, Call]:
        """Catch two requests in the air at once, neither of them made, in the order they were sent."""
        self._two = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(60):
            return await self._two

    def _catch(self) -> None:
        self.most = max(self.most, len(self._air))
        if self._two is not None and not self._two.done() and len(self._air) > 1:
            first, second = self._air
            first.caught = second.caught = True
            self._two.set_result((first, second))

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name not in TRIPS:
            return real

        async def far(*words: Any) -> Any:
            call = Call(name, words)
            self._air.append(call)
            self._catch()
            self.under.update(words[-2:-1] if name != "settle" else ())
            try:
                return await self._arrived(call, real)
            finally:
                self._air.remove(call)

        return far

    async def _arrived(self, call: Call, real: Any) -> Any:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not call.caught:
            return await real(*call.words)
        await call.making
        answer = await real(*call.words)
        call.made.set_result(None)
        await call.answering
        return answer
