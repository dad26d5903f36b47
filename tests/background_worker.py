"""A worker that runs in the process of a test during a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from dibs import Dibs, WorkReport


@asynccontextmanager
async def background_worker(
    app: Dibs, *, stop: bool = False, **options: Any
) -> AsyncIterator[asyncio.Task[WorkReport]]:
    """Run a worker of an open app. At the end of the block cancel it, or with `stop` wait for its runs."""
    work = asyncio.create_task(app.work(**{"handle_signals": False, **options}))
    try:
        yield work
        if stop:
            app.stop()
            await work
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
