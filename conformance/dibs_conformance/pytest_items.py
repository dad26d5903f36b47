"""For `pytest --dibs-storage mypkg:open_storage`: the kit as tests, one for each power and each level.

One certification serves them all; it runs when the first of them does. An untrue claim fails, so does a level
that is not reached; a power that is there and not claimed is told in the summary.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from dibs.errors import ConfigurationError, Refused
from dibs.storage.capabilities import Capabilities
from dibs.storage.registry import factory, scheme_of
from dibs_conformance.certification import certify, check_effort, check_level, names_up_to
from dibs_conformance.report import LevelReport, Report
from dibs_conformance.report.text import capability_line, details, head, level_line, story
from dibs_conformance.target import OpenStorage

POWERS: Final = tuple(field.name for field in attrs.fields(Capabilities))


class StorageUnderTest:
    """The plugin of a run with --dibs-storage: collects the tests, and shows what came of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._target = target_of(config.getoption("dibs_storage"))
        self.level: str = config.getoption("dibs_level")
        self._report: Report | None = None

    def report(self) -> Report:
        """Return what was found; the first who asks waits for it."""
        if self._report is None:
            options = {
                name: self._config.getoption(f"dibs_{name}") for name in ("budget", "examples", "seed")
            }
            self._report = certify(self._target, self.level, **options)
            for form in ("html", "badge"):
                path = self._config.getoption(f"dibs_{form}")
                if path is not None:
                    Path(path).write_text(getattr(self._report, form)(), "utf-8")
        return self._report

    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        collector = Kit.from_parent(session, name="dibs", under_test=self)
        items += collector.collect()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._report is None:
            return
        terminalreporter.section("dibs conformance")
        for line in (*head(self._report), *unclaimed(self._report)):
            terminalreporter.line(line)


def under_test(config: pytest.Config) -> StorageUnderTest:
    """Return the plugin for a run, its options checked. Raises UsageError."""
    try:
        check_level(config.getoption("dibs_level"))
        check_effort(config.getoption("dibs_budget"), config.getoption("dibs_examples"))
    except Refused as error:
        raise pytest.UsageError(f"--dibs-{error.field}: {error}") from None
    return StorageUnderTest(config)


class Kit(pytest.Collector):
    """Where the tests hang."""

    def __init__(self, under_test: StorageUnderTest, **words: Any) -> None:
        super().__init__(**words)
        self._under_test = under_test

    def collect(self) -> list[pytest.Item]:
        return [
            *(self._part(Power, f"claims {name}", name) for name in POWERS),
            *(self._part(Level, f"reaches {name}", name) for name in names_up_to(self._under_test.level)),
        ]

    def _part(self, kind: type[Part], name: str, of: str) -> pytest.Item:
        return kind.from_parent(self, name=name, of=of, under_test=self._under_test)


class Found(Exception):
    """What the kit found, as text."""


class Part(pytest.Item):
    """A test about one power or level, by name."""

    def __init__(self, under_test: StorageUnderTest, of: str, **words: Any) -> None:
        super().__init__(**words)
        self._under_test, self._of = under_test, of

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show what was found, without a traceback through the kit."""
        if isinstance(excinfo.value, Found):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"dibs {self.name}"


class Power(Part):
    """Whether a power is as the storage says."""

    def runtest(self) -> None:
        [power] = [one for one in self._under_test.report().capabilities if one.name == self._of]
        if not power.holds:
            raise Found(f"{capability_line(power)}: claim it only if it is there")


class Level(Part):
    """Whether a level is reached."""

    def runtest(self) -> None:
        [level] = [one for one in self._under_test.report().levels if one.name == self._of]
        if level.verdict != "reached":
            raise Found("\n".join(missing(level)))


def missing(level: LevelReport) -> Iterator[str]:
    """Tell why a level is not reached."""
    yield level_line(level)
    yield from details(level)
    for law in level.laws:
        if law.verdict == "not tested":
            yield f"  not tested: {law.name}: nothing led to where it speaks; a larger budget may"
    for failure in level.failures:
        yield from story(failure)


def unclaimed(report: Report) -> Iterator[str]:
    """Tell of powers that are there and not claimed: nobody will use them."""
    for power in report.capabilities:
        if power.found and not power.claimed:
            yield f"{power.name} is there and not claimed: claim it, and the kit tests more"


def target_of(text: str) -> str | OpenStorage:
    """Return the storage that is meant: a URL of a scheme that is known, or a function by its dotted name."""
    try:
        factory(scheme_of(text))
    except ConfigurationError as error:
        return function_at(text, str(error))
    return text


def function_at(text: str, otherwise: str) -> OpenStorage:
    module, _, name = text.partition(":")
    try:
        found: OpenStorage = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"--dibs-storage {text}: {error}. It is neither module:open_storage, a function of place and "
            f"clock that can be imported here, nor the URL of a storage: {otherwise}"
        ) from None
    return found
