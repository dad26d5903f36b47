"""The report of a run: a table of 80 columns, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from tests.mutation.site import Site, one_line
from tests.mutation.verdict import Verdict

WIDTH: Final = 80
_INDENT: Final = " " * 12
_ROW: Final = "{:<10}{:>6}{:>8}{:>13}{:>10}{:>12}{:>11}{:>7}"


@frozen
class Tried:
    """One mutant of an area with its verdict."""

    area: str
    site: Site
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the report in JSON."""
        site, verdict = self.site, self.verdict
        return {
            "area": self.area,
            "file": site.file,
            "line": site.line,
            "text": site.line_text,
            "operator": site.edit.operator,
            "change": site.change,
            "outcome": verdict.outcome,
            "by": verdict.by,
            "note": verdict.note,
            "seconds": verdict.seconds,
            "cpu": verdict.cpu,
        }


def summary(tried: Sequence[Tried]) -> str:
    """Return a table with the numbers of mutants by area, and the share of the valid mutants that was killed.

    A mutant is valid unless it is equivalent or not a program. If only the tests of a storage found it, it
    counts as valid and not killed.
    """
    head = ("area", "drawn", "killed", "other tests", "survived", "equivalent", "not valid", "%")
    rows = [_ROW.format(*head)]
    areas = list(dict.fromkeys(one.area for one in tried))
    rows += [_row(area, [one for one in tried if one.area == area]) for area in areas]
    if len(areas) > 1:
        rows.append(_row("all", tried))
    return "\n".join(rows)


def _row(name: str, tried: Sequence[Tried]) -> str:
    counts: Mapping[str, int] = Counter(one.verdict.outcome for one in tried)
    killed, missed = counts["killed"], counts["survived"] + counts["other tests"]
    share = f"{100 * killed / (killed + missed):.1f}" if killed + missed else "-"
    others = [counts[outcome] for outcome in ("other tests", "survived", "equivalent", "not valid")]
    return _ROW.format(name, len(tried), killed, *others, share)


def describe(one: Tried) -> str:
    """Return the lines about one mutant: its outcome, its place, its line and the mutation."""
    return "\n".join(_lines(one))


def _lines(one: Tried) -> Iterator[str]:
    site, verdict = one.site, one.verdict
    yield f"{verdict.outcome:<11} {site.file}:{site.line}"
    yield _indented(site.line_text)
    yield _indented(f"{site.edit.operator}: {site.change}")
    if verdict.by or verdict.outcome != "killed":
        yield _indented(f"{verdict.seconds:.0f} s, CPU {verdict.cpu:.1f}; {verdict.by or verdict.note}")


def _indented(text: str) -> str:
    most = WIDTH - len(_INDENT)
    shown = one_line(text)
    return _INDENT + (shown if len(shown) <= most else f"{shown[: most - 4]} ...")
