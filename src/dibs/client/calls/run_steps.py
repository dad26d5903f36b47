"""The steps of a run: parts of a handler whose results a later run of the same job gets without a call.

The results are stored together in the memo of the job, under the fence of the run. A memo is MessagePack:
{"version": 1, "steps": {name: result}}. The serde of the handler encodes each result.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.client.options.serde import Serde
from dibs.errors import BadHandler, LeaseLost, PermanentError, Refused
from dibs.model.check_values import check_text
from dibs.model.job import Job
from dibs.model.limits import LIMITS

#: The version of the format of a memo.
MEMO_VERSION: Final = 1
#: Longest name of a step, in bytes of UTF-8.
NAME_BYTES: Final = 128


class StepMemo(Struct):
    """The content of a memo."""

    version: int
    steps: dict[str, bytes]


class _Header(Struct):
    version: int


def encode_memo(results: Mapping[str, bytes]) -> bytes:
    """Return the memo with these results, each encoded, by the name of its step."""
    return msgspec.msgpack.encode(StepMemo(version=MEMO_VERSION, steps=dict(results)))


def decode_memo(memo: bytes | None) -> dict[str, bytes]:
    """Return the encoded results of a memo by the names of their steps; {} without a memo.

    Raises PayloadMismatch for another format: a worker with the code that fits tries the job again.
    """
    if not memo:
        return {}
    try:
        version = msgspec.msgpack.decode(memo, type=_Header).version
        if version == MEMO_VERSION:
            return msgspec.msgpack.decode(memo, type=StepMemo).steps
    except ValueError as error:
        raise PayloadMismatch(f"the memo of the job was not written by job.step: {error}") from error
    raise PayloadMismatch(
        f"the memo of the job has version {version}, and this dibs reads version {MEMO_VERSION}; run the job "
        "on a worker with a newer dibs"
    )


def step_key(queue: str, job: Job, name: str) -> str:
    """Return the idempotency key of a step: a digest of queue, id, `first`, payload and name, 32 hex digits.

    `first` is the revision of the oldest enqueue that the job covers. It stays the same in all runs of the
    job, and no other job of the id has it. Another payload is other work, so it has other keys.
    """
    import hashlib  # noqa: PLC0415 - hashlib loads OpenSSL, which only this function needs

    check_text("name", name, NAME_BYTES)
    parts = msgspec.msgpack.encode((queue, job.id, job.first, job.data.payload, name))
    return hashlib.blake2b(parts, digest_size=16).hexdigest()


#: Seconds for which the result of a step waits until the transaction of another step has ended.
OPEN_SECONDS: Final = 10.0
#: Seconds between two checks whether such a transaction has ended.
LOOK_SECONDS: Final = 0.01


class StepRefused(Refused, PermanentError):
    """A step broke a rule. The job fails without a retry, which would break the rule again."""


class StoreMemo(Protocol):
    """Stores a memo under the fence of the run. Returns False if the run no longer holds its job."""

    async def __call__(self, memo: bytes) -> bool: ...


class StepsInTransactions(Protocol):
    """Stores memos in transactions of the caller; see dibs.client.connection.transactions."""

    async def report(self, connection: Any, memo: bytes) -> bool: ...
    @property
    def is_open(self) -> bool: ...
    async def read_memo(self) -> bytes | None: ...
    def wait(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None: ...


class Steps:
    """The steps of one run. Several steps may run at the same time."""

    def __init__(
        self,
        label: str,
        job: Job,
        serde: Serde,
        store: StoreMemo,
        transactions: StepsInTransactions | None = None,
    ) -> None:
        #: The queue and id, for error messages.
        self._label = label
        self._job = job
        self._serde = serde
        self._store_memo = store
        #: None if the storage cannot store a step in a transaction of the caller.
        self.transactions = transactions
        #: The result of the last step that was stored in a transaction, until its end is known.
        self._joined: dict[str, bytes] = {}
        #: The encoded results of all steps that have ended, by name; None until the memo was decoded.
        self._known: dict[str, bytes] | None = None
        #: The names whose result is in the memo of the storage.
        self._stored: set[str] = set()
        #: The names of the steps that this run has begun, without those that raised an error.
        self._begun: set[str] = set()
        #: One report at a time: an older memo must not replace a newer one.
        self._lock = asyncio.Lock()
        self._lost = False

    def begin(self, name: str, function: Callable[..., Any], connection: Any = None) -> Step:
        """Return the step of a call of `job.step`.

        Raises StepRefused for a bad name or one that this run has used, LeaseLost after a report was refused.
        """
        try:
            check_text("name", name, NAME_BYTES)
        except Refused as refused:
            raise StepRefused(f"a step of {self._label}: {refused}", field="name") from None
        if connection is not None and self.transactions is None:
            raise StepRefused(
                f"step {name!r} of {self._label} has a connection, but this run cannot store a step in your "
                'transaction: use a Postgres storage, and a handler without executor="process"',
                field="connection",
            )
        if self._lost:
            raise self._lease_lost(name)
        if name in self._begun:
            raise StepRefused(
                f"step {name!r} of {self._label} was used before in this run; give each step its own name",
                field="name",
            )
        self._begun.add(name)
        return Step(self, name, function, self._serde, self._results.get(name), connection)

    def stored(self, name: str) -> bytes | None:
        """Return the encoded result of a step that has ended; None if there is none."""
        return self._results.get(name)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the steps that have ended and whose names begin with `prefix`."""
        return [name for name in self._results if name.startswith(prefix)]

    def forget(self, name: str) -> None:
        """Allow the name of a step again: its function has raised an error."""
        self._begun.discard(name)

    @property
    def has_open_step(self) -> bool:
        """True if the last step was stored in a transaction whose end is not known."""
        return bool(self._joined)

    async def settle_joined(self, *, seconds: float = 0.0) -> None:
        """Find out if the transaction of the last step was committed. Runs on the worker's loop.

        Raises StepRefused if the transaction is still open after `seconds`. A step whose transaction was
        rolled back has no result, and its name may be used again.
        """
        deadline = time.monotonic() + seconds
        while self._joined and self.transactions is not None:
            # Read before the memo: a transaction that ended before the memo was read shows in the memo.
            is_open = self.transactions.is_open
            committed = decode_memo(await self.transactions.read_memo())
            if self._joined.keys() <= committed.keys():
                self._results.update(self._joined)
                self._stored.update(self._joined)
                self._joined = {}
            elif not is_open:
                self._begun -= self._joined.keys()
                self._joined = {}
            elif time.monotonic() < deadline:
                await asyncio.sleep(LOOK_SECONDS)
            else:
                [name] = self._joined
                raise StepRefused(
                    f"the transaction of step {name!r} of {self._label} is still open; end it before the "
                    "next step, and use one transaction for each step",
                    field="connection",
                )

    async def store_joined(self, name: str, raw: bytes, connection: Any) -> None:
        """Store the result of a step in the transaction of `connection`. Runs on the worker's loop.

        Raises the errors of `store`, and those of the transaction.
        """
        assert self.transactions is not None, "bug in dibs: begin() did not check `connection`"  # noqa: S101
        self._check_size(name, raw)
        async with self._lock:
            await self.settle_joined(seconds=OPEN_SECONDS)
            memo = encode_memo({**self._results, name: raw})
            self._lost = self._lost or not await self.transactions.report(connection, memo)
            if self._lost:
                raise self._lease_lost(name)
            self._joined = {name: raw}

    async def store(self, name: str, raw: bytes) -> None:
        """Store the result of a step, with those of all steps that have ended. Runs on the worker's loop.

        Raises StepRefused if the results take more than the limit of a memo, LeaseLost if another run may
        hold the job, and the errors of `Storage.report`.
        """
        self._check_size(name, raw)
        # It stays if the report fails: the storage may have stored it, and a later report must not remove it.
        self._results[name] = raw
        async with self._lock:
            if name in self._stored:  # the report of another step has stored it
                return
            await self.settle_joined(seconds=OPEN_SECONDS)
            included = dict(self._results)
            self._lost = self._lost or not await self._store_memo(encode_memo(included))
            if self._lost:
                raise self._lease_lost(name)
            self._stored.update(included)

    @property
    def _results(self) -> dict[str, bytes]:
        if self._known is None:
            self._known = decode_memo(self._job.data.memo)
            self._stored.update(self._known)
        return self._known

    def _check_size(self, name: str, raw: bytes) -> None:
        size = len(encode_memo({**self._results, name: raw}))
        if size > LIMITS.memo:
            raise StepRefused(
                f"the results of the steps of {self._label} take {size:,} bytes with that of {name!r} "
                f"({len(raw):,} bytes), and at most {LIMITS.memo:,} are stored; return less, for example the "
                "name of a file",
                field="result",
            )

    def _lease_lost(self, name: str) -> LeaseLost:
        return LeaseLost(
            f"{self._label}: the lease has ended, so step {name!r} was refused; the job may run elsewhere"
        )


