"""The report as one page of HTML that needs nothing else, and as a badge."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from dibs_conformance.levels import TITLES
from dibs_conformance.report.text import power_line, verdict
from dibs_conformance.report.values import LevelReport, Report

#: Width and height of the drawing, and of a step of the stairs in it.
WIDTH: Final = 860
STEP: Final = (168, 46)
#: Of a character of the badge's font at 11 px, about: enough that no text is cut.
CHARACTER: Final = 6.6


class Stair(NamedTuple):
    """One level, drawn as a step: where its tread begins, and how high it is."""

    name: str
    title: str
    #: What colours it: reached, broken, not-tested, not-run.
    mark: str
    note: str
    x: int
    y: int


def page(report: Report) -> str:
    """Return the whole page. Everything in it that came from outside is escaped."""
    return (
        templates()
        .get_template("page.html")
        .render(
            report=report,
            verdict=verdict(report),
            mark=mark_of(report),
            stairs=stairs(report),
            width=WIDTH,
            step=STEP,
            height=STEP[1] * (len(TITLES) + 1) + 24,
            powers=[power_line(power) for power in report.capabilities],
        )
    )


def badge(report: Report) -> str:
    """Return an SVG of one line: what was reached, or that the contract is broken."""
    mark = "broken" if report.failures else "reached" if report.reached else "not-tested"
    said = report.reached if mark == "reached" else mark.replace("-", " ")
    left = "dibs contract"
    sizes = [round(CHARACTER * len(text)) + 12 for text in (left, said)]
    return (
        templates().get_template("badge.svg").render(left=left, said=said, mark=mark, a=sizes[0], b=sizes[1])
    )


def mark_of(report: Report) -> str:
    if report.failures:
        return "broken"
    return "reached" if report.certified else "not-tested"


def stairs(report: Report) -> list[Stair]:
    """Return all levels there are, lowest first, also those that were not asked for."""
    found = {level.name: level for level in report.levels}
    run, rise = STEP
    return [
        Stair(name, title, *coloured(found.get(name)), x=10 + run * n, y=rise * (len(TITLES) - n))
        for n, (name, title) in enumerate(TITLES.items())
    ]


def coloured(level: LevelReport | None) -> tuple[str, str]:
    if level is None:
        return "not-run", "not asked for"
    if level.verdict in ("reached", "not tested") and level.histories:
        return level.verdict.replace(" ", "-"), f"{level.verdict}: {level.histories:,} histories"
    return level.verdict.replace(" ", "-"), level.verdict


@cache
def templates() -> Environment:
    return Environment(
        loader=PackageLoader("dibs_conformance.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
