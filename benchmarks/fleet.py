"""How fast a fleet is, what it costs, and how soon it recovers: `python -m benchmarks.fleet [--quick]`.

Measures memory, file, Redis and Postgres, or the places named; PLACE in a URL stands for an empty one. Prints
a table, and with --json FILE writes the figures. Only those of one run compare: machines change by the hour.
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

from rich.console import Console
from rich.table import Table

from benchmarks.crew import ends
from benchmarks.servers import private_servers
from dibs.cli import output

Row = dict[str, object]
FIGURES = ("throughput", "idle", "poison", "recovery")
HANDLERS = ("noop", "noop_sync", "one_ms_cpu", "ten_ms", "ten_ms_sync")


class Places:
    """Empty places on one storage; worker processes find the latest in DIBS_URL."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self.kind = url.partition(":")[0]

    def new(self) -> str:
        name = f"fleet_{uuid4().hex[:12]}"
        place = str(self._folder / name) if self.kind == "file" else name
        os.environ["DIBS_URL"] = self._url.replace("PLACE", place)
        return os.environ["DIBS_URL"]


def throughput(places: Places, words: argparse.Namespace) -> Iterator[Row]:
    for handler in HANDLERS:
        for processes in (0,) if places.kind == "memory" else (1, 2):
            jobs = words.jobs if handler.startswith("noop") else words.jobs // 4
            yield in_a_program(places, f"throughput({{url!r}}, {handler!r}, {processes}, {jobs})")


def idle(places: Places, words: argparse.Namespace) -> Iterator[Row]:
    if places.kind != "memory":
        yield in_a_program(places, f"idling({words.seconds})")


def poison(places: Places, words: argparse.Namespace) -> Iterator[Row]:
    if places.kind != "memory":
        for queue in ("poison", "poison_alone"):
            yield in_a_program(places, f"beside_poison({{url!r}}, {queue!r}, {words.steady})")


def in_a_program(places: Places, call: str) -> Row:
    """Measure in a process of its own: an application is bound to one place, and CPU adds up over runs."""
    url = places.new()
    row: Row = asyncio.run(_in_a_program(f"work.{call.format(url=url)}"))
    return row


async def _in_a_program(call: str) -> Row:
    code = f"import asyncio, json; from benchmarks.crew import work; print(json.dumps(asyncio.run({call})))"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await program.communicate()
    if program.returncode:
        raise RuntimeError(err.decode())
    row: Row = json.loads(out)
    return row


def recovery(places: Places, words: argparse.Namespace) -> Iterator[Row]:
    if places.kind == "memory":
        return
    for whom in ("process", "supervisor"):
        took = [ends.after_sigkill(*_folder_and_place(places), whom) for _ in range(words.kills)]
        yield ends.told(f"SIGKILL of a {whom} to its job running again", took)
    took = [ends.after_timeout(*_folder_and_place(places)) for _ in range(words.kills)]
    yield ends.told("timeout to the first run of the replacement", took)


def _folder_and_place(places: Places) -> tuple[Path, str]:
    folder = Path(tempfile.mkdtemp(dir=os.environ["FLEET_FOLDER"]))
    return folder, places.new()


def show(rows: list[Row], console: Console) -> None:
    """Print the table for people."""
    table = Table("storage", "figure", "of", "measured", title="the fleet")
    for row in rows:
        named = [f"{row[name]}" for name in ("handler", "processes") if name in row]
        of = " x ".join(named) or f"{row.get('of', '')}"
        known = ("storage", "figure", "handler", "processes", "of")
        measured = ", ".join(f"{name} {value}" for name, value in row.items() if name not in known)
        table.add_row(str(row["storage"]), str(row["figure"]), of, measured)
    console.print(table)


def read_words() -> argparse.Namespace:
    """Read the command line."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    words.add_argument("urls", nargs="*", help="memory:, file:PLACE, redis://…?prefix=PLACE, …")
    words.add_argument("--only", choices=FIGURES, action="append", help="these figures alone")
    words.add_argument("--quick", action="store_true", help="a quarter of the jobs, 3 kills")
    words.add_argument("--kills", type=int, default=20)
    words.add_argument("--json", type=Path, help="write the figures to this file, too")
    given = words.parse_args()
    given.jobs, given.steady, given.seconds = 40_000, 40_000, 20.0
    if given.quick:
        given.jobs, given.steady, given.seconds, given.kills = 10_000, 4000, 5.0, min(given.kills, 3)
    return given


def main() -> None:
    words, console, rows = read_words(), output.console(), []
    folder = tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd())
    os.environ["FLEET_FOLDER"] = folder
    measures = {"throughput": throughput, "idle": idle, "poison": poison, "recovery": recovery}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        urls = words.urls or ["memory:PLACE", "file:PLACE", *stack.enter_context(private_servers())[0]]
        for url in urls:
            places = Places(url, Path(folder))
            for name in words.only or FIGURES:
                for row in measures[name](places, words):
                    rows.append({"storage": places.kind, **row})
                    console.print(rows[-1], style="dim")
    show(rows, console)
    if words.json:
        words.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
