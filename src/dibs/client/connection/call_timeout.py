"""The deadline of calls to a storage, and the error after it: StorageBusy or OutcomeUnknown.

`CallTimeout` makes the errors. `BoundedStorage` gives each verb of a storage a deadline; the coalesced verbs
have their own deadlines (coalescing.py).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, Protocol, cast

from attrs import frozen

from dibs.client.options.arguments import Seconds, duration_seconds
from dibs.errors import DibsError, OutcomeUnknown, Refused, StorageBusy
from dibs.storage.protocol import Storage
from dibs.storage.unsent import mark_unsent, unsent_wait

#: Seconds of the deadline of a call, if the app sets no other.
DEFAULT_CALL_TIMEOUT: Final = 30.0
#: Seconds that a storage waits for a lock in the first attempt, for a call or a batch of any size.
LOCK_WAIT: Final = 0.1
#: Most attempts for locked ids at the same time. Each takes a connection of the storage.
MAX_ATTEMPTS: Final = 3
#: The part of a deadline for which the server of a storage waits for a lock. The rest is for its answer.
LOCK_SHARE: Final = 0.9

_READS: Final = frozenset(("get", "list", "split", "counts", "queues", "events", "export"))
_WRITES: Final = frozenset(
    [
        "enqueue",
        "settle",
        "finish",
        "renew",
        "drop",
        "report",
        "cancel",
        "amend",
        "retry_failed",
        "forget",
        "configure",
        "prune",
        "import_",
    ]
)


def check_call_timeout(call_timeout: Seconds | None) -> float | None:
    """Return the deadline in seconds, None for no limit. Raises Refused if it is no duration above 0."""
    if call_timeout is None:
        return None
    seconds = duration_seconds("call_timeout", call_timeout)
    if seconds <= 0:
        raise Refused(
            f"call_timeout is {call_timeout!r}; it must be above 0 seconds, or None for no limit",
            field="call_timeout",
        )
    return seconds


class LockWaits(Protocol):
    """The optional method of a storage whose verbs can wait for a lock of an open transaction."""

    def limit_lock_waits(self, seconds: float) -> Storage:
        """Return the same storage with verbs that raise StorageBusy after `seconds` at a lock."""
        ...


def with_lock_waits(storage: Storage, seconds: float) -> Storage | None:
    """Return the storage with limited waits for locks; None if it has no such limit."""
    # Looked up in the class. A wrapper with `__getattr__` would return the method of the storage inside it,
    # and the calls would bypass the wrapper.
    if not hasattr(type(storage), "limit_lock_waits"):
        return None
    return cast("LockWaits", storage).limit_lock_waits(seconds)


@frozen
class CallTimeout:
    """The deadline of the calls of one verb: its seconds, None for no limit, and the names for messages."""

    seconds: float | None = None
    #: The verb and its queue, as in "enqueue to queue 'mail'".
    label: str = "the call"
    url: str = "the storage"

    def unsent_error(self, waits_for: str) -> StorageBusy:
        """Return the error of a call that was not sent, or that the storage surely did not apply."""
        return StorageBusy(
            f"{self.url}: {self.label} had no answer within {self.seconds:g} s, and nothing was written; it "
            f"waited for {waits_for}. Repeat it later",
            waits_for=waits_for,
        )

    def unanswered_error(self) -> OutcomeUnknown:
        """Return the error of a call that was sent, and that may have taken effect."""
        return OutcomeUnknown(
            f"{self.url}: {self.label} was sent and had no answer within {self.seconds:g} s, so it may or "
            "may not take effect; read the state of the job, or repeat it with the same id or request_key"
        )

    def cancelled_error(self, error: BaseException | None, *, read_only: bool) -> DibsError:
        """Return the error of a call that was cancelled at its deadline with `error`."""
        waits_for = unsent_wait(error)
        if waits_for is None and not read_only:
            return self.unanswered_error()
        return self.unsent_error(waits_for or "the reply of the storage")


class BoundedStorage:
    """A storage whose verbs, except `wait`, end at a deadline.

    It forwards all other names to the storage, so it serves wherever a Storage is expected.
    """

    def __init__(self, storage: Storage, seconds: float) -> None:
        self._storage = storage
        self._seconds = seconds
        #: Limits the second attempts at the same time, because each holds a connection while it waits.
        self._attempts = asyncio.Semaphore(MAX_ATTEMPTS)

    @classmethod
    def of(cls, storage: Storage, seconds: float | None) -> Storage:
        """Return the storage with a deadline of `seconds` for each verb; unchanged if `seconds` is None."""
        return storage if seconds is None else cast("Storage", cls(storage, seconds))

    def __getattr__(self, name: str) -> Any:
        if name in _READS or name in _WRITES:
            return partial(self._call, name)
        return getattr(self._storage, name)

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                limited = with_lock_waits(self._storage, LOCK_WAIT)
                try:
                    return await getattr(limited or self._storage, name)(*args, **kwargs)
                except StorageBusy as error:
                    # A read waits for no lock of another transaction. Its server has ended the statement.
                    if limited is None or name in _READS:
                        raise
                    return await self._wait_for_lock(limit, error, name, *args, **kwargs)
        except TimeoutError as error:
            if not limit.expired():
                raise
            timeout = CallTimeout(self._seconds, name, self._storage.url)
            raise timeout.cancelled_error(error.__cause__, read_only=name in _READS) from None

    async def _wait_for_lock(
        self, limit: asyncio.Timeout, busy: StorageBusy, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Repeat a call that met a lock, and wait for the lock until shortly before the deadline."""
        try:
            await self._attempts.acquire()
        except asyncio.CancelledError as error:
            mark_unsent(error, busy.waits_for)
            raise
        try:
            left = (limit.when() or 0.0) - asyncio.get_running_loop().time()
            patient = with_lock_waits(self._storage, left * LOCK_SHARE)
            return await getattr(patient, name)(*args, **kwargs)
        finally:
            self._attempts.release()


async def open_within(storage: Storage, seconds: float | None) -> Storage:
    """Open a storage. Raise StorageBusy if it is not open after `seconds`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await storage.__aenter__()
    except TimeoutError:
        if not limit.expired():
            raise
        timeout = CallTimeout(seconds, "opening the storage", storage.url)
        raise timeout.unsent_error("the answers of the server to a new connection") from None
