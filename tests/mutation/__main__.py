"""Random mutants: `nox -s mutants -- --seed 7 --count 40 --storage redis`.

Draws mutants from the sources, runs the conformance kit on each mutated storage, or the tests of `worker` or
`client`, and prints which were killed. Exits with 1 if a mutant survived.
"""

# ruff: noqa: T201 - a command, which prints its report

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from dibs_conformance.levels import LEVELS
from dibs_conformance.servers import start_postgres, start_redis
from tests.mutation.areas import AREAS, STORAGES, Area
from tests.mutation.draw import draw
from tests.mutation.equivalents import read_equivalents, reason_for
from tests.mutation.recording import record_calls
from tests.mutation.runs import Effort, try_mutant
from tests.mutation.site import Site
from tests.mutation.table import Tried, describe, summary
from tests.mutation.trees import snapshot
from tests.mutation.verdict import Verdict

PROJECT: Final = Path(__file__).parents[2]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    effort = Effort(
        seed=options.seed,
        level=options.level,
        budget=options.budget,
        examples=options.examples,
        own_tests=options.own_tests,
    )
    tried: list[Tried] = []
    print(f"seed {options.seed}, {options.count} mutants of each area", flush=True)
    with ExitStack() as stack:
        tree = stack.enter_context(snapshot(PROJECT))
        for area in options.area:
            urls = [] if options.list else [url_of(scheme, stack) for scheme in AREAS[area].kit]
            for one in try_area(tree, AREAS[area], options, effort, urls):
                tried.append(one)
                print(describe(one), flush=True)
                if options.json:
                    write_json(options, tried)
    print(f"\n{summary(tried)}")
    return int(any(one.verdict.outcome == "survived" for one in tried))


def write_json(options: argparse.Namespace, tried: Sequence[Tried]) -> None:
    """Write the mutants tried so far. The file of an interrupted run is complete up to its last mutant."""
    document = {**vars(options), "mutants": [one.to_dict() for one in tried]}
    options.json.write_text(json.dumps(document, indent=1, default=str), "utf-8")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "--area",
        "--storage",
        dest="area",
        action="append",
        choices=tuple(AREAS),
        help="default: all storages",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="repeats an earlier draw")
    parser.add_argument("--count", type=int, default=20, help="mutants of each area (20)")
    parser.add_argument("--skip", type=int, default=0, help="skip the first mutants of the draw (0)")
    parser.add_argument("--level", choices=tuple(LEVELS), default="L2", help="highest level of the kit (L2)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of the kit for each mutant (60)")
    parser.add_argument("--examples", type=int, default=0, help="histories on each level, not a budget")
    parser.add_argument("--own-tests", action="store_true", help="then run the tests of the storage, too")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time (1)")
    parser.add_argument("--list", action="store_true", help="print the drawn mutants without a run")
    parser.add_argument("--again", type=Path, help="try the survivors in the JSON of an earlier run again")
    parser.add_argument("--json", type=Path, help="write the report to this file, too")
    options = parser.parse_args(arguments)
    options.area = options.area or list(STORAGES)
    return options


def url_of(scheme: str, stack: ExitStack) -> str:
    """Return the URL of a storage for the kit, after a start of its server if it needs one."""
    match scheme:
        case "redis":
            return stack.enter_context(start_redis()).url
        case "postgres":
            return stack.enter_context(start_postgres()).url
        case _:
            return f"{scheme}:"


def try_area(
    tree: Path, area: Area, options: argparse.Namespace, effort: Effort, urls: Sequence[str]
) -> Iterator[Tried]:
    """Return the verdict on each drawn mutant of an area, in the order of the draw.

    First the unchanged code is tried: its run must pass, and its time sets the limit for the mutants.
    """
    sites = chosen_sites(tree, area.name, options)
    if options.list:
        yield from (Tried(area.name, site, Verdict("survived", note="not run")) for site in sites)
        return
    unchanged, effort = try_unchanged(tree, area, urls, effort)
    took = f"{unchanged.seconds:.0f} s, CPU {unchanged.cpu:.1f}"
    print(f"{area.name}: unchanged code {unchanged.note} in {took}", flush=True)
    if unchanged.outcome != "survived":
        raise SystemExit(f"the tests fail without a mutant: {unchanged.by}: {unchanged.note}")
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(partial(verdict_on, tree, area, urls, effort), sites)
        for site, verdict in zip(sites, verdicts, strict=True):
            yield Tried(area.name, site, verdict)


def try_unchanged(tree: Path, area: Area, urls: Sequence[str], effort: Effort) -> tuple[Verdict, Effort]:
    """Return the verdict on the unchanged code, and the effort for mutants with the time limit from it."""
    if urls:
        unchanged, calls = try_mutant(tree, area, None, urls, effort), None
    else:
        # Tracing makes the tests slower.
        unchanged, calls = record_calls(tree, area, 3 * effort.limit)
    return unchanged, attrs.evolve(effort, limit=60 + 3 * unchanged.seconds, calls=calls)


def chosen_sites(tree: Path, area: str, options: argparse.Namespace) -> list[Site]:
    """Return the drawn mutants, or with --again the survivors of an earlier run that still exist."""
    if options.again is None:
        return draw(tree, area, options.seed, options.count)[options.skip :]
    found: dict[tuple[str, str, str], list[Site]] = defaultdict(list)
    for site in AREAS[area].sites(tree):
        found[site.file, site.line_text, site.change].append(site)
    rows = json.loads(options.again.read_text("utf-8"))["mutants"]
    survivors = [row for row in rows if row["outcome"] == "survived" and row["area"] == area]
    # Of equal lines, the nearest: line numbers may have changed since.
    return [
        min(sites, key=lambda site: abs(site.line - row["line"]))
        for row in survivors
        if (sites := found.get((row["file"], row["text"], row["change"])))
    ]


def verdict_on(tree: Path, area: Area, urls: Sequence[str], effort: Effort, site: Site) -> Verdict:
    reason = reason_for(site, read_equivalents())
    return Verdict("equivalent", note=reason) if reason else try_mutant(tree, area, site, urls, effort)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
