"""Measure supervisors with worker processes: `python -m benchmarks.fleet [URL ...] [--quick] [--json FILE]`.

throughput: jobs a second, and CPU for each. idle: CPU of idle processes. poison: throughput next to a job
that kills its process. recovery: seconds until a job runs again after a kill. The default storages are
memory, files, Redis and Postgres; NAME in a URL stands for a new, empty storage. Compare the figures of one
run; machines change by the hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from attrs import define
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.fleet import recovery as recovery_times
from benchmarks.storages import private_servers

Row = dict[str, object]
FIGURES = ("throughput", "idle", "poison", "recovery")
#: Jobs of a full run. In memory --quick needs as many, because 10,000 end before the second sample.
JOBS = 40_000
HANDLERS = ("noop", "noop_sync", "one_ms_cpu", "ten_ms", "ten_ms_sync")


@define
class EmptyStorages:
    """Empty storages of one kind. Worker processes find the last one in DIBS_URL."""

    url: str
    #: The folder of file storages and of the scripts of supervisors.
    folder: Path

    @property
    def kind(self) -> str:
        return self.url.partition(":")[0]

    def new_url(self) -> str:
        """Return the URL of a new, empty storage, and set DIBS_URL to it."""
        name = f"fleet_{uuid4().hex[:12]}"
        full_name = str(self.folder / name) if self.kind == "file" else name
        os.environ["DIBS_URL"] = self.url.replace("NAME", full_name)
        return os.environ["DIBS_URL"]


def throughput(storages: EmptyStorages, options: argparse.Namespace) -> Iterator[Row]:
    for handler in HANDLERS:
        for processes in (0,) if storages.kind == "memory" else (1, 2):
            full = JOBS if storages.kind == "memory" else options.jobs
            jobs = full if handler.startswith("noop") else full // 4
            yield in_new_process(storages, f"throughput({{url!r}}, {handler!r}, {processes}, {jobs})")


def idle(storages: EmptyStorages, options: argparse.Namespace) -> Iterator[Row]:
    if storages.kind != "memory":
        yield in_new_process(storages, f"idle_cpu({options.seconds})")


def poison(storages: EmptyStorages, options: argparse.Namespace) -> Iterator[Row]:
    if storages.kind != "memory":
        for queue in ("poison", "poison_alone"):
            yield in_new_process(
                storages, f"throughput_with_poison({{url!r}}, {queue!r}, {options.steady_jobs})"
            )


def in_new_process(storages: EmptyStorages, call: str) -> Row:
    """Run a function of benchmarks.fleet.measure in a new process and return its row.

    An application is bound to one storage, and the CPU time of a process includes all earlier measurements.
    """
    url = storages.new_url()
    row: Row = asyncio.run(_in_new_process(f"measure.{call.format(url=url)}"))
    return row


async def _in_new_process(call: str) -> Row:
    code = (
        f"import asyncio, json; from benchmarks.fleet import measure; print(json.dumps(asyncio.run({call})))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    stdout, stderr = await process.communicate()
    if process.returncode:
        raise RuntimeError(stderr.decode())
    row: Row = json.loads(stdout)
    return row


def recovery(storages: EmptyStorages, options: argparse.Namespace) -> Iterator[Row]:
    if storages.kind == "memory":
        return
    for victim in ("process", "supervisor"):
        seconds = [
            recovery_times.after_sigkill(_new_folder(storages), storages.new_url(), victim)
            for _ in range(options.kills)
        ]
        yield recovery_times.row(f"SIGKILL of a {victim} to its job running again", seconds)
    seconds = [
        recovery_times.after_timeout(_new_folder(storages), storages.new_url()) for _ in range(options.kills)
    ]
    yield recovery_times.row("timeout to the first run of the replacement", seconds)


def _new_folder(storages: EmptyStorages) -> Path:
    return Path(tempfile.mkdtemp(dir=storages.folder))


def show(rows: list[Row], console: Console) -> None:
    """Print the table."""
    table = Table("storage", "figure", "of", "measured", title="supervisors with worker processes")
    for row in rows:
        handler = [f"{row[key]}" for key in ("handler", "processes") if key in row]
        of = " x ".join(handler) or f"{row.get('of', '')}"
        shown = ("storage", "figure", "handler", "processes", "of")
        measured = ", ".join(f"{key} {value}" for key, value in row.items() if key not in shown)
        table.add_row(str(row["storage"]), str(row["figure"]), of, measured)
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("urls", nargs="*", help="memory:, file:NAME, redis://…?prefix=NAME, …")
    parser.add_argument("--only", choices=FIGURES, action="append", help="measure only this; can be repeated")
    parser.add_argument("--quick", action="store_true", help="a quarter of the jobs, 3 kills")
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind (default: 20)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    options.jobs, options.steady_jobs, options.seconds = JOBS, JOBS, 20.0
    if options.quick:
        options.jobs, options.steady_jobs, options.seconds = 10_000, 4000, 5.0
        options.kills = min(options.kills, 3)
    return options


def main() -> None:
    """Measure each storage and print the table."""
    options, console, rows = parse_arguments(), report.open_console(), []
    folder = tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd())
    measures = {"throughput": throughput, "idle": idle, "poison": poison, "recovery": recovery}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        urls = options.urls or ["memory:NAME", "file:NAME", *stack.enter_context(private_servers())[0]]
        for url in urls:
            storages = EmptyStorages(url, Path(folder))
            for figure in options.only or FIGURES:
                for row in measures[figure](storages, options):
                    rows.append({"storage": storages.kind, **row})
                    console.print(rows[-1], style="dim")
    show(rows, console)
    report.write_json(options.json, rows)


if __name__ == "__main__":
    main()
