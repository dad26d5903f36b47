"""A few known mutants are tried for real: the long form is `nox -s mutants`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.areas import AREAS, Area
from tests.mutation.runs import Effort, try_mutant
from tests.mutation.site import Edit, Site
from tests.mutation.table import WIDTH, Tried, describe, summary
from tests.mutation.trees import snapshot
from tests.mutation.verdict import Verdict, failed_verdict
from tests.source import PROJECT

#: Fixed histories only, plus one random one on L0.
SHORT = Effort(level="L0", budget=0, examples=1, limit=60)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with snapshot(PROJECT) as copy:
        yield copy


def site(file: str, line: str, change: str) -> Site:
    found = [one for one in AREAS["memory"].sites(PROJECT) if one.file == f"src/dibs/storage/indexed/{file}"]
    [chosen] = [one for one in found if (one.line_text, one.change) == (line, change)]
    return chosen


@pytest.mark.long
def test_a_mutant_of_the_storage_is_killed(tree: Path) -> None:
    call = "_apply_action(index, queue, slot, decision)"
    mutant = site("settling.py", call, f"{call} -> pass")

    verdict = try_mutant(tree, AREAS["memory"], mutant, ["memory:"], SHORT)

    assert ("killed", "L0") == (verdict.outcome, verdict.by[:2]), verdict


@pytest.mark.long
def test_a_mutant_outside_of_the_storages_is_killed_by_the_test_of_its_name(tree: Path) -> None:
    area = Area(name="results", files=("src/dibs/model/results.py",), tests="tests/model")
    [mutant] = [one for one in area.sites(PROJECT) if one.line_text == "scheduled: int = 0"]

    verdict = try_mutant(tree, area, mutant, [], SHORT)

    assert ("killed", "tests/model/test_results.py::test_the_counts_of_an_unknown_queue_are_zero") == (
        verdict.outcome,
        verdict.by,
    )


def test_a_mutant_that_hangs_is_killed_at_the_time_limit(tree: Path) -> None:
    effort = Effort(level="L0", budget=0, examples=1, limit=0.2)

    assert "time limit" == try_mutant(tree, AREAS["memory"], None, ["memory:"], effort).by


@pytest.mark.long
def test_a_storage_that_no_longer_claims_what_a_level_needs_is_killed(tree: Path) -> None:
    """Without the capability `manual_clock`, L0 runs no history, so no level is reached."""
    file = "src/dibs/storage/memory.py"
    text = (PROJECT / file).read_text("utf-8")
    flags = [
        one for one in AREAS["memory"].sites(PROJECT) if (one.file, one.change) == (file, "True -> False")
    ]
    [mutant] = [one for one in flags if "manual_clock=False" in one.apply(text)]

    verdict = try_mutant(tree, AREAS["memory"], mutant, ["memory:"], SHORT)

    assert ("killed", "L0 is not reached") == (verdict.outcome, verdict.by)


def test_a_mutant_is_not_killed_at_the_time_limit_if_the_unchanged_code_is_slow_too(tree: Path) -> None:
    call = "_apply_action(index, queue, slot, decision)"
    effort = Effort(level="L0", budget=0, examples=1, limit=0.2)

    verdict = try_mutant(
        tree, AREAS["memory"], site("settling.py", call, f"{call} -> pass"), ["memory:"], effort
    )

    assert "survived" == verdict.outcome
    assert "the unchanged code was slow" in verdict.note


@pytest.mark.long
def test_a_module_that_cannot_be_imported_is_no_valid_mutant(tree: Path) -> None:
    text = (PROJECT / "src/dibs/storage/indexed/claiming.py").read_text("utf-8")
    at = text.index("from dibs")
    broken = Site("src/dibs/storage/indexed/claiming.py", 1, Edit(at, at, "import nowhere\n", ""), "", "")

    verdict = try_mutant(tree, AREAS["memory"], broken, ["memory:"], SHORT)

    assert "not valid" == verdict.outcome
    assert "nowhere" in verdict.note


@pytest.mark.parametrize(
    "message", ["ERR Error compiling script: x", 'syntax error at or near "AND"', 'near "NULL": syntax error']
)
def test_text_that_is_no_lua_or_sql_is_no_valid_mutant(message: str) -> None:
    assert "not valid" == failed_verdict("L0", "ResponseError", message).outcome


def test_the_report_fits_into_80_columns() -> None:
    one = site("claiming.py", "if lease is None or lease.expires_at <= index.now:", "<= -> <")
    tried = [
        Tried("memory", one, Verdict("killed", "L0 leases end exactly at their expiry", "why " * 99, 3.5)),
        Tried("postgres", one, Verdict("survived", note="reached L2, 100 histories", seconds=60.2)),
        Tried("postgres", one, Verdict("equivalent", note="the same " * 30)),
    ]
    text = "\n".join([*map(describe, tried), summary(tried)])

    assert WIDTH >= max(map(len, text.splitlines()))
    assert "50.0" in text.splitlines()[-1]
