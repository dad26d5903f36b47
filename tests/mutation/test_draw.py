"""None"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.areas import AREAS, GRAMMARS, Area
from tests.mutation.calls import RecordedCalls, first_line_of_function
from tests.mutation.draw import draw
from tests.mutation.equivalents import Equivalent, read_equivalents, reason_for
from tests.mutation.recording import record_calls
from tests.mutation.runs import Effort, try_mutant
from tests.mutation.site import Edit, Site, find_sites
from tests.mutation.table import WIDTH, Tried, describe, summary
from tests.mutation.trees import snapshot
from tests.mutation.verdict import Verdict, failed_verdict
from tests.source import PROJECT


def test_the_same_seed_draws_the_same_mutants() -> None:
    first = draw(PROJECT, "memory", 7, 8)

    assert first == draw(PROJECT, "memory", 7, 8)
    assert first[:3] == draw(PROJECT, "memory", 7, 3)
    assert first != draw(PROJECT, "memory", 8, 8)


@pytest.mark.parametrize("area", AREAS.values(), ids=lambda area: area.name)
def test_every_pattern_of_an_area_finds_files(area: Area) -> None:
    for pattern in (*area.files, *area.without):
        assert list(PROJECT.glob(pattern)), pattern


def test_redis_and_postgres_have_mutants_in_python_and_in_scripts() -> None:
    redis, postgres = (
        {Path(one.file).suffix for one in draw(PROJECT, area, 1, 60)} for area in ("redis", "postgres")
    )

    assert {".py", ".lua"} == redis
    assert {".py", ".sql"} == postgres


def test_every_mutant_marked_as_equivalent_exists() -> None:
    """After a change of its line, a mutant must be tried again and marked again."""
    known = read_equivalents()
    files = {one.file: PROJECT / one.file for one in known}
    found = [
        site
        for name, file in files.items()
        for site in find_sites(name, file.read_text("utf-8"), GRAMMARS[file.suffix])
    ]

    assert [] == [one for one in known if not any(map(one.matches, found))]
    assert all(one.reason for one in known)


def test_a_marked_mutant_is_not_run() -> None:
    [first, second] = draw(PROJECT, "memory", 1, 2)
    known = [Equivalent(first.file, first.line_text, first.change, "no caller sees it")]

    assert "no caller sees it" == reason_for(first, known)
    assert "" == reason_for(second, known)


# -- A recorded run names the tests of a function, and a mutant of it is tried by them first ---------


TEXT = """\
import os

@cached
@checked
def outer(first=1):
    def inner():
        return 1
    return inner

NUMBER = 2
"""
MIRROR = "tests/model/test_duration_text.py"


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with snapshot(PROJECT) as copy:
        yield copy


@pytest.mark.parametrize(("line", "first"), [(1, 0), (5, 0), (6, 3), (7, 6), (8, 3), (10, 0)])
def test_a_line_belongs_to_the_innermost_function_whose_body_has_it(line: int, first: int) -> None:
    assert first == first_line_of_function(TEXT, line)


def test_the_tests_of_the_module_come_first_and_then_the_quickest(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(TEXT)
    names = ["tests/test_a.py::slow", "tests/test_a.py::quick", "tests/test_file.py::own", "tests/b.py::hour"]
    seconds = dict(zip(names, (2.0, 1.0, 3.0, 3600.0), strict=True))
    calls = RecordedCalls({"file.py": {3: {*names}, 6: {names[0], "tests/test_a.py::skipped"}}}, seconds)
    inner, outside = (Site("file.py", line, Edit(0, 0, "", ""), "", "") for line in (7, 10))

    assert [names[0]] == calls.tests_for(tmp_path, inner)
    assert [names[2], names[1], names[0]] == calls.tests_for(tmp_path, outside)


@pytest.mark.long
def test_a_mutant_is_tried_by_the_tests_that_called_its_function(tree: Path) -> None:
    area = Area(name="durations", files=("src/dibs/model/duration_text.py",), tests=MIRROR)
    verdict, calls = record_calls(tree, area, 60)
    mutant = next(site for site in area.sites(tree) if site.edit.operator == "return value")

    assert "survived" == verdict.outcome
    [first, *_] = calls.tests_for(tree, mutant)
    assert first.startswith(MIRROR)
    tried = try_mutant(tree, area, mutant, [], Effort(calls=calls, limit=60))
    assert ("killed", True) == (tried.outcome, tried.by in calls.seconds)


# -- A few known mutants are tried for real: the long form is `nox -s mutants` -----------------------


#: Fixed histories only, plus one random one on L0.
SHORT = Effort(level="L0", budget=0, examples=1, limit=60)


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
