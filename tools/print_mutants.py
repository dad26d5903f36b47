"""Writes docs/explanation/mutants.md, the bugs planted in the kit's own tests, from tests/kit/mutants.

python tools/print_mutants.py           writes it, with the figures that stand there
python tools/print_mutants.py --check   fails if it is not current
python tools/print_mutants.py --measure plays every one first, which takes minutes and starts servers
"""

# ruff: noqa: INP001, T201 - a script, imported by nobody but its test

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
TARGET = PROJECT / "docs" / "explanation" / "mutants.md"
sys.path.insert(0, str(PROJECT))

from dibs_conformance.servers import start_postgres, start_redis  # noqa: E402
from dibs_conformance.target import OpenStorage  # noqa: E402
from tests.kit.mutants import MUTANTS, Mutant  # noqa: E402
from tests.kit.mutants.planting import Where  # noqa: E402
from tests.kit.play import play  # noqa: E402
from tests.kit.postgres_place import PostgresPlaces  # noqa: E402
from tests.kit.redis_place import RedisPlaces  # noqa: E402

WHERE: dict[Where, str] = {
    "memory": "In the engine of memory and file",
    "file": "In the commit log",
    "redis": "In the Lua",
    "postgres": "In the SQL",
}
HEADER = """# Planted bugs

A kit that nobody tried to fool proves nothing. So its tests plant bugs in our own storages, one at a time,
and the kit must find each. There are {all}:
{places}.
{by_contract} of them, marked *, were made up from [the contract](contract.md) sentence by sentence, by
somebody who had not read the kit's laws. {survivors} survives, and says why.

*Found after* counts the histories that were played until then, the tour of fixed ones first, from seed 1. It
differs between versions of Hypothesis; that each is found within its bound does not.

Of the bugs from the contract, nine lived through their first trial. They are why the machine pauses queues
around a claim, reads in pages, reaps some of many, sends runs back twice, drops leases job by job, lets
readers fall behind, patches outcomes and enqueues two follow-ups; and why the oracle reads `reset_counts` for
itself.

<!-- Printed by tools/print_mutants.py from tests/kit/mutants. -->
"""
_ROW = re.compile(r"^\| (?P<name>[\w *]+?)\*? \|.*\| (?P<after>\d+|–) \|$", re.MULTILINE)  # noqa: RUF001 - a dash


def page(after: dict[str, str]) -> str:
    """Return the page; `after` are the figures by name."""
    mutants = list(MUTANTS.values())
    survivors = [mutant for mutant in mutants if mutant.survives]
    header = HEADER.format(
        all=len(mutants),
        places=", ".join(
            f"{sum(one.where == where for one in mutants)} {title[0].lower()}{title[1:]}"
            for where, title in WHERE.items()
        ),
        by_contract=sum(one.by_contract for one in mutants),
        survivors=len(survivors),
    )
    parts = [header]
    for where, title in WHERE.items():
        parts += ["", f"## {title}", "", "| bug | breaks | found after |", "|---|---|---|"]
        parts += [row(mutant, after) for mutant in mutants if mutant.where == where]
    parts += ["", "## Survivors", ""]
    parts += [f"- {spoken(one)}: {one.survives}." for one in survivors]
    return "\n".join(parts) + "\n"


def row(mutant: Mutant, after: dict[str, str]) -> str:
    mark = "*" if mutant.by_contract else ""
    found = "–" if mutant.survives else after.get(spoken(mutant), "?")  # noqa: RUF001
    return f"| {spoken(mutant)}{mark} | {mutant.breaks} | {found} |"


def spoken(mutant: Mutant) -> str:
    name = mutant.name.removeprefix("lua_").removeprefix("sql_")
    words = name.replace("_", " ")
    return words if name == mutant.name else f"{words} in {mutant.name[:3]}"


def figures(text: str) -> dict[str, str]:
    """Return what stands in the last column."""
    return {found["name"]: found["after"] for found in _ROW.finditer(text)}


def measured() -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        targets: dict[Where, str | OpenStorage] = {
            "memory": "memory:",
            "file": f"file:{stack.enter_context(tempfile.TemporaryDirectory())}",
            "redis": RedisPlaces(stack.enter_context(start_redis()).url),
        }
        postgres = stack.enter_context(start_postgres()).url
        for mutant in MUTANTS.values():
            with pytest.MonkeyPatch.context() as patch, PostgresPlaces(postgres) as places:
                mutant.plant(patch)
                target = targets.get(mutant.where, places)
                failure, trial = play(
                    mutant.examples, target=target, durable=mutant.where != "memory", tour=True
                )
            print(mutant.name, trial.examples if failure else "survives", flush=True)
            yield spoken(mutant), str(trial.examples) if failure else "–"  # noqa: RUF001


def main() -> int:
    stands = TARGET.read_text("utf-8") if TARGET.exists() else ""
    wanted = page(dict(measured()) if "--measure" in sys.argv else figures(stands))
    if "--check" in sys.argv:
        return int(wanted != stands)
    TARGET.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
