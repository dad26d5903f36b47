"""The tests of `pytest --dibs-storage mypkg:open_storage`: one for each capability and one for each level.

All of them share one certification, which runs with the first test. A test of a capability fails if the
storage claims it and does not have it; a test of a level fails if the level is not reached. The summary names
capabilities that work and are not claimed.
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
from dibs.storage.registry import factory, parse_scheme
from dibs_conformance.certification import certify, check_effort, check_level, levels_up_to
from dibs_conformance.report import CertificationReport, LevelReport
from dibs_conformance.report.text import (
    capability_line,
    failure_lines,
    level_line,
    level_lines,
    summary_lines,
)
from dibs_conformance.target import OpenStorage

CAPABILITIES: Final = tuple(field.name for field in attrs.fields(Capabilities))


class ConformancePlugin:
    """The pytest plugin of a run with --dibs-storage. It adds the tests and prints the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._target = find_target(config.getoption("dibs_storage"))
        self.level: str = config.getoption("dibs_level")
        self._report: CertificationReport | None = None

    def report(self) -> CertificationReport:
        """Return the report of the certification. The first call runs the certification."""
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
        collector = ConformanceCollector.from_parent(session, name="dibs", plugin=self)
        items += collector.collect()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._report is None:
            return
        terminalreporter.section("dibs conformance")
        for line in (*summary_lines(self._report), *unclaimed_capabilities(self._report)):
            terminalreporter.line(line)


def create_plugin(config: pytest.Config) -> ConformancePlugin:
    """Return the plugin for a run. Raises UsageError for invalid options."""
    try:
        check_level(config.getoption("dibs_level"))
        check_effort(config.getoption("dibs_budget"), config.getoption("dibs_examples"))
    except Refused as error:
        raise pytest.UsageError(f"--dibs-{error.field}: {error}") from None
    return ConformancePlugin(config)


class ConformanceCollector(pytest.Collector):
    """The node under which pytest lists the tests of the kit."""

    def __init__(self, plugin: ConformancePlugin, **options: Any) -> None:
        super().__init__(**options)
        self._plugin = plugin

    def collect(self) -> list[pytest.Item]:
        return [
            *(self._item(CapabilityItem, f"claims {name}", name) for name in CAPABILITIES),
            *(self._item(LevelItem, f"reaches {name}", name) for name in levels_up_to(self._plugin.level)),
        ]

    def _item(self, kind: type[ConformanceItem], name: str, subject: str) -> pytest.Item:
        return kind.from_parent(self, name=name, subject=subject, plugin=self._plugin)


class NotConformant(Exception):
    """A capability or a level fails its test. The text of the exception is the report."""


class ConformanceItem(pytest.Item):
    """A test of one capability or level. `subject` is its name, such as "durable" or "L0"."""

    def __init__(self, plugin: ConformancePlugin, subject: str, **options: Any) -> None:
        super().__init__(**options)
        self._plugin, self._subject = plugin, subject

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text of a NotConformant without a traceback, which would only show code of the kit."""
        if isinstance(excinfo.value, NotConformant):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"dibs {self.name}"


class CapabilityItem(ConformanceItem):
    """A test that fails if the storage claims a capability and the kit found that it does not work."""

    def runtest(self) -> None:
        capabilities = self._plugin.report().capabilities
        [capability] = [one for one in capabilities if one.name == self._subject]
        if not capability.holds:
            raise NotConformant(f"{capability_line(capability)}: claim only capabilities that work")


class LevelItem(ConformanceItem):
    """A test that fails if a law of the level is broken, or if a part of the level was not tested."""

    def runtest(self) -> None:
        [level] = [one for one in self._plugin.report().levels if one.name == self._subject]
        if level.verdict != "reached":
            raise NotConformant("\n".join(missing_lines(level)))


def missing_lines(level: LevelReport) -> Iterator[str]:
    """Yield the lines that explain why a level is not reached."""
    yield level_line(level)
    yield from level_lines(level)
    for failure in level.failures:
        yield from failure_lines(failure)


def unclaimed_capabilities(report: CertificationReport) -> Iterator[str]:
    """Yield a line for each capability that works and is not claimed. dibs uses only claimed capabilities."""
    for capability in report.capabilities:
        if capability.found and not capability.claimed:
            yield f"{capability.name} works and is not claimed: claim it, and the kit tests more"


def find_target(text: str) -> str | OpenStorage:
    """Return the storage that --dibs-storage names: the URL itself, or the function at `module:name`."""
    try:
        factory(parse_scheme(text))
    except ConfigurationError as error:
        return import_function(text, str(error))
    return text


def import_function(text: str, not_a_url: str) -> OpenStorage:
    """Import the function at `module:name`.

    Raise UsageError if that fails. `not_a_url` is the reason why `text` is not a URL, for the error.
    """
    module, _, name = text.partition(":")
    try:
        found: OpenStorage = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"--dibs-storage {text}: {error}. Expected module:function, a function of location and clock "
            f"that can be imported here, or the URL of a storage: {not_a_url}"
        ) from None
    return found
