"""Processes that handlers fork with os.fork: such a process must not go on as a second worker.

It has copies of the event loop, of the claimed runs and of all connections, which it shares with the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet

logger = logging.getLogger("dibs.worker")

#: The number of forks between the start of the first process and this one. It grows only in the new process,
#: so a run that began with a smaller number belongs to the worker from which this process was forked. A
#: comparison makes no system call.
count = 0
#: The event loops of workers.
_loops: Final[WeakSet[asyncio.AbstractEventLoop]] = WeakSet()


class ForkingRun(Protocol):
    """The part of an Invocation that this module reads."""

    #: The value of `count` in the process that has claimed the run.
    forks: int

    @property
    def key(self) -> tuple[str, str, int]: ...
    @property
    def log_fields(self) -> dict[str, Any]: ...


def guard_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Let a process that is forked on this loop end before the next iteration of the loop."""
    _loops.add(loop)


def _on_fork() -> None:
    global count  # noqa: PLW0603 - the number belongs to the process
    count += 1
    for loop in tuple(_loops):
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon(os._exit, 1)
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_on_fork)


def leave(invocation: ForkingRun, error: BaseException | None) -> NoReturn:
    """End this process, which a handler has forked, in place of returning from the handler or raising."""
    code = 1 if error else 0
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(bool(error.code))
        else:
            logger.warning(
                "%s/%s: a process that the handler has forked came to the end of the handler, and ends here: "
                "end it with os._exit, or start it with subprocess",
                *invocation.key[:2], extra=invocation.log_fields,
            )  # fmt: skip
    finally:
        os._exit(code)


@contextmanager
def ending_in_child(invocation: ForkingRun) -> Iterator[None]:
    """Call `leave` at the end of the block in a process that the block has forked."""
    try:
        yield
    except BaseException as error:
        if invocation.forks != count:
            leave(invocation, error)
        raise
    if invocation.forks != count:
        leave(invocation, None)
