"""Waiting for a storage that is unavailable while a worker starts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dibs.client.calls.error_info import summarize_exception
from dibs.errors import NotRunning, OutcomeUnknown, StorageUnavailable

logger = logging.getLogger("dibs.worker")

T = TypeVar("T")

#: Seconds between attempts while the storage is unavailable: the first pause, then doubled, and the longest.
RETRY_PAUSE: Final = (0.1, 2.0)
#: Parts of the messages by which Redis and Postgres say that they are starting.
STARTING: Final = ("is loading the dataset", "is starting up", "not yet accepting connections")


def is_unavailable(error: Exception) -> bool:
    """Return whether an open storage raises this error while its server is away, or for a lost reply."""
    return isinstance(error, StorageUnavailable | OutcomeUnknown)


def is_starting(error: Exception) -> bool:
    """Return whether a server answers that it is starting. A wrong address is another error."""
    return isinstance(error, StorageUnavailable) and any(part in str(error) for part in STARTING)


async def wait_until_available(
    call: Callable[[], Awaitable[T]], what: str, passes: Callable[[Exception], bool] = is_unavailable
) -> T:
    """Return the result of `call`, and repeat it after an error that `passes`. It must be safe to repeat.

    Log each error with the time of the first one. `what` names the missing result, for example "no lease".
    """
    pause, since = RETRY_PAUSE[0], ""
    while True:
        try:
            return await call()
        except Exception as error:
            if isinstance(error, NotRunning) or not passes(error):
                raise
            since = since or time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            logger.warning(
                "%s from the storage since %s, trying again: %s", what, since, summarize_exception(error)
            )
        await asyncio.sleep(pause)
        pause = min(pause * 2, RETRY_PAUSE[1])
