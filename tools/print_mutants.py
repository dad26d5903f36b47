"""Writes docs/appendix/mutants.md from the planted bugs in tests/kit/mutants.

python tools/print_mutants.py           writes the page with the figures that are already in it
python tools/print_mutants.py --check   fails if the page is out of date
python tools/print_mutants.py --missing runs the bugs without figures first, and starts servers
python tools/print_mutants.py --l0      runs every bug on L0 first, and starts servers: ten minutes
python tools/print_mutants.py --measure runs every bug on each level first; takes long
"""

# ruff: noqa: INP001, T201 - a script that only its test imports

from __future__ import annotations

import logging
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import frozen

PROJECT = Path(__file__).parent.parent
TARGET = PROJECT / "docs" / "appendix" / "mutants.md"
sys.path.insert(0, str(PROJECT))

from dibs_conformance.servers import start_postgres, start_redis  # noqa: E402
from dibs_conformance.target import OpenStorage  # noqa: E402
from tests.kit.concurrent.test_levels import ALONE, SHARED  # noqa: E402
from tests.kit.mutants import MUTANTS, Mutant  # noqa: E402
from tests.kit.mutants.planting import Where  # noqa: E402
from tests.kit.mutants.races import RACES, Race  # noqa: E402
from tests.kit.play import play, play_level  # noqa: E402
from tests.kit.postgres_locations import PostgresLocations  # noqa: E402
from tests.kit.redis_locations import RedisLocations  # noqa: E402


@frozen
class BugGroup:
    """The bugs in one part of dibs, as a section of the page."""

    title: str
    #: The levels above L0 that are run on each of these bugs, with the most histories of each.
    above: dict[str, int]


GROUPS: dict[Where, BugGroup] = {
    "memory": BugGroup("In the engine of memory and file", {"L1": 200, "L2": 300, "L3": 1}),
    "file": BugGroup("In the commit log", {"L1": 40}),
    "redis": BugGroup("In the Lua", {}),
    "postgres": BugGroup("In the SQL", {}),
}
LEVELS = ("L0", "L1", "L2", "L3")
NOT_FOUND, NOT_TRIED = "–", ""  # noqa: RUF001 - a dash

HEADER = """---
search:
  exclude: true
---

# Planted bugs

The tests of the conformance kit plant bugs in the storages of dibs, one at a time, and the kit must find
each of them. There are {all} bugs:
{places}.
{by_contract} of them, marked *, were written from [the contract](../explanation/contract.md), sentence by
sentence, by an author who had not read the code of the kit. {survivors} cannot be found with one call at a
time; the last section names the reason.

## Found by level

Each level was run alone, without the lower levels, with seed 1. The levels above L0 were run on the engine,
where all code runs in the process with the bug, and L1 also on the commit log.

{by_level}

The bug that L0 needed longest to find: {slowest}.
The higher levels use fewer verbs than L0. They find [other bugs](#bugs-that-random-calls-do-not-show).

The columns L0 to L3 hold the number of histories until the bug was found; on L0 the fixed histories of the
walkthrough come first. A – means that the bug was not found, an empty field that it was not tried.
The numbers differ between versions of Hypothesis; the tests check that L0 finds each bug within its bound.

The fixed histories alone find every bug in the engine. The random examples of L0 are for bugs that nobody has
thought of. A bug that only they find gets a fixed history, for example: pause a queue around a claim, reap in
portions, or amend an outcome.

<!-- Printed by tools/print_mutants.py from tests/kit/mutants. -->
"""  # noqa: RUF001 - a dash
CONCURRENT = """
## Bugs that random calls do not show

Every single call is correct with these bugs. Each has a test of its own, and must be found on its level.

| bug | found on | by | test in `tests/kit/` |
|---|---|---|---|
| time stands still after a clock was ahead | L0 | a storage opened again after a later time | `sequential` |
| time stands still, steps back, or differs between objects | L0 | steps of a client's clock | `sequential` |
| a caller's time counts under the system clock | L0 | each verb with `now` | `sequential` |
| a client's clock counts on Redis or Postgres | L0 | a client whose clock is an hour ahead | `sequential` |
| time follows the clock of the calling process | L2 | processes with skewed clocks | `concurrent` |
| a page without a limit has more than 100 entries | L0 | 101 jobs and their events | `sequential` |
| a long log is pruned in part, without `more` | L0 | 1,100 old log entries | `sequential` |
| a scan repeats ids, or skips those of a repeated page | L0 | a busy queue of 1,110 ids | `sequential` |
| one verb accepts bad input, or raises another error | L0 | 1,992 bad calls of all verbs | `sequential` |
| one verb writes an item before it refuses the next | L0 | the state after these calls | `sequential` |
| a text is stored as `str(text)`, or a subclass refused | L0 | values of subclasses | `sequential` |
| no waiter is woken after one kind of change | L0 | the probe of `push_wakeups` | `sequential` |
| a storage hears no other object, or no other process | L0 | the probe of `push_wakeups` | `sequential` |
| a wait always returns at once | L0 | waits for idle queues | `sequential` |
| memory without its lock | L1 | lines of two verbs in turn | `concurrent` |
| the file storage without its lock | L1 | lines of two verbs in turn | `concurrent` |
{races}
| a settlement in two steps with an await between | L3 | a caller cancelled at each await | `crashes` |
| a settlement in two commits | L3 | a process killed at each line | `crashes` |
| a call without a reply is sent again silently | L3 | the connection cut at each byte | `crashes` |
| a missing fsync of a commit, a checkpoint or their folder | L3 | power loss | `crashes` |
| a write that a full server refused is reported as done | L4 | a full server | `faults` |
"""
_ROW = re.compile(r"^\| (?P<name>[\w *]+?)\*? \| [^|]* \| (?P<figures>[^|]*(\|[^|\n]*){3}) \|$", re.MULTILINE)

