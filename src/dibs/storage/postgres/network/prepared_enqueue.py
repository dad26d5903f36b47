"""The prepared statement of an enqueue of one job, sent without a cursor of psycopg.

A cursor takes more CPU time than the rest of such a call: it looks up the type of each parameter and row.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from attrs import define, field
from psycopg import errors, generators, waiting
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from dibs.storage.postgres.network.connections import INTERVAL, PooledConnection

#: The name of the statement in each session that has it.
NAME: Final = b"dibs_enqueue_one"
#: The formats of queue, lock_timeout, id and payload. A payload as text would need escapes.
_FORMATS: Final = (Format.TEXT, Format.TEXT, Format.TEXT, Format.BINARY)
#: Uses of a connection for single enqueues after which it gets the statement, so that a program that enqueues
#: only one job sends no further request.
PREPARE_AFTER: Final = 2

#: Called once with the columns of the answer, or with the error of psycopg.
OnAnswer = Callable[[Sequence[bytes | None] | Exception], None]
#: The bits of psycopg's wait states.
_READ, _WRITE = int(waiting.Ready.R), int(waiting.Ready.W)


def send(pgconn: PGconn, values: Sequence[bytes | None]) -> PQGen[list[PGresult]]:
    """Send the statement, and return psycopg's generator for its results."""
    pgconn.send_query_prepared(NAME, values, _FORMATS, Format.BINARY)
    steps: PQGen[list[PGresult]] = generators.execute(pgconn)
    return steps


def read_answer(results: Sequence[PGresult]) -> Sequence[bytes | None]:
    """Return the columns of the row, in the binary format. Raise the error of the server."""
    result = results[-1]
    if result.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result)
    return [result.get_value(0, column) for column in range(result.nfields)]


def run(
    connection: PooledConnection, values: Sequence[bytes | None], seconds: float | None
) -> Sequence[bytes | None]:
    """Run the statement on this thread. Raise TimeoutError after `seconds`, and psycopg's errors.

    None: wait until the server answers or the connection is lost, as the event loop does.
    """
    pgconn = connection.pgconn
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    return read_answer(waiting.wait(_until(send(pgconn, values), deadline), pgconn.socket, INTERVAL))


def _until(steps: PQGen[list[PGresult]], deadline: float) -> PQGen[list[PGresult]]:
    """Yield the waits of `steps`. Raise TimeoutError after the deadline, which is checked every INTERVAL."""
    try:
        wait = next(steps)
        while True:
            ready = yield wait
            if not ready and time.monotonic() > deadline:
                raise TimeoutError
            wait = steps.send(ready)
    except StopIteration as end:
        results: list[PGresult] = end.value
        return results


@define(eq=False)
class EnqueueInFlight:
    """The statement in flight on a connection of an event loop. It takes no task and no future."""

    _connection: PooledConnection
    _loop: asyncio.AbstractEventLoop
    _on_answer: OnAnswer
    _steps: PQGen[list[PGresult]] = field(init=False)
    #: The file descriptor of the connection, which has none any more after it is lost.
    _socket: int = field(default=-1, init=False)
    #: The state of the socket that the event loop waits for, 0 for none.
    _watched: int = field(default=0, init=False)
    _has_ended: bool = field(default=False, init=False)

    def send(self, values: Sequence[bytes | None]) -> None:
        """Send the statement. `on_answer` is called later, also if the connection is lost already."""
        try:
            self._socket = self._connection.pgconn.socket
            self._steps = send(self._connection.pgconn, values)
        except (psycopg.Error, OSError) as error:
            self._loop.call_soon(self._end, error)
            return
        self._advance(None)

    def abort(self) -> None:
        """Close the connection, and call `on_answer` with an error: the answer would come too late."""
        self._watch(0)
        self._connection.pgconn.finish()
        self._end(psycopg.OperationalError("the storage was closed"))

    def _end(self, answer: Sequence[bytes | None] | Exception) -> None:
        # A statement whose connection was lost may be aborted before its end runs.
        if not self._has_ended:
            self._has_ended = True
            self._on_answer(answer)

    def _advance(self, ready: Any) -> None:
        answer: Sequence[bytes | None] | Exception
        try:
            self._watch(int(self._steps.send(ready)))
            return
        except StopIteration as end:
            results = end.value
        except (psycopg.Error, OSError) as error:
            results = error
        self._watch(0)
        try:
            answer = results if isinstance(results, Exception) else read_answer(results)
        except psycopg.Error as error:
            answer = error
        if ready is None:
            self._loop.call_soon(self._end, answer)  # the sender does not wait for the answer yet
        else:
            self._end(answer)

    def _watch(self, wanted: int) -> None:
        """Call `_advance` when the socket is ready for `wanted`, in place of what was registered before."""
        if wanted == self._watched:
            return
        socket, loop, changed = self._socket, self._loop, wanted ^ self._watched
        if changed & _READ:
            if wanted & _READ:
                loop.add_reader(socket, self._advance, waiting.Ready.R)
            else:
                loop.remove_reader(socket)
        if changed & _WRITE:
            if wanted & _WRITE:
                loop.add_writer(socket, self._advance, waiting.Ready.W)
            else:
                loop.remove_writer(socket)
        self._watched = wanted
