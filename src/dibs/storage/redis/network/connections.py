"""Connections to one server, kept warm; each carries one request at a time.

A connection whose reply was not read to its end is closed and never used again, so no caller can get the
reply of another, whoever is cancelled when.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as Unconnected
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as TooLate

from dibs.errors import NotRunning, OutcomeUnknown, StorageUnavailable
from dibs.storage.redis.network.errors import PASSING, UNWELCOME, refusal
from dibs.storage.redis.network.wire import Wire

#: Seconds between attempts to connect: a restart or a failover of a second goes unnoticed.
PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
#: Seconds that one attempt to connect may take, with its greetings.
GREETING: Final = 5.0
#: Seconds after which a connection that lay idle is looked at before it is used.
IDLE: Final = 0.5
#: Seconds until a reply counts as lost. No script of ours takes more than some milliseconds.
REPLY: Final = 10.0

REPLIES: Final = (*PASSING, *UNWELCOME)
LOST: Final = (Unconnected, TooLate, OSError, TimeoutError)


class Connections:
    """A pool for one server. `place` names it in messages, without its password."""

    def __init__(self, make: Callable[[], AbstractConnection], place: str, most: int) -> None:
        self.place = place
        self._make = make
        self._idle: list[tuple[Wire, float]] = []
        #: How many calls may be in the air, how many are, the cancelled ones too, and who waits to be let in.
        self._most, self._inside = most, 0
        self._outside: deque[asyncio.Future[None]] = deque()
        self._closed = False
        #: Who reads the replies that are still on their way to nobody.
        self._clearing: set[asyncio.Task[None]] = set()
        #: Those that are being closed.
        self._going: set[Wire] = set()

    async def call(self, *words: Any, repeatable: bool = False, asking: bool = False) -> Any:
        """Send one command and return its reply. What is `repeatable` is sent again when the reply is lost.

        Raises the driver's ResponseError for an answer that says no, StorageUnavailable when nothing was
        sent, OutcomeUnknown when the reply was lost.
        """
        if self._inside < self._most:
            self._inside += 1
        else:
            await self._let_in()
        try:
            return await self._send(words, asking=asking)
        except OutcomeUnknown:
            if not repeatable:
                raise
            return await self._send_again(words, asking=asking)
        finally:
            self._leave()

    async def park(self, first: tuple[Any, ...], words: tuple[Any, ...], patience: float) -> list[Any]:
        """Send a command that waits up to `patience` s and one behind it; return both replies.

        It is not among those that `most` bounds. Raises what `call` raises, once it was sent OutcomeUnknown.
        """
        replies: list[Any] = await self._send(words, asking=False, behind=first, patience=patience + REPLY)
        return replies

    async def _send_again(self, words: tuple[Any, ...], *, asking: bool) -> Any:
        try:
            return await self._send(words, asking=asking)
        except OutcomeUnknown as error:
            raise StorageUnavailable(str(error)) from None

    # A semaphore of asyncio's takes eight calls to let somebody in who need not wait, these take two.

    async def _let_in(self) -> None:
        """Wait until there is room: first come, first served."""
        turn = asyncio.get_running_loop().create_future()
        self._outside.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()  # it was let in, and is gone
            raise

    def _leave(self) -> None:
        """Let the next in, in our place, unless a reply has it."""
        while self._outside and self._inside <= self._most:
            turn = self._outside.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._inside -= 1

    async def _send(
        self,
        words: tuple[Any, ...],
        *,
        asking: bool,
        behind: tuple[Any, ...] | None = None,
        patience: float = REPLY,
    ) -> Any:
        wire = await self._take()
        try:
            if asking:
                await wire.ask(("ASKING",), REPLY)
            if behind is None:
                reply = await wire.ask(words, patience)
            else:
                reply = await wire.ask_behind(behind, words, patience)
        except REPLIES:
            # Another server may be behind the same address by now.
            self._drop(wire)
            raise
        except ResponseError:
            self._give(wire)
            raise
        except LOST as error:
            self._drop(wire)
            raise OutcomeUnknown(
                f"sent to {self.place}, and the reply was lost ({type(error).__name__}): it may have happened"
            ) from None
        except asyncio.CancelledError:
            if behind is not None:
                # The server lets go of what it has not begun.
                self._drop(wire)
                raise
            # Whoever waits for a result gives up a hint each time: to connect anew for it costs 2 ms.
            self._clear(wire)
            raise
        except BaseException:
            self._drop(wire)
            raise
        self._give(wire)
        return reply

    def _clear(self, wire: Wire) -> None:
        """Read the reply that nobody waits for any more; only then may the connection be used again.

        Until then it has the place of its caller, who leaves and lets nobody in: else each that is cancelled
        would make room for one more connection.
        """
        if self._closed or not wire.owes:
            self._give(wire)
            return
        self._inside += 1
        task = asyncio.ensure_future(self._read_away(wire))
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    async def _read_away(self, wire: Wire) -> None:
        try:
            with suppress(RedisError):
                await wire.owed(REPLY)
        except asyncio.CancelledError:
            self._drop(wire)
            raise
        else:
            self._give(wire)
        finally:
            self._leave()

    def _give(self, wire: Wire) -> None:
        if self._closed:
            self._drop(wire)
        else:
            self._idle.append((wire, time.monotonic()))

    def _drop(self, wire: Wire) -> None:
        wire.close()
        if not wire.gone.done():
            self._going.add(wire)
            wire.gone.add_done_callback(lambda _: self._going.discard(wire))

    async def _take(self) -> Wire:
        if self._idle and time.monotonic() - self._idle[-1][1] > IDLE:
            # What the server closed meanwhile, a turn of the loop will tell. Whoever is cancelled in it
            # has taken none yet.
            await asyncio.sleep(0)
        if self._closed:
            raise NotRunning(f"{self.place} was closed")
        while self._idle:
            wire, _ = self._idle.pop()
            if wire.is_open:
                return wire
            self._drop(wire)
        return await self.connect()

    async def connect(self, pauses: tuple[float, ...] = PAUSES) -> Wire:
        """Return a new connection, trying again for a while. Raises StorageUnavailable."""
        last, tries, began = "", 0, time.monotonic()
        for pause in pauses:
            await asyncio.sleep(pause)
            connection = self._make()
            try:
                async with asyncio.timeout(GREETING):
                    await connection.connect()  # type: ignore[no-untyped-call]
                return Wire(connection)
            except LOST as error:
                last = _reason(error, self.place)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            await connection.disconnect(nowait=True)
            tries += 1
            if time.monotonic() - began > GREETING:
                break  # it hangs: to hang on longer is of no use
        raise StorageUnavailable(
            f"cannot reach {self.place}: {last}; tried {tries} times in {time.monotonic() - began:.1f} s"
        )

    async def close(self) -> None:
        """Close what is idle; what is in use is closed by whoever uses it."""
        self._closed = True
        if self._clearing:
            await asyncio.wait(self._clearing, timeout=GREETING)
        idle, self._idle = self._idle, []
        # A loop that ends with a socket half closed complains of it.
        await asyncio.gather(*(wire.closed() for wire in {*self._going, *(wire for wire, _ in idle)}))


def _reason(error: BaseException, place: str) -> str:
    """Return why it cannot be reached. Raises StorageUnavailable when trying again is of no use."""
    if isinstance(error, UNWELCOME):
        raise refusal(error, place) from None
    return str(error) or "it does not answer"
