"""Write the results of a comparison into the documents: `python -m benchmarks.peers.publish RESULTS.json`.

The file is copied to docs/explanation/measurements/peers.json. The tables between the marks in README.md and
performance.md are made from it. `--check` fails if a table differs from the copy, and leaves all files alone.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.peers.publish import headline
from benchmarks.peers.publish.rows import Row, rows
from benchmarks.peers.publish.table import (
    BEHIND,
    CALLS,
    COSTS,
    KINDS,
    RATES,
    Columns,
    cell,
    fastest_first,
    grid,
    many_queues,
    markdown,
)
from benchmarks.peers.results import Results

ROOT: Final = Path(__file__).parents[3]
COPY: Final = ROOT / "docs/explanation/measurements/peers.json"
DOCUMENTS: Final = (ROOT / "README.md", ROOT / "docs/explanation/performance.md")
PICTURES: Final = ROOT / "docs/images"
BLOCK: Final = re.compile(r"(<!-- race: ([\w -]+) -->\n).*?(<!-- end of race -->)", re.DOTALL)


def block(name: str, results: Results) -> str:
    """Return the text of one block. Raises KeyError for an unknown name."""
    found = rows(results)
    kind, _, part = name.partition(" ")
    if kind in KINDS:
        return markdown(grid(fastest_first(found, kind, behind=False), PARTS[part]))
    return BLOCKS[name](results, found)


def about(results: Results, found: list[Row]) -> str:
    """Return a sentence about the run, and one about measurements that were too short."""
    one = results.about
    text = (
        f"Measured on {one['date']}, commit `{one['commit']}`. Rounds: {len(results.rounds)}; the figures "
        f"are medians. {one['cpus']} cores, CPython {one['python']}, Node {one['node']}, "
        f"Redis {one['redis']}, Postgres {one['postgresql']}."
    )
    if one["quick"]:
        text += " **A trial with few jobs: do not compare these figures.**"
    missing = [f"{row['name']} ({row['not_run']})" for row in found if "not_run" in row]
    return text + (f" Not measured: {'; '.join(missing)}." if missing else "")


def behind(results: Results, found: list[Row]) -> str:
    del results
    return markdown(grid(fastest_first(found, behind=True), BEHIND))


def queues(results: Results, found: list[Row]) -> str:
    del results
    return markdown(many_queues(found))


def shortest(results: Results, found: list[Row]) -> str:
    """Return the shortest bulk enqueue and drain of the systems that are not far behind."""
    del results
    times = [
        (row[name], f"the {name.partition('_')[0]} of {row['name']} ({KINDS[row['kind']]})")
        for row in found
        if "not_run" not in row and not row["behind"]
        for name in ("enqueue_seconds", "drain_seconds")
        if row[name] is not None
    ]
    seconds, text = min(times)
    return f"The shortest of these steps was {text}, with {cell(seconds, '.1f')} s."


PARTS: Final[dict[str, Columns]] = {"rates": RATES, "calls": CALLS, "costs": COSTS}
BLOCKS: Final[dict[str, Callable[[Results, list[Row]], str]]] = {
    "about": about,
    "behind": behind,
    "queues": queues,
    "shortest": shortest,
    "headline": headline.table,
    "goals": headline.goals,
}


def fill(text: str, results: Results) -> str:
    """Return a document with all its blocks made from the results."""
    return BLOCK.sub(lambda found: f"{found[1]}{block(found[2], results)}\n{found[3]}", text)


def differing(results: Results) -> list[Path]:
    """Return the documents that differ from the results."""
    return [path for path in DOCUMENTS if fill(text := path.read_text("utf-8"), results) != text]


def draw(results: Results) -> None:
    """Draw the pictures. They are left alone if matplotlib is not installed."""
    try:
        from benchmarks import plots  # noqa: PLC0415 - matplotlib is an extra
    except ImportError:
        print("the pictures are not drawn: matplotlib is not installed", file=sys.stderr)
        return
    shown = [row for row in rows(results) if not row["behind"]]
    plots.save(plots.charts(shown), PICTURES)


def main() -> None:
    """Write or check the documents."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.publish", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=COPY, help="JSON of benchmarks.peers")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table differs")
    options = parser.parse_args()
    results = Results.load(options.results)
    if options.check:
        if paths := differing(results):
            raise SystemExit(f"{', '.join(path.name for path in paths)} differ from {options.results}")
        return
    results.save(COPY)
    results = Results.load(COPY)
    for path in DOCUMENTS:
        path.write_text(fill(path.read_text("utf-8"), results), "utf-8")
    draw(results)


if __name__ == "__main__":
    main()
