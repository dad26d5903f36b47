from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.areas import AREAS, Area
from tests.mutation.draw import draw
from tests.mutation.equivalents import Equivalent, read_equivalents, reason_for
from tests.source import PROJECT


@pytest.mark.parametrize("area", ["memory", "redis", "postgres", "sqlite"])
def test_the_same_seed_draws_the_same_mutants(area: str) -> None:
    first = draw(PROJECT, area, 7, 8)

    assert first == draw(PROJECT, area, 7, 8)
    assert first[:3] == draw(PROJECT, area, 7, 3)
    assert first != draw(PROJECT, area, 8, 8)


@pytest.mark.parametrize("area", AREAS.values(), ids=lambda area: area.name)
def test_every_pattern_of_an_area_finds_files(area: Area) -> None:
    for pattern in (*area.files, *area.without):
        assert list(PROJECT.glob(pattern)), pattern


def test_redis_and_postgres_have_mutants_in_python_and_in_scripts() -> None:
    suffixes = {area: {Path(one.file).suffix for one in draw(PROJECT, area, 1, 60)} for area in AREAS}

    assert {".py", ".lua"} == suffixes["redis"]
    assert {".py", ".sql"} == suffixes["postgres"]


def test_a_function_that_a_later_migration_replaces_has_no_mutants() -> None:
    """0012_clock.sql replaces the function tick of 0002_place.sql: the older text never runs."""
    migrations = PROJECT / "src/dibs/storage/postgres/migrations"
    old = (migrations / "0002_place.sql").read_text("utf-8")
    began = old.index("FUNCTION tick(")
    ended = old.index("$$;", began)
    sites = [one for one in AREAS["postgres"].sites(PROJECT) if one.file.endswith("0002_place.sql")]

    assert sites
    assert not [one for one in sites if began < one.edit.start < ended]


def test_every_mutant_marked_as_equivalent_exists() -> None:
    """After a change of its line, a mutant must be tried again and marked again."""
    drawn = [site for area in AREAS.values() for site in area.sites(PROJECT)]
    sites = {(site.file, site.line_text, site.change) for site in drawn}

    assert [] == [one for one in read_equivalents() if (one.file, one.line, one.change) not in sites]
    assert all(one.reason for one in read_equivalents())


def test_a_marked_mutant_is_not_run() -> None:
    [first, second] = draw(PROJECT, "memory", 1, 2)
    known = [Equivalent(first.file, first.line_text, first.change, "no caller sees it")]

    assert "no caller sees it" == reason_for(first, known)
    assert "" == reason_for(second, known)
