from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.areas import AREAS, GRAMMARS, Area
from tests.mutation.draw import draw
from tests.mutation.equivalents import Equivalent, read_equivalents, reason_for
from tests.mutation.site import find_sites
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
