"""PID 1 of a container: a small init, as tini is one, with the command as its child.

Linux gives each orphan to PID 1, which must reap it. It also drops a signal to PID 1 that has no handler, so
a SIGTERM during the import of an application would be lost.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final, NoReturn

#: The code of the kernel for a signal that it sends itself, for example at Ctrl-C.
SI_KERNEL: Final = 0x80
#: The shell's exit code of a program that signal N has killed is 128 + N.
KILLED: Final = 128


def run_below_init() -> None:
    """Return at once, unless this process is PID 1: then fork, and return in the child.

    This process passes its signals on to the child, reaps all processes that end, and exits with the code of
    the child, which ends every other process of the container.
    """
    if sys.platform == "win32" or os.getpid() != 1:
        return
    # Blocked signals wait for `sigwaitinfo`. The kernel drops no blocked signal of PID 1.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    _serve(child)


def _serve(child: int) -> NoReturn:
    while True:
        info = signal.sigwaitinfo(signal.valid_signals())
        if info.si_signo == signal.SIGCHLD:
            _reap(child)
        # The kernel sends the signal of a key, for example of Ctrl-C, to the child as well.
        elif info.si_code != SI_KERNEL or info.si_signo == signal.SIGHUP:
            os.kill(child, info.si_signo)


def _reap(child: int) -> None:
    """Reap all processes that have ended, and exit if `child` is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else KILLED - code)
        if not pid:
            return
