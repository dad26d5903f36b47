"""An export that kills itself: `python -m tests.spark.killed_export`.

Arguments: delta or iceberg, the location of the warehouse, a folder for the table, the moment of the kill,
and the table. The moments are `reading` (some batches are read), `committing` (all files are written),
`committed` and `never`. Prints "ready" before the export. The commit of Delta is native code, so the caller
kills it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.spark.history.export import delta, iceberg, position
from dibs.spark.history.export.position import Export

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

ROOT = Path(__file__).parents[2]


def catalog_in(folder: Path) -> SqlCatalog:
    """Return a catalogue of Iceberg in a folder."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(exist_ok=True)
    return SqlCatalog("tests", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


def export_to(kind: str, warehouse: Path, folder: Path, table: str = "events") -> Export:
    if kind == "delta":
        return delta.export_delta(warehouse, folder / "events", table)
    return iceberg.export_iceberg(warehouse, "jobs.events", table, catalog=catalog_in(folder))


def export_until(kind: str, warehouse: Path, folder: Path, moment: str, table: str = "events") -> bool:
    """Run an export in a process of its own. Return whether it was killed."""
    if (kind, moment) == ("delta", "committing"):
        return kill_at_first_file(warehouse, folder, table)
    arguments = (kind, str(warehouse), str(folder), moment, table)
    command = [sys.executable, "-m", "tests.spark.killed_export", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


def kill_at_first_file(warehouse: Path, folder: Path, table: str) -> bool:
    """Kill an export to Delta as soon as it has made a new file of rows. Return whether it was killed."""
    before = {*folder.rglob("*.parquet")}
    arguments = ("delta", str(warehouse), str(folder), "never", table)
    command = [sys.executable, "-m", "tests.spark.killed_export", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as running:
        while running.poll() is None and before == {*folder.rglob("*.parquet")}:
            pass
        running.kill()
    return running.returncode == -signal.SIGKILL


def kill_in(owner: Any, name: str, *, call: int = 1, after: bool = False) -> None:
    """Make the process kill itself before or after a call of a function."""
    function: Callable[..., Any] = getattr(owner, name)
    seen = 0

    def killing(*arguments: Any, **options: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        if seen == call and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, killing)


def plan_kill(kind: str, moment: str) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    if moment == "reading":
        kill_in(position, "_with_partition", call=2)
    elif moment == "committing":
        kill_in(SqlCatalog, "commit_table")
    elif moment == "committed":
        owner, name = (delta, "write_deltalake") if kind == "delta" else (SqlCatalog, "commit_table")
        kill_in(owner, name, after=True)


def main(kind: str, warehouse: str, folder: str, moment: str, table: str = "events") -> None:
    """Export, and be killed."""
    if kind == "iceberg" and moment != "never":
        iceberg._open(position.open_source(warehouse, table), catalog_in(Path(folder)), "jobs.events")
    plan_kill(kind, moment)
    print("ready", flush=True)  # noqa: T201 - the output of a script
    export_to(kind, Path(warehouse), Path(folder), table)


if __name__ == "__main__":
    main(*sys.argv[1:])
