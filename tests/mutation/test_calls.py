"""A recorded run names the tests of a function, and a mutant of it is tried by them first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.areas import Area
from tests.mutation.calls import RecordedCalls, first_line_of_function
from tests.mutation.recording import record_calls
from tests.mutation.runs import Effort, try_mutant
from tests.mutation.site import Edit, Site
from tests.mutation.trees import snapshot
from tests.source import PROJECT

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
