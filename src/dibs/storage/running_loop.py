"""The event loop of asyncio on this thread, and the error without one, for example under trio."""

from __future__ import annotations

import asyncio
import sys

from dibs.errors import ConfigurationError


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop, or None. Without a loop it takes a tenth of the time of an exception."""
    return asyncio._get_running_loop()  # noqa: SLF001 - in asyncio.__all__


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raise ConfigurationError without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise no_loop_error() from None


def no_loop_error() -> ConfigurationError:
    """Return the error for a thread without an event loop of asyncio; it names trio if trio runs there."""
    found = "this thread runs trio" if is_in_trio() else "no event loop of asyncio runs on this thread"
    thread = (
        "await trio.to_thread.run_sync(task.sync.enqueue, ...)" if is_in_trio() else "task.sync.enqueue(...)"
    )
    return ConfigurationError(
        f"dibs runs on asyncio, and {found}: use the blocking form, as in {thread}, or run this code under "
        "asyncio.run or the asyncio backend of anyio"
    )


def is_in_trio() -> bool:
    """Return whether this thread runs a trio event loop."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
