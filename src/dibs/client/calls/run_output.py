"""The output that a run writes: chunks, which are sent together, in order.

A chunk is one byte for its kind and a value, encoded by the serde of the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final, Literal

from dibs.client.options.serde import Serde
from dibs.errors import DibsError, LeaseLost, Refused
from dibs.model.error_text import summarize_exception
from dibs.model.limits import CHUNK_OVERHEAD, KIB, LIMITS

logger: Final = logging.getLogger("dibs.worker")

ChunkKind = Literal["value", "log"]
#: The first byte of a chunk, by its kind.
MARKS: Final[dict[ChunkKind, bytes]] = {"value": b"v", "log": b"l"}
KINDS: Final[dict[bytes, ChunkKind]] = {mark: kind for kind, mark in MARKS.items()}
#: Seconds for which a chunk may wait for others, and the bytes at which chunks are sent at once.
LONGEST_BUFFERED: Final = 0.05
MOST_BUFFERED: Final = 32 * KIB
#: Seconds that the last chunks of a run may take. The end of the run is then settled without them.
LAST_SECONDS: Final = 5.0


def encode_chunk(kind: ChunkKind, value: object, serde: Serde) -> bytes:
    """Return a value as a chunk. Raises Refused for one that is too large, and the errors of the serde."""
    chunk = MARKS[kind] + serde.encode(value)
    if len(chunk) > LIMITS.chunk:
        raise Refused(
            f"value has {len(chunk):,} bytes when it is encoded; a chunk of output takes {LIMITS.chunk:,}; "
            "write it in parts, or store it elsewhere and write its address",
            field="value",
        )
    return chunk


def split_chunk(chunk: bytes) -> tuple[ChunkKind, bytes]:
    """Return the kind of a chunk, and its value as the serde has encoded it."""
    return KINDS.get(chunk[:1], "value"), chunk[1:]


class RunOutput:
    """The chunks of a run that are not sent yet. It belongs to the event loop of the worker.

    `send` reports chunks to the storage, and returns False if the run has lost its lease. `note` makes a
    chunk that says how many chunks are left out before it.
    """

    def __init__(
        self, label: str, send: Callable[[Sequence[bytes]], Awaitable[bool]], note: Callable[[int], bytes]
    ) -> None:
        self._label, self._send, self._note = label, send, note
        self._left_out = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._error: DibsError | None = None

    @property
    def is_sent(self) -> bool:
        is_sending = self._sending is not None and not self._sending.done()
        return not (self._chunks or self._left_out or is_sending)

    async def write(self, chunk: bytes) -> None:
        """Add a chunk, and wait if many are to be sent. Raises the error with which sending has ended."""
        if self._error is not None:
            raise self._error
        self._append(chunk)
        if self._size >= MOST_BUFFERED:
            await self._send_all()

    def add(self, chunk: bytes) -> None:
        """Add a chunk without a wait. Leave it out if more is to be sent than the storage keeps of an id."""
        if self._error is not None:
            return
        if self._size + len(chunk) + CHUNK_OVERHEAD > LIMITS.output:
            self._left_out += 1
        else:
            self._append(chunk)

    def _append(self, chunk: bytes) -> None:
        self._note_left_out()
        self._chunks.append(chunk)
        self._size += len(chunk) + CHUNK_OVERHEAD
        if self._size >= MOST_BUFFERED:
            self._start_sending()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_BUFFERED, self._start_sending)

    def _note_left_out(self) -> None:
        if self._left_out:
            number, self._left_out = self._left_out, 0
            self._append(self._note(number))

    async def finish(self) -> None:
        """Send the last chunks. Log an error: the handler has ended, and its result counts."""
        self._note_left_out()
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._send_all()
        except LeaseLost:
            return  # the settlement finds it, too
        except (DibsError, TimeoutError) as error:
            reason = summarize_exception(error)
            logger.warning("%s: the end of its output was not stored: %s", self._label, reason)

    def _start_sending(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None or self._sending.done():
            # In an empty context: what a driver logs there is no record of the run.
            self._sending = asyncio.get_running_loop().create_task(self._send_chunks(), context=Context())
        return self._sending

    async def _send_all(self) -> None:
        # A handler that is cancelled here loses no chunk: the task goes on.
        await asyncio.shield(self._start_sending())
        if self._error is not None:
            raise self._error

    async def _send_chunks(self) -> None:
        """Send until no chunk is left, one report after the other, so that their order stays."""
        while self._chunks:
            chunks = self._take_chunks()
            try:
                if not await self._send(chunks):
                    raise LeaseLost(f"{self._label}: the lease has ended, so the output was not stored")
            except DibsError as error:
                self._error, self._chunks, self._size = error, [], 0

    def _take_chunks(self) -> list[bytes]:
        """Return the chunks of the next report, at least one, and remove them."""
        size = number = 0
        while number < len(self._chunks) and size < MOST_BUFFERED:
            size += len(self._chunks[number]) + CHUNK_OVERHEAD
            number += 1
        chunks, self._chunks = self._chunks[:number], self._chunks[number:]
        self._size -= size
        return chunks
