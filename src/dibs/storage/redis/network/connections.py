"""A pool of connections to one server. Each connection carries one request at a time.

If a caller is cancelled, the pool first reads the reply to its request, or closes the connection. So no
caller ever receives the reply to a request of another caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from attrs import define, field
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dibs.errors import NotRunning, OutcomeUnknown, StorageUnavailable
from dibs.model.error_text import summarize_exception
from dibs.storage.redis.network.driver import AbstractConnection
from dibs.storage.redis.network.errors import AUTHENTICATION, TRANSIENT, is_read_only, translate_error
from dibs.storage.redis.network.wire import WireConnection
from dibs.storage.unsent import mark_sent, mark_unsent

K = TypeVar("K")
T = TypeVar("T")

#: Seconds before each attempt to connect. In total they bridge a restart or a failover of about a second.
CONNECT_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
#: Seconds that one attempt to connect may take, with TLS and authentication.
CONNECT_TIMEOUT: Final = 5.0
#: Seconds after which an idle connection is checked before its next request.
IDLE_CHECK: Final = 0.5
#: Seconds until a reply counts as lost. The scripts of dibs take at most some milliseconds.
REPLY_TIMEOUT: Final = 10.0

#: Error replies after which the pool closes the connection, so that the next request opens a new one.
DISCARDING: Final = (*TRANSIENT, *AUTHENTICATION)
LOST: Final = (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError)


@define(eq=False)
class RedisConnections:
    """A pool of connections to one server. Error messages name the server by `url`, which has no password."""

    _new_connection: Callable[[], AbstractConnection]
    url: str
    #: Limit of the requests in flight.
    _max_in_flight: int
    _idle: list[tuple[WireConnection, float]] = field(factory=list, init=False)
    #: Requests in flight, including those whose caller was cancelled.
    _in_flight: int = field(default=0, init=False)
    #: Callers that wait until fewer requests are in flight, in their order.
    _waiting: deque[asyncio.Future[None]] = field(factory=deque, init=False)
    _closed: bool = field(default=False, init=False)
    #: Tasks that read replies to cancelled callers.
    _draining: set[asyncio.Task[None]] = field(factory=set, init=False)
    #: Connections whose sockets are not yet closed.
    _closing: set[WireConnection] = field(factory=set, init=False)

    async def call(
        self,
        *command: Any,
        repeatable: bool = False,
        asking: bool = False,
        ahead: Sequence[tuple[Any, ...]] = (),
    ) -> Any:
        """Send one command and return its reply. A `repeatable` command is sent again if its reply is lost.

        The commands `ahead` are sent in the same request. With `asking`, ASKING precedes each command.
        Raises redis-py's ResponseError for an error reply, StorageUnavailable if the command was not sent,
        OutcomeUnknown if the reply was lost.
        """
        if self._in_flight < self._max_in_flight:
            self._in_flight += 1
        else:
            await self._wait_for_slot()
        commands = [*ahead, command]
        if asking:
            commands = [part for one in commands for part in (("ASKING",), one)]
        try:
            return (await self._send(commands))[-1]
        except OutcomeUnknown:
            if not repeatable:
                raise
            return await self._send_again(commands)
        finally:
            self._free_slot()

    def start(self, packed: bytes, on_reply: Callable[[Any], None], *, earlier: int = 0) -> bool:
        """Send a packed command, behind `earlier` others, now. Return False if not sent.

        It is sent if a connection is idle, was used in the last IDLE_CHECK seconds, and is open. `on_reply`
        gets the reply when it arrives, redis-py's error for an error reply, or OutcomeUnknown; it must raise
        no error. A request takes no task and no future here, and its caller resumes an iteration of the loop
        earlier.
        """
        if self._closed or not self._idle or self._in_flight >= self._max_in_flight:
            return False
        connection, since = self._idle[-1]
        if not connection.is_open or time.monotonic() - since > IDLE_CHECK:
            return False
        self._idle.pop()
        self._in_flight += 1
        connection.start_request(
            packed, REPLY_TIMEOUT, partial(self._end_started, connection, on_reply), earlier=earlier
        )
        return True

    def _end_started(self, connection: WireConnection, on_reply: Callable[[Any], None], reply: Any) -> None:
        # DISCARDING first: redis-py derives some of these error replies from its ConnectionError.
        if isinstance(reply, DISCARDING) or is_read_only(reply):
            self._discard(connection)
            self._discard_idle()
        elif isinstance(reply, LOST):
            self._discard(connection)
            reply = self._lost_reply_error(reply)
        else:
            self._release(connection)
        self._free_slot()
        on_reply(reply)

    def _lost_reply_error(self, error: BaseException) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"lost the reply of {self.url} to a command ({type(error).__name__}): it may have happened"
        )

    async def call_blocking(
        self, blocking: tuple[Any, ...], command: tuple[Any, ...], timeout: float
    ) -> list[Any]:
        """Send a command that blocks for up to `timeout` seconds, then `command`; return both replies.

        Blocking calls do not count as requests in flight. Raises the errors of `call`.
        """
        return await self._send([blocking, command], blocks=True, wait=timeout)

    async def _send_again(self, commands: list[tuple[Any, ...]]) -> Any:
        try:
            return (await self._send(commands))[-1]
        except OutcomeUnknown as error:
            raise StorageUnavailable(str(error), passes=True) from None
        except asyncio.CancelledError as error:
            mark_sent(error)
            raise

    # asyncio.Semaphore makes eight calls for a caller that need not wait; these two functions make two.

    async def _wait_for_slot(self) -> None:
        """Wait until fewer requests are in flight, in the order of the callers."""
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        try:
            await slot
        except asyncio.CancelledError as error:
            if not slot.cancelled():
                self._free_slot()  # this caller got the slot and was cancelled in the same turn of the loop
            mark_unsent(error, f"a connection: all {self._max_in_flight} are in use")
            raise

    def _free_slot(self) -> None:
        """End a request: hand its slot to the next waiting caller, or lower the count of requests in flight.

        Cancelled callers may raise the count above the limit; then only lower it.
        """
        while self._waiting and self._in_flight <= self._max_in_flight:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(None)
                return
        self._in_flight -= 1

    # Long, because each of its error branches decides whether the server may have run the command.
    async def _send(
        self,
        commands: list[tuple[Any, ...]],
        *,
        blocks: bool = False,
        wait: float = 0.0,
    ) -> list[Any]:
        timeout = wait + REPLY_TIMEOUT
        try:
            connection = await self._acquire()
        except asyncio.CancelledError as error:
            mark_unsent(error, f"a new connection to {self.url}")
            raise
        try:
            replies = (
                [await connection.request(commands[0], timeout)]
                if len(commands) == 1
                else await connection.request_in_order(commands, timeout)
            )
        except (*DISCARDING, ResponseError) as error:
            if isinstance(error, DISCARDING) or is_read_only(error):
                # After a failover another server may answer at the same address.
                self._discard(connection)
                self._discard_idle()
            else:
                self._release(connection)
            raise
        except LOST as error:
            self._discard(connection)
            raise self._lost_reply_error(error) from None
        except asyncio.CancelledError:
            if blocks:
                # A closed connection ends the blocking command, and the server does not run the second one.
                self._discard(connection)
                raise
            # Keep the connection: a new one costs 2 ms, and a caller that waits for a result cancels one
            # request per wake-up.
            self._drain(connection)
            raise
        except BaseException:
            self._discard(connection)
            raise
        self._release(connection)
        return replies

    def _drain(self, connection: WireConnection) -> None:
        """Read the reply to a cancelled caller in the background, and then put the connection back.

        The request counts as in flight until then. Otherwise each cancelled caller would allow one more
        connection.
        """
        if self._closed or not connection.has_pending_reply:
            self._release(connection)
            return
        self._in_flight += 1
        task = asyncio.ensure_future(self._read_and_release(connection))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def _read_and_release(self, connection: WireConnection) -> None:
        try:
            with suppress(RedisError):
                await connection.read_pending_reply(REPLY_TIMEOUT)
        except asyncio.CancelledError:
            self._discard(connection)
            raise
        except OSError:  # a reset connection raises the error of its socket
            self._discard(connection)
        else:
            self._release(connection)
        finally:
            self._free_slot()

    def _release(self, connection: WireConnection) -> None:
        if self._closed:
            self._discard(connection)
        else:
            self._idle.append((connection, time.monotonic()))

    def _discard(self, connection: WireConnection) -> None:
        connection.close()
        if not connection.socket_closed.done():
            self._closing.add(connection)
            connection.socket_closed.add_done_callback(lambda _: self._closing.discard(connection))

    def _discard_idle(self) -> None:
        while self._idle:
            self._discard(self._idle.pop()[0])

    async def _acquire(self) -> WireConnection:
        if self._idle and time.monotonic() - self._idle[-1][1] > IDLE_CHECK:
            # In one turn of the loop asyncio reports connections that the server has closed. The caller holds
            # no connection yet, so a cancellation here loses none.
            await asyncio.sleep(0)
        if self._closed:
            raise NotRunning(f"{self.url} was closed")
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.is_open:
                return connection
            self._discard(connection)
        return await self.connect()

    async def connect(self) -> WireConnection:
        """Return a new connection.

        Try once after each of CONNECT_PAUSES; raise StorageUnavailable if all attempts fail.
        """
        return await first_that_answers(
            [(None, self)], lambda _, pool: pool.connect_once(), self.url, CONNECT_PAUSES
        )

    async def connect_once(self) -> WireConnection:
        """Return a new connection. Raise one of LOST if the server does not answer."""
        connection = self._new_connection()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection.connect()  # type: ignore[no-untyped-call]
            return WireConnection(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    async def call_on_new_connection(self, *command: Any) -> Any:
        """Send one command on a new connection, and keep the connection for later requests.

        Raise one of LOST if the server does not answer, ResponseError for an error reply.
        """
        connection = await self.connect_once()
        try:
            reply = await connection.request(command, REPLY_TIMEOUT)
        except BaseException:
            self._discard(connection)
            raise
        self._release(connection)
        return reply

    async def try_commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any] | NoPermissionError:
        """Return what the server replies to each command in a transaction, which is then discarded.

        The reply is b"QUEUED" or an error. No command is executed. Return the error of a server that permits
        no transaction. Raise StorageUnavailable if the server does not answer, and redis-py's error for
        another error reply.
        """
        connection = await self.connect()
        try:
            # The commands are sent after this reply: without the transaction, the server would execute them.
            await connection.request(("MULTI",), REPLY_TIMEOUT)
            return (await connection.request_in_order([*commands, ("DISCARD",)], REPLY_TIMEOUT))[:-1]
        except NoPermissionError as error:
            return error
        except DISCARDING:
            raise
        except LOST as error:
            raise StorageUnavailable(
                f"lost the connection to {self.url}: {summarize_exception(error)}", passes=True
            ) from None
        finally:
            self._discard(connection)

    async def close(self) -> None:
        """Close idle connections now, and each busy one when its request ends."""
        self._closed = True
        if self._draining:
            await asyncio.wait(self._draining, timeout=CONNECT_TIMEOUT)
        idle, self._idle = self._idle, []
        # Wait for the sockets: an event loop that ends before they are closed logs a warning.
        await asyncio.gather(
            *(connection.aclose() for connection in {*self._closing, *(connection for connection, _ in idle)})
        )


async def first_that_answers(
    pools: Sequence[tuple[K, RedisConnections]],
    attempt: Callable[[K, RedisConnections], Awaitable[T]],
    url: str,
    pauses: tuple[float, ...],
) -> T:
    """Call `attempt` with each pair in `pools` until one call raises none of LOST, and return its result.

    Try all pairs after each pause in seconds. Raise StorageUnavailable, with `url`, if all attempts fail.
    """
    reason, attempts, started = "", 0, time.monotonic()
    for pause in pauses:
        await asyncio.sleep(pause)
        for key, pool in pools:
            try:
                return await attempt(key, pool)
            except LOST as error:
                reason = _describe_connect_error(error, url)
        attempts += 1
        if time.monotonic() - started > CONNECT_TIMEOUT:
            break  # the server accepts connections and does not answer: more attempts only take longer
    elapsed = time.monotonic() - started
    raise StorageUnavailable(
        f"cannot reach {url}: {reason}; tried {attempts} times in {elapsed:.1f} s", passes=True
    )


def _describe_connect_error(error: BaseException, url: str) -> str:
    """Return the reason why an attempt to connect failed, for a message.

    Raise StorageUnavailable at once for a wrong password, because another attempt cannot help.
    """
    if isinstance(error, AUTHENTICATION):
        raise translate_error(error, url) from None
    # redis-py adds the repr of each client of a Sentinel.
    return str(error).partition(" : <redis")[0] or "it does not answer"
