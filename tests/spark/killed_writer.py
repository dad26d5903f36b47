"""An increment that kills itself at one of its changes of the tables: `python -m tests.spark.killed_writer`.

Arguments: the number of the change; the moment `before`, `during` or `after`; the location of the
warehouse; the URL of a storage; an engine. Prints "done" if it lives long enough.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any

from deltalake import DeltaTable
from deltalake.table import TableOptimizer

from dibs.spark.history import warehouse

ROOT = Path(__file__).parents[2]
MOMENTS = ("before", "during", "after")


def kill_at(change: int, moment: str, location: str) -> None:
    """Make the process kill itself at the change with this number, counted from 1."""
    seen = 0

    def counted(change_tables: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(change_tables)
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            seen += 1
            if (seen, moment) == (change, "before"):
                die()
            if (seen, moment) == (change, "during"):
                files = count_files(location)
                Thread(target=kill_at_next_file, args=(location, files), daemon=True).start()
            result = change_tables(*arguments, **options)
            if seen == change:
                die()
            return result

        return call

    changes: tuple[tuple[Any, str], ...] = (
        (warehouse, "write_deltalake"),
        (DeltaTable, "vacuum"),
        (TableOptimizer, "compact"),
    )
    for place, name in changes:
        setattr(place, name, counted(getattr(place, name)))


def kill_at_next_file(location: str, files: int) -> None:
    """Kill this process when the tables have another file: before its commit, as a rule."""
    while count_files(location) == files:
        pass
    die()


def count_files(location: str) -> int:
    return sum(len(files) for _, _, files in os.walk(location))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_until(
    change: int,
    moment: str,
    *increment: str,
    env: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    """Run the writer in a process of its own, with `env` added to its environment.

    Return whether it was killed.
    """
    command = [sys.executable, "-m", "tests.spark.killed_writer", str(change), moment, *increment]
    variables = {**os.environ, **env}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done" or done.returncode == -signal.SIGKILL, done.stderr
    return done.returncode == -signal.SIGKILL


def main(change: str, moment: str, location: str, url: str, engine: str) -> None:
    """Add an increment, and kill this process at a change of the tables."""
    from dibs.spark.history.increments import update

    kill_at(int(change), moment, location)
    warehouse.MAINTAIN_EVERY = 1  # type: ignore[misc]
    if engine == "spark":
        from dibs.spark.java import session
        from tests.spark.conftest import MASTER, SMALL

        # The increment uses this session, which is made for few rows.
        session("dibs increments", master=MASTER, config=SMALL)
    update(url, location, engine=engine)  # type: ignore[arg-type]
    print("done")  # noqa: T201 - the output of a script


if __name__ == "__main__":
    main(*sys.argv[1:])
