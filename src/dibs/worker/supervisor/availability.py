"""Waiting for a storage that is unavailable while a worker starts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dibs.errors import NotRunning, OutcomeUnknown, StorageBusy, StorageUnavailable
from dibs.model.error_text import summarize_exception

logger = logging.getLogger("dibs.worker")

T = TypeVar("T")

#: Seconds between attempts while the storage is unavailable: the first pause, then doubled, and the longest.
RETRY_PAUSE: Final = (0.1, 2.0)


def is_unavailable(error: Exception) -> bool:
    """Return whether an open storage raises this error while its server is away, or for a lost reply."""
    return isinstance(error, StorageUnavailable | OutcomeUnknown)


def may_open_later(error: Exception) -> bool:
    """Return whether an attempt to open a storage may succeed later: its server does not answer, or starts.

    A wrong password or a server that may evict jobs stays wrong until somebody corrects it.
    """
    return getattr(error, "passes", False) or isinstance(error, StorageBusy | OutcomeUnknown)


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
