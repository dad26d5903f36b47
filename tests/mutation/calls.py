"""The tests that call a function, in any process, as recorded in a run of the unchanged code."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import field, frozen

from tests.mutation.site import Site

#: The most seconds of tests that are chosen for one mutant. The longest tests are left out.
MOST_SECONDS: Final = 30.0


@frozen
class RecordedCalls:
    """Which tests call which function, and how long each test takes."""

    #: Names of tests by file and by first line of a function, decorators included.
    callers: Mapping[str, Mapping[int, set[str]]] = field(factory=dict)
    #: Seconds of each test that ran.
    seconds: Mapping[str, float] = field(factory=dict)

    def tests_for(self, tree: Path, site: Site) -> list[str]:
        """Return the tests that call the mutated function: first those of its module, then the quickest.

        For a line outside of functions, and for a function that no test calls, return the tests that call
        any function of the module.
        """
        functions = self.callers.get(site.file, {})
        first = first_line_of_function((tree / site.file).read_text("utf-8"), site.line)
        callers = functions.get(first) or {test for tests in functions.values() for test in tests}
        mirror = f"/test_{Path(site.file).stem}.py::"
        known = [test for test in callers if test in self.seconds]
        known.sort(key=lambda test: (mirror not in test, self.seconds[test], test))
        return list(self._within_limit(known))

    def _within_limit(self, tests: list[str]) -> Iterator[str]:
        left = MOST_SECONDS
        for test in tests:
            left -= self.seconds[test]
            if left >= 0:
                yield test


def first_line_of_function(text: str, line: int) -> int:
    """Return the first line of the innermost function around a line, decorators included; 0 for none."""
    found = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            # Defaults and decorators belong to the code around the function.
            if node.body[0].lineno <= line <= (node.end_lineno or 0):
                found = max(found, first)
    return found


def read_calls(folder: Path) -> RecordedCalls:
    """Return what a run recorded in `folder`: a file of calls for each process, and the file of durations."""
    callers: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file in (folder / "calls").iterdir():
        for row in file.read_text("utf-8").splitlines():
            test, source, line = row.split("\t")
            callers[source][int(line)].add(test.rpartition(" (")[0])
    seconds: dict[str, float] = defaultdict(float)
    for row in (folder / "seconds").read_text("utf-8").splitlines():
        test, duration = row.split("\t")
        seconds[test] += float(duration)
    return RecordedCalls(callers, seconds)
