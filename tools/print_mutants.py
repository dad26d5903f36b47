"""Writes docs/explanation/mutants.md, the bugs planted in the kit's own tests, from tests/kit/mutants.

python tools/print_mutants.py           writes it, with the figures that stand there
python tools/print_mutants.py --check   fails if it is not current
python tools/print_mutants.py --measure plays every one first, which takes long and starts servers
"""

# ruff: noqa: INP001, T201 - a script, imported by nobody but its test

from __future__ import annotations

import logging
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import frozen

PROJECT = Path(__file__).parent.parent
TARGET = PROJECT / "docs" / "explanation" / "mutants.md"
sys.path.insert(0, str(PROJECT))

from dibs_conformance.laws import LAWS  # noqa: E402
from dibs_conformance.servers import start_postgres, start_redis  # noqa: E402
from dibs_conformance.target import OpenStorage  # noqa: E402
from tests.kit.concurrent.test_levels import ALONE, SHARED  # noqa: E402
from tests.kit.mutants import MUTANTS, Mutant  # noqa: E402
from tests.kit.mutants.planting import Where  # noqa: E402
from tests.kit.play import play, play_level  # noqa: E402
from tests.kit.postgres_locations import PostgresLocations  # noqa: E402
from tests.kit.redis_locations import RedisLocations  # noqa: E402


@frozen
class Room:
    """A place where bugs are planted, and the levels that are tried alone, with histories at most."""

    title: str
    above: dict[str, int]


ROOMS: dict[Where, Room] = {
    "memory": Room("In the engine of memory and file", {"L1": 200, "L2": 300, "L3": 1}),
    "file": Room("In the commit log", {"L1": 40}),
    "redis": Room("In the Lua", {}),
    "postgres": Room("In the SQL", {}),
}
LEVELS = ("L0", "L1", "L2", "L3")
ORACLE = "the oracle"
NOT_FOUND, NOT_TRIED = "–", ""  # noqa: RUF001 - a dash

HEADER = """# Planted bugs

A kit that nobody tried to fool proves nothing. So its tests plant bugs in our own storages, one at a time,
and the kit must find each. There are {all}:
{places}.
{by_contract} of them, marked *, were made up from [the contract](contract.md) sentence by sentence, by
somebody who had not read the kit's laws. {survivors} survives one call at a time, and says why.

## Caught by level

Each level was played alone, without those below it, from seed 1, as far as it makes sense: the levels above
L0 in the engine, where all happens in the process that has the bug in it, and L1 on the commit log.

{by_level}

The slowest catch on L0: {slowest}.
The levels above are not there for bugs that one call at a time shows, and have fewer verbs;
[what they are there for](#what-one-call-at-a-time-cannot-show) stands below.

On L0 {by_oracle} were first seen by comparison with the oracle, {by_law} by a law, which judges before it.
{idle}

In the tables stands for each level the number of histories that were played until the bug was found, on L0
the tour of fixed ones first; – was not found, an empty field was not tried. The figures differ between
versions of Hypothesis; that each is found within its bound on L0 does not.

Of the bugs from the contract, nine lived through their first trial. They are why the machine pauses queues
around a claim, reads in pages, reaps some of many, sends runs back twice, drops leases job by job, lets
readers fall behind, patches outcomes and enqueues two follow-ups; and why the oracle reads `reset_counts` for
itself.

<!-- Printed by tools/print_mutants.py from tests/kit/mutants. -->
"""  # noqa: RUF001 - a dash
RACES = """
## What one call at a time cannot show

These are right in every single call. Each is planted in a test of its own, and must be found on its level.

| bug | found on | by | planted in `tests/kit/` |
|---|---|---|---|
| memory without its lock | L1 | lines of two verbs in turn | `races` |
| the file storage without its lock | L1 | the same | `races` |
| a settlement in two steps with an await between | L3 | a caller cancelled at each await | `crashes` |
| a settlement in two commits | L3 | a process killed at each line | `crashes` |
| what got no reply is sent again in silence | L3 | the connection cut at each byte | `crashes` |
| an fsync forgotten: of a commit, a checkpoint, their folder | L3 | lost power | `crashes` |
| what a full server refused is told as done | L4 | a full server | `faults` |
"""
_ROW = re.compile(r"^\| (?P<name>[\w *]+?)\*? \| [^|]* \| (?P<figures>[^|]*(\|[^|\n]*){4}) \|$", re.MULTILINE)

#: Who found it on L0, and after how many histories on each level.
Figures = tuple[str, ...]
UNKNOWN: Figures = ("?",) * (1 + len(LEVELS))


def page(known: dict[str, Figures]) -> str:
    """Return the page; `known` are the figures by name."""
    mutants = list(MUTANTS.values())
    survivors = [mutant for mutant in mutants if mutant.survives]
    parts = [header(mutants, survivors, known)]
    for where, room in ROOMS.items():
        parts += ["", f"## {room.title}", "", f"| bug | breaks | first seen by | {' | '.join(LEVELS)} |"]
        parts += ["|---|---|---|" + "---|" * len(LEVELS)]
        parts += [row(mutant, known) for mutant in mutants if mutant.where == where]
    parts += [RACES, "## Survivors of L0", ""]
    parts += [f"- {spoken(one)}: {one.survives}." for one in survivors]
    return "\n".join(parts) + "\n"