#: The number of histories until the bug was found, on each level.
Figures = tuple[str, ...]
UNKNOWN: Figures = ("?",) * len(LEVELS)


def page(known: dict[str, Figures]) -> str:
    """Return the page. `known` holds the figures of each bug by name."""
    mutants = list(MUTANTS.values())
    survivors = [mutant for mutant in mutants if mutant.survives]
    parts = [header(mutants, survivors, known)]
    for where, group in GROUPS.items():
        parts += ["", f"## {group.title}", "", f"| bug | breaks | {' | '.join(LEVELS)} |"]
        parts += ["|---|---|" + "---|" * len(LEVELS)]
        parts += [row(mutant, known) for mutant in mutants if mutant.where == where]
    parts += [CONCURRENT.format(races=race_rows()), "## Bugs that L0 cannot find", ""]
    parts += [f"- {display_name(one)}: {one.survives}." for one in survivors]
    return "\n".join(parts) + "\n"


def race_rows() -> str:
    return "\n".join(
        f"| {race_name(race)} | L1 | "
        f"{'two verbs, the first stopped in the middle' if race.where == 'memory' else 'a late commit'} "
        "| `concurrent` |"
        for race in RACES.values()
    )


def race_name(race: Race) -> str:
    return race.name.removeprefix("sql_").replace("_", " ") + (" in sql" if race.where == "postgres" else "")


def header(mutants: Sequence[Mutant], survivors: Sequence[Mutant], known: dict[str, Figures]) -> str:
    return HEADER.format(
        all=len(mutants),
        places=", ".join(
            f"{sum(one.where == where for one in mutants)} {group.title[0].lower()}{group.title[1:]}"
            for where, group in GROUPS.items()
        ),
        by_contract=sum(one.by_contract for one in mutants),
        survivors=len(survivors),
        by_level=by_level(mutants, known),
        slowest=slowest(known),
    )


def by_level(mutants: Sequence[Mutant], known: dict[str, Figures]) -> str:
    """Return a table of the bugs that each level found, among those that it was run on."""
    lines = [
        f"| level | {' | '.join(group.title for group in GROUPS.values())} |",
        "|---" * (1 + len(GROUPS)) + "|",
    ]
    for at, level in enumerate(LEVELS):
        cells = []
        for where in GROUPS:
            tried = [known.get(display_name(one), UNKNOWN)[at] for one in mutants if one.where == where]
            tried = [figure for figure in tried if figure != NOT_TRIED]
            found = sum(figure != NOT_FOUND for figure in tried)
            cells.append(f"{found} of {len(tried)}" if tried else NOT_TRIED)
        lines.append(f"| {level} | {' | '.join(cells)} |")
    return "\n".join(lines)


