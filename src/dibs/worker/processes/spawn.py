"""A process of ours that begins as an interpreter of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from dibs.worker.processes.child_process import Offspring, kill_group

#: Spawn, not fork: a fork copies locks that other threads hold, and never lets them go.
CONTEXT: Final = multiprocessing.get_context("spawn")
#: How our processes are called, by which they know themselves while they import the user's script.
NAME: Final = "dibs-worker"
#: The exit code of a process whose script tried to start workers while it was imported.
NO_GUARD: Final = 78


class Spawned(Offspring):
    """A child process with an interpreter of its own."""

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        heard: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        ours, theirs = CONTEXT.Pipe()
        # Started on the loop's own thread: the child asks the kernel to die with the thread that made it.
        self._process = CONTEXT.Process(target=target, args=(theirs, *arguments), name=NAME)
        self._process.start()
        theirs.close()
        super().__init__(ours, heard, ended)
        self.pid = self._process.pid or 0
        self._watched = _watch_on(self._process)
        self._loop.add_reader(self._watched, self._gone)

    def kill(self) -> None:
        if self.alive:
            kill_group(self.pid)
            self._process.kill()

    def _gone(self) -> None:
        self._loop.remove_reader(self._watched)
        # Before its number is free for others: what its handlers had started ends with it.
        kill_group(self.pid)
        self._process.join()
        if self._watched != self._process.sentinel:
            os.close(self._watched)
        self._over(self._process.exitcode)


def _watch_on(process: Any) -> int:
    """Return what becomes readable when the process ends.

    multiprocessing's sentinel is a pipe that lives on in whatever a handler forked; Linux has better.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    return int(process.sentinel)


def leave_if_ours() -> None:
    """End this process if it is one of ours that is importing the user's script: the script starts workers.

    Its parent reads the exit code and says so once. An exception could be caught, or shown N times.
    """
    process = multiprocessing.current_process()
    if process.name == NAME and getattr(process, "_inheriting", False):
        os._exit(NO_GUARD)


Pipe = Connection