class Step:
    """One call of `job.step`: its name, its stored result, and the conversion of results to bytes and back.

    The serde is that of the handler. Results are converted to the return type of the function.
    """

    def __init__(
        self,
        steps: Steps,
        name: str,
        function: Callable[..., Any],
        serde: Serde,
        stored: bytes | None,
        connection: Any,
    ) -> None:
        self._steps = steps
        #: The connection whose transaction stores the step, or None.
        self._connection = connection
        self._name = name
        self._serde = serde
        self._call = _known_signature(function)
        #: The encoded result; None until the function has returned.
        self.raw = stored
        #: True if an earlier run has stored the result, so that the function must not be called.
        self.is_stored: bool = stored is not None

    def stored_result(self) -> Any:
        """Return the stored result. Raises PayloadMismatch if it does not fit the function's return type."""
        try:
            return self._decode()
        except ValueError as error:
            raise PayloadMismatch(
                f"the stored result of step {self._name!r} does not fit its function's return type: {error}"
            ) from error

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Allow the name of the step again if the block, the call of its function, raises an error."""
        try:
            yield
        except BaseException:
            self._steps.forget(self._name)
            raise

    def take_result(self, value: Any) -> Any:
        """Encode what the function returned, and return it as later runs get it. Raises StepRefused."""
        try:
            self.raw = self._serde.encode(value if self._call is None else self._call.dump_result(value))
            return self._decode()
        except (ValueError, TypeError) as error:
            kind = type(value).__qualname__
            raise StepRefused(
                f"step {self._name!r} returned a {kind}, which cannot be stored: {error}", field="result"
            ) from error

    async def store(self) -> None:
        """Store the result; see Steps.store."""
        assert self.raw is not None, "bug in dibs: a step was stored before its function"  # noqa: S101
        if self._connection is None:
            await self._steps.store(self._name, self.raw)
            return
        try:
            await self._steps.store_joined(self._name, self.raw, self._connection)
        except BaseException:  # the transaction will be rolled back
            self._steps.forget(self._name)
            raise

    def _decode(self) -> Any:
        assert self.raw is not None, "bug in dibs: the result of a step was read before its function"  # noqa: S101
        if self._call is None:
            return self._serde.decode(self.raw)
        return self._call.decode_result(self._serde, self.raw)


def _known_signature(function: Callable[..., Any]) -> CallSignature | None:
    """Return the signature of a function; None if its type hints are not known, as those of C functions."""
    try:
        call = CallSignature(function)
        _ = call.return_type  # reads the type hints
    except (TypeError, ValueError, BadHandler, AttributeError):
        return None
    return call


async def call_function(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call the function of a step in an `async def` handler. A `def` function runs on a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await asyncio.to_thread(function, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def call_blocking(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loop: asyncio.AbstractEventLoop,
) -> Any:
    """Call the function of a step in a `def` handler. An `async def` function runs on `loop`."""
    value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    return asyncio.run_coroutine_threadsafe(_await(value), loop).result()


async def _await(value: Awaitable[Any]) -> Any:
    return await value