def slowest(known: dict[str, Figures]) -> str:
    after, name = max(((int(f[0]), name) for name, f in known.items() if f[0].isdigit()), default=(0, "?"))
    return f"*{name}*, after {after} histories"


def row(mutant: Mutant, known: dict[str, Figures]) -> str:
    mark = "*" if mutant.by_contract else ""
    figures = " | ".join(known.get(display_name(mutant), UNKNOWN))
    return f"| {display_name(mutant)}{mark} | {mutant.breaks} | {figures} |"


def display_name(mutant: Mutant) -> str:
    name = mutant.name.removeprefix("lua_").removeprefix("sql_")
    words = name.replace("_", " ")
    return words if name == mutant.name else f"{words} in {mutant.name[:3]}"


def figures(text: str) -> dict[str, Figures]:
    """Return the figures of a page, by the name of the bug."""
    return {
        found["name"]: tuple(cell.strip() for cell in found["figures"].split("|"))
        for found in _ROW.finditer(text)
        if found["name"] != "bug"
    }


# -- measuring ---------------------------------------------------------------------------------------


def measured(known: Mapping[str, Figures], *, only_l0: bool) -> Iterator[tuple[str, Figures]]:
    """Run each bug whose name is not in `known`. Yield its name and its figures.

    With `only_l0`, run every bug on L0. The figures of the other levels are those in `known`.
    """
    logging.getLogger("dibs.storage").setLevel(logging.ERROR)
    with ExitStack() as stack:
        targets: dict[Where, str | OpenStorage] = {
            "memory": "memory:",
            "file": f"file:{stack.enter_context(tempfile.TemporaryDirectory())}",
            "redis": RedisLocations(stack.enter_context(start_redis()).url),
        }
        postgres = stack.enter_context(start_postgres()).url
        for mutant in (one for one in MUTANTS.values() if only_l0 or display_name(one) not in known):
            with pytest.MonkeyPatch.context() as patch, PostgresLocations(postgres) as locations:
                mutant.plant(patch)
                target = targets.get(mutant.where, locations)
                above = known.get(display_name(mutant), UNKNOWN)[1:]
                found = (on_l0(mutant, target), *(above if only_l0 else on_the_others(mutant, target)))
            print(mutant.name, *found, flush=True)
            yield display_name(mutant), found


def on_l0(mutant: Mutant, target: str | OpenStorage) -> str:
    failure, session = play(
        mutant.examples, target=target, durable=mutant.where != "memory", walkthrough=True
    )
    return NOT_FOUND if failure is None else str(session.examples)


def on_the_others(mutant: Mutant, target: str | OpenStorage) -> Iterator[str]:
    claims = ALONE if mutant.where == "memory" else SHARED
    for level in LEVELS[1:]:
        most = GROUPS[mutant.where].above.get(level)
        if most is None or not isinstance(target, str):
            yield NOT_TRIED
            continue
        found = play_level(level, target, claims, most)
        yield str(found.histories) if found.failures else NOT_FOUND


def main() -> int:
    current = TARGET.read_text("utf-8") if TARGET.exists() else ""
    names = {display_name(mutant) for mutant in MUTANTS.values()}
    # The page may still have a row of a bug that is gone.
    known = {name: row for name, row in figures(current).items() if name in names}
    if "--measure" in sys.argv:
        known = {}
    if "--missing" in sys.argv:
        # The page has a row of question marks for a bug without figures.
        known = {name: row for name, row in known.items() if row != UNKNOWN}
    if {"--measure", "--missing", "--l0"} & set(sys.argv):
        known |= dict(measured(known, only_l0="--l0" in sys.argv))
    page_text = page(known)
    if "--check" in sys.argv:
        return int(page_text != current)
    TARGET.write_text(page_text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