def header(mutants: Sequence[Mutant], survivors: Sequence[Mutant], known: dict[str, Figures]) -> str:
    first = [known.get(spoken(one), UNKNOWN)[0] for one in mutants if not one.survives]
    by_oracle = sum(name == ORACLE for name in first)
    return HEADER.format(
        all=len(mutants),
        locations=", ".join(
            f"{sum(one.where == where for one in mutants)} {room.title[0].lower()}{room.title[1:]}"
            for where, room in ROOMS.items()
        ),
        by_contract=sum(one.by_contract for one in mutants),
        survivors=len(survivors),
        by_level=by_level(mutants, known),
        slowest=slowest(known),
        by_oracle=by_oracle,
        by_law=len(first) - by_oracle,
        idle=idle(first),
    )


def by_level(mutants: Sequence[Mutant], known: dict[str, Figures]) -> str:
    """Tell how many each level found, of those that it was tried on."""
    lines = [
        f"| level | {' | '.join(room.title for room in ROOMS.values())} |",
        "|---" * (1 + len(ROOMS)) + "|",
    ]
    for at, level in enumerate(LEVELS, 1):
        cells = []
        for where in ROOMS:
            tried = [known.get(spoken(one), UNKNOWN)[at] for one in mutants if one.where == where]
            tried = [figure for figure in tried if figure != NOT_TRIED]
            found = sum(figure != NOT_FOUND for figure in tried)
            cells.append(f"{found} of {len(tried)}" if tried else NOT_TRIED)
        lines.append(f"| {level} | {' | '.join(cells)} |")
    return "\n".join(lines)


def slowest(known: dict[str, Figures]) -> str:
    after, name = max(((int(f[1]), name) for name, f in known.items() if f[1].isdigit()), default=(0, "?"))
    return f"*{name}*, after {after} histories"


def idle(first: Sequence[str]) -> str:
    """Name the laws that were never the first to see a bug: what they say, another said before."""
    names = [law.name for law in LAWS if law.name not in first]
    if not names:
        return "Every law was the first to see at least one of them."
    quoted = ", ".join(f"*{name}*" for name in names)
    return (
        f"Never the first: {quoted}.\n"
        "No planted bug needs these, as others see the same; they stay for a day when the oracle is wrong."
    )


def row(mutant: Mutant, known: dict[str, Figures]) -> str:
    mark = "*" if mutant.by_contract else ""
    figures = " | ".join(known.get(spoken(mutant), UNKNOWN))
    return f"| {spoken(mutant)}{mark} | {mutant.breaks} | {figures} |"


def spoken(mutant: Mutant) -> str:
    name = mutant.name.removeprefix("lua_").removeprefix("sql_")
    words = name.replace("_", " ")
    return words if name == mutant.name else f"{words} in {mutant.name[:3]}"


def figures(text: str) -> dict[str, Figures]:
    """Return what stands in the last columns."""
    return {
        found["name"]: tuple(cell.strip() for cell in found["figures"].split("|"))
        for found in _ROW.finditer(text)
        if found["name"] != "bug"
    }


# -- measuring ---------------------------------------------------------------------------------------


def measured() -> Iterator[tuple[str, Figures]]:
    logging.getLogger("dibs.storage").setLevel(logging.ERROR)
    with ExitStack() as stack:
        targets: dict[Where, str | OpenStorage] = {
            "memory": "memory:",
            "file": f"file:{stack.enter_context(tempfile.TemporaryDirectory())}",
            "redis": RedisLocations(stack.enter_context(start_redis()).url),
        }
        postgres = stack.enter_context(start_postgres()).url
        for mutant in MUTANTS.values():
            with pytest.MonkeyPatch.context() as patch, PostgresLocations(postgres) as locations:
                mutant.plant(patch)
                target = targets.get(mutant.where, locations)
                found = (*on_l0(mutant, target), *on_the_others(mutant, target))
            print(mutant.name, *found, flush=True)
            yield spoken(mutant), found


def on_l0(mutant: Mutant, target: str | OpenStorage) -> tuple[str, str]:
    failure, session = play(
        mutant.examples, target=target, durable=mutant.where != "memory", walkthrough=True
    )
    if failure is None:
        return NOT_FOUND, NOT_FOUND
    return (failure.law if failure.law in {law.name for law in LAWS} else ORACLE), str(session.examples)


def on_the_others(mutant: Mutant, target: str | OpenStorage) -> Iterator[str]:
    claims = ALONE if mutant.where == "memory" else SHARED
    for level in LEVELS[1:]:
        most = ROOMS[mutant.where].above.get(level)
        if most is None or not isinstance(target, str):
            yield NOT_TRIED
            continue
        found = play_level(level, target, claims, most)
        yield str(found.histories) if found.failures else NOT_FOUND


def main() -> int:
    stands = TARGET.read_text("utf-8") if TARGET.exists() else ""
    wanted = page(dict(measured()) if "--measure" in sys.argv else figures(stands))
    if "--check" in sys.argv:
        return int(wanted != stands)
    TARGET.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
