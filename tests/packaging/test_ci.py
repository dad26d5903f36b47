"""The files of .github agree with noxfile.py and pyproject.toml. `nox -s lint` checks them by their schemas.

The workflows themselves run at the host of the repository; no test runs them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the package has no types

from tests.source import PROJECT
from tests.suites import LONG, NEEDS, WITHOUT_SPARK

WORKFLOWS = sorted((PROJECT / ".github/workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+")
NOXFILE = (PROJECT / "noxfile.py").read_text("utf-8")


#: Programs that tests look for, and the package of Ubuntu that contains each. Runners have the others.
PROGRAMS = {
    "pgbouncer": "pgbouncer",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "strace": "strace",
}
OF_THE_RUNNER = {"bash", "jq", "kubectl", "mount", "postgres", "systemd-analyze", "unshare"}
#: Programs that a package of `.[dev]` contains.
OF_PIP = {"hadolint"}
SEARCHED = re.compile(r"(?:find_program|shutil\.which)\(\"([\w-]+)\"")


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return found


def constant(name: str) -> tuple[str, ...]:
    """Return a tuple that noxfile.py assigns."""
    for node in ast.parse(NOXFILE).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == name
        ):
            return tuple(ast.literal_eval(node.value))
    raise AssertionError(name)


def sessions() -> set[str]:
    names = {
        node.name
        for node in ast.parse(NOXFILE).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    return names | {f"tests-{version}" for version in constant("TESTED_PYTHONS")}


def test_the_matrix_and_the_classifiers_name_the_tested_versions() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    classified = [line.rpartition(" ")[2] for line in project["classifiers"] if line.startswith(prefix)]
    matrix = jobs(PROJECT / ".github/workflows/tests.yml")["tests"]["strategy"]["matrix"]["python"]

    assert list(constant("TESTED_PYTHONS")) == classified == matrix
    assert project["requires-python"] == f">={classified[0]}"


def test_the_matrix_has_every_source_of_servers() -> None:
    servers = jobs(PROJECT / ".github/workflows/tests.yml")["servers"]

    assert set(constant("SERVER_SOURCES")) == set(servers["strategy"]["matrix"]["source"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_named_session_exists(path: Path) -> None:
    matrices = [job["strategy"]["matrix"] for job in jobs(path).values() if "strategy" in job]
    named = {name for matrix in matrices for name in matrix.get("session", ())}

    assert named <= sessions()


def test_every_program_of_the_tests_is_installed() -> None:
    """A test that does not find its program is skipped, in the CI for ever."""
    folders = (PROJECT / "tests", PROJECT / "conformance")
    searched = {
        name
        for folder in folders
        for path in folder.rglob("*.py")
        for name in SEARCHED.findall(path.read_text("utf-8"))
    }
    steps = jobs(PROJECT / ".github/workflows/tests.yml")["tests"]["steps"]
    (installing,) = (step["run"] for step in steps if "apt-get" in step.get("run", ""))

    assert searched <= PROGRAMS.keys() | OF_THE_RUNNER | OF_PIP
    assert [] == [package for package in PROGRAMS.values() if f" {package}" not in installing]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_tokens_can_only_read(path: Path) -> None:
    """The tag of an action can be moved to other code, a commit cannot."""
    text = path.read_text("utf-8")
    uses = [line.strip(" -") for line in text.splitlines() if "uses:" in line]

    assert uses
    assert [] == [line for line in uses if not PINNED.fullmatch(line)]
    assert {"contents": "read"} == yaml.safe_load(text)["permissions"]


def test_each_session_of_nox_runs_in_a_workflow_or_is_for_measurements() -> None:
    text = "".join(path.read_text("utf-8") for path in WORKFLOWS)
    left_out = {
        name for name in sessions() if not name.startswith("tests") and not re.search(rf"\b{name}\b", text)
    }

    assert {"bench", "bench_flows", "bench_peers", "changelog"} == left_out


def test_the_tables_of_long_tests_and_of_packages_name_tests_that_exist() -> None:
    """A table with a name that has moved would let long tests run by default, or none."""
    names = [*LONG, *WITHOUT_SPARK, *NEEDS]

    assert [] == [name for name in names if not is_test(*name.split("::"))]


def is_test(path: str, function: str = "") -> bool:
    file = PROJECT / "tests" / path
    return file.exists() and (not function or f"def {function}(" in file.read_text("utf-8"))


def test_the_sessions_of_the_ci_run_all_long_tests() -> None:
    """`.ci/run` calls the sessions with the tag: four of them run the long tests of disjoint folders."""
    text = (PROJECT / ".ci/run").read_text("utf-8")
    tagged = set(re.findall(r"^@nox\.session\(tags=\[\"ci\"\].*\)\ndef (\w+)", NOXFILE, re.MULTILINE))

    assert "-t ci" in text
    assert {"browser", "docs", "lint", "tests", "types"} <= tagged
    assert {"tests_frameworks", "tests_kit", "tests_rest", "tests_spark"} <= tagged
