"""The undocumented parts of multiprocessing that dibs uses, behind functions of dibs.

No other module of dibs uses an undocumented name of multiprocessing.
tests/worker/processes/test_multiprocessing_privates.py fails if a Python version moves one of them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import struct
from multiprocessing import process, spawn, util
from pathlib import Path
from typing import Any, Final

#: The header of a message on a multiprocessing Connection: its length in bytes, if that is less than 2 GiB.
FRAME_HEADER: Final = struct.Struct("!i")

#: The attribute that multiprocessing sets on the current process while a child imports the main script.
_INHERITING: Final = "_inheriting"


def interpreter_command() -> list[str]:
    """Return the command that starts this interpreter with the same flags, such as -X and -W."""
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    return [os.fsdecode(spawn.get_executable()), *flags]


def leave_removed_folder() -> None:
    """Change to the folder in which this process started, or to "/", if the working directory was removed.

    A handler or a deployment may have removed it. multiprocessing starts no process without one.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        try:
            os.chdir(process.ORIGINAL_DIR or "/")  # type: ignore[attr-defined]
        except OSError:
            os.chdir("/")


def preparation_data(process_name: str) -> dict[str, Any]:
    """Return the data that multiprocessing sends to a child it spawns, as values that JSON can hold.

    They are the name of the process, `sys.path`, `sys.argv`, the working directory, the main script and the
    authentication key. `prepare_process` applies them.
    """
    leave_removed_folder()
    data = spawn.get_preparation_data(process_name)
    data["authkey"] = data["authkey"].hex()
    data["sys_path"] = [entry for entry in data["sys_path"] if isinstance(entry, str)]
    return data


def prepare_process(data: dict[str, Any]) -> None:
    """Apply `preparation_data` to this process, as multiprocessing does in a child it spawned.

    The main script of the parent is imported as the module `__mp_main__`. Raise any error of that script.
    """
    current = multiprocessing.current_process()
    setattr(current, _INHERITING, True)
    try:
        spawn.prepare(data | {"authkey": bytes.fromhex(data["authkey"])})
    finally:
        delattr(current, _INHERITING)


def is_importing_main_script() -> bool:
    """Return whether this process is a child that is importing the main script of its parent."""
    return bool(getattr(multiprocessing.current_process(), _INHERITING, False))


def run_exit_functions() -> None:
    """Call the functions registered with `atexit`, and wait for no thread and no child process.

    The function of multiprocessing would wait for children that jobs have left behind, for example those of
    a ProcessPoolExecutor. It is called last, after they were killed.
    """
    exit_function = util._exit_function  # type: ignore[attr-defined] # noqa: SLF001
    atexit.unregister(exit_function)
    atexit._run_exitfuncs()  # noqa: SLF001 - the documented ways to call them all wait for threads
    for child in multiprocessing.active_children():
        child.kill()
    exit_function()
