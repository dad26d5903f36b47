"""A writer that kills itself at one of its changes of the store: `python -m tests.spark.killed_writer`.

Arguments: the number of the change, `before` or `after`, the location of the warehouse, and optionally the
URL of a storage and an engine. With a URL the writer adds an increment, otherwise a file to two partitions.
Prints "done" if it lives long enough.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dibs.spark.history.warehouse.store import Store, open_store
from tests.spark.staged_tables import MAIL, NEXT, add

ROOT = Path(__file__).parents[2]


def kill_at(kind: type[Store], change: int, moment: str) -> None:
    """Make the process kill itself before or after the change with this number, counted from 1."""
    seen = 0

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any) -> Any:
            nonlocal seen
            seen += 1
            if (seen, moment) == (change, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
            result = method(*arguments)
            if (seen, moment) == (change, "after"):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in ("create", "put", "delete"):
        setattr(kind, name, counted(getattr(kind, name)))


def write_until(
    change: int,
    moment: str,
    location: str,
    *increment: str,
    env: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    """Run the writer in a process of its own, with `env` added to its environment.

    Return whether it was killed.
    """
    command = [sys.executable, "-m", "tests.spark.killed_writer", str(change), moment, location, *increment]
    variables = {**os.environ, **env}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done" or done.returncode == -signal.SIGKILL, done.stderr
    return done.returncode == -signal.SIGKILL


def main(change: str, moment: str, location: str, url: str = "", engine: str = "duckdb") -> None:
    """Write a generation, and kill this process before or after a change of the store."""
    from dibs.spark.history.increments import update

    kill_at(type(open_store(location)), int(change), moment)
    if engine == "spark":
        from dibs.spark.java import session
        from tests.spark.conftest import MASTER, SMALL

        # The increment uses this session, which is made for few rows.
        session("dibs increments", master=MASTER, config=SMALL)
    if url:
        update(url, location, engine=engine)  # type: ignore[arg-type]
    else:
        add(location, MAIL, NEXT)
    print("done")  # noqa: T201 - the output of a script


if __name__ == "__main__":
    main(*sys.argv[1:])
