"""Child processes that start as a new Python interpreter, by the spawn method of multiprocessing."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any, Final

from dibs.errors import ConfigurationError
from dibs.worker.processes.app_import import is_importing_app
from dibs.worker.processes.child_process import ChildProcess, kill_process_group
from dibs.worker.processes.multiprocessing_privates import is_importing_main_script

#: The multiprocessing context for child processes. With "fork", the child would get copies of locks that
#: other threads hold, and the copies are never released.
SPAWN_CONTEXT: Final = multiprocessing.get_context("spawn")
#: The multiprocessing name of every child process that dibs starts; `refuse_during_import` checks it.
PROCESS_NAME: Final = "dibs-worker"
#: The exit code of a child process whose main script tried to start workers while it was imported.
EXIT_NO_MAIN_GUARD: Final = 78
MISSING_MAIN_GUARD: Final = (
    "the script starts its worker when it is imported, and every worker process imports it: put the call "
    'that starts the worker under `if __name__ == "__main__":`'
)


class SpawnedProcess(ChildProcess):
    """A child process with a new interpreter, which calls `target(pipe, *arguments)`."""

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        on_message: Callable[[bytes], None],
        on_exit: Callable[[str], None],
    ) -> None:
        parent_end, child_end = SPAWN_CONTEXT.Pipe()
        # Start the child on the thread of the loop: the kernel kills a child when the thread that started it
        # ends.
        self._process = SPAWN_CONTEXT.Process(target=target, args=(child_end, *arguments), name=PROCESS_NAME)
        self._process.start()
        child_end.close()
        super().__init__(parent_end, on_message, on_exit)
        self.pid = self._process.pid or 0
        self._exit_fd = _open_exit_fd(self._process)
        self._loop.add_reader(self._exit_fd, self._on_process_exit)

    def kill(self) -> None:
        if self.alive:
            kill_process_group(self.pid)
            self._process.kill()

    def _on_process_exit(self) -> None:
        self._loop.remove_reader(self._exit_fd)
        # Kill the group before join(), which frees the pid: until then no other process can have this group
        # id.
        kill_process_group(self.pid)
        self._process.join()
        if self._exit_fd != self._process.sentinel:
            os.close(self._exit_fd)
        self._finish_after_exit(self._process.exitcode)


def _open_exit_fd(process: Any) -> int:
    """Return a file descriptor that becomes readable when the process ends: a pidfd on Linux.

    Other platforms use the sentinel of multiprocessing, a pipe. It stays open as long as any process that a
    handler forked is alive.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    return int(process.sentinel)


def refuse_during_import() -> None:
    """Refuse to start workers from a script that this process imports: the script has no main guard.

    `dibs worker` imports the script as an application, and so do child processes of dibs. In `dibs worker`
    raise ConfigurationError. A child process exits with EXIT_NO_MAIN_GUARD, and its parent reports the
    mistake once: the script could catch an exception, and each of N processes would print it.
    """
    if not (is_importing_app() or is_importing_main_script()):
        return
    if multiprocessing.current_process().name == PROCESS_NAME:
        os._exit(EXIT_NO_MAIN_GUARD)
    if is_importing_app():
        raise ConfigurationError(MISSING_MAIN_GUARD)
