"""Runs the tests of an area on one tree, in a process with a time limit."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import msgspec
from attrs import frozen

from tests.mutation.areas import Area
from tests.mutation.calls import RecordedCalls
from tests.mutation.site import Site
from tests.mutation.trees import environment, mutated
from tests.mutation.verdict import Verdict

_FAILED_TEST: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
#: The killer of a mutant that takes too long.
TIME_LIMIT: Final = "time limit"
#: Exit codes of pytest.
_ALL_PASSED, _NOTHING_COLLECTED = 0, 5
_PLUGIN: Final = "tests.mutation.chosen_tests"
_NO_ENV: Final[Mapping[str, str]] = {}


@frozen(kw_only=True)
class Effort:
    """How much is spent on one mutant. `limit` is the longest run in seconds; a longer one is killed."""

    seed: int = 1
    level: str = "L2"
    budget: float = 60.0
    #: Number of histories on each level instead of the budget; 0 uses the budget.
    examples: int = 0
    limit: float = 600.0
    #: Run the tests of the storage, too, on a mutant that survived the kit.
    own_tests: bool = False
    #: Which tests call which functions, to run those of the mutated function first; None if not recorded.
    calls: RecordedCalls | None = None


def try_mutant(tree: Path, area: Area, site: Site | None, urls: Sequence[str], effort: Effort) -> Verdict:
    """Return the verdict on a mutant of a snapshot; without a site, that on the unchanged code.

    The kit runs on each of the URLs. A URL without an address, such as "file:", gets a folder of its own.
    """
    began, cpu_began = time.monotonic(), cpu_seconds()
    with mutated(tree, site) as copy:
        verdict = first_failure(copy, area, site, urls, effort)
    cpu = round(cpu_seconds() - cpu_began, 1)
    if verdict.by == TIME_LIMIT and site is not None and is_slow(tree, area, urls, effort):
        verdict = Verdict("survived", note="over the time limit; the unchanged code was slow then, too")
    return msgspec.structs.replace(verdict, seconds=round(time.monotonic() - began, 1), cpu=cpu)


def cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended. Servers run on and are not counted."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_slow(tree: Path, area: Area, urls: Sequence[str], effort: Effort) -> bool:
    """Return whether the unchanged code now takes more than a third of the time limit."""
    shorter = attrs.evolve(effort, limit=effort.limit / 3)
    return try_mutant(tree, area, None, urls, shorter).outcome != "survived"


def first_failure(tree: Path, area: Area, site: Site | None, urls: Sequence[str], effort: Effort) -> Verdict:
    verdict = Verdict("survived")
    for url in urls:
        needs_folder = url.endswith(":") and url != "memory:"
        verdict = certify_tree(tree, site, f"{url}{tree}/jobs" if needs_folder else url, effort)
        if verdict.outcome != "survived":
            return verdict
    if urls and not effort.own_tests:
        return verdict
    if not urls and site is not None and (error := import_error(tree, site)):
        return Verdict("not valid", note=error)
    tested = run_tests(tree, area, site, effort)
    if tested.outcome == "killed" and urls:
        return msgspec.structs.replace(tested, outcome="other tests")
    return tested if tested.outcome == "killed" else verdict


def import_error(tree: Path, site: Site) -> str:
    """Return the last line of the traceback if the mutated module cannot be imported, else ""."""
    module = module_of(site)
    code, output = run_limited(tree, ("-c", f"import {module}"), 60) if module else (0, "")
    return "" if code == 0 else output.strip().rpartition("\n")[2]


def module_of(site: Site) -> str:
    """Return the name of the mutated Python module, or "" for a file of SQL or Lua."""
    if not site.file.endswith(".py"):
        return ""
    return site.file.partition("src/")[2].removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def certify_tree(tree: Path, site: Site | None, url: str, effort: Effort) -> Verdict:
    words = [url, effort.level, effort.budget, effort.seed, effort.examples]
    words += [module_of(site)] if site is not None else []
    code, output = run_limited(tree, ("-m", "tests.mutation.certify_tree", *map(str, words)), effort.limit)
    if code is None:
        return Verdict("killed", TIME_LIMIT)
    lines = output.strip().splitlines()
    # Objects that the end of the process closes may still log.
    found = next((line for line in reversed(lines) if line.startswith('{"outcome"')), None)
    if found is None:
        return Verdict("killed", "crash", f"exit code {code}: {lines[-1][:200] if lines else 'no output'}")
    return msgspec.json.decode(found, type=Verdict)


def run_tests(tree: Path, area: Area, site: Site | None, effort: Effort) -> Verdict:
    """Run the tests that are likely to fail, and then all tests of the area, until one fails.

    The first tests are those that call the mutated function, if calls were recorded, else those that mirror
    the module.
    """
    chosen = [] if site is None or effort.calls is None else effort.calls.tests_for(tree, site)
    own = [] if site is None or chosen else mirroring_tests(tree, area, site)
    verdict = run_chosen(tree, chosen, effort.limit) if chosen else Verdict("survived")
    for words in filter(None, (own, [area.tests])):
        if verdict.outcome == "survived":
            verdict = run_pytest(tree, words, effort.limit)
    return verdict


def run_chosen(tree: Path, tests: Sequence[str], limit: float) -> Verdict:
    """Run these tests in this order until one fails."""
    chosen = tree.parent / "chosen_tests"
    chosen.write_text("\n".join(tests), "utf-8")
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return run_pytest(tree, list(files), limit, {"DIBS_CHOSEN_TESTS": str(chosen)})


def run_pytest(tree: Path, words: Sequence[str], limit: float, env: Mapping[str, str] = _NO_ENV) -> Verdict:
    """Return "killed" if a test fails twice: most tests talk to processes on a shared machine."""
    options = ("-q", "-x", "--reruns", "1", "-p", "no:cacheprovider", "--tb=line", "-p", _PLUGIN)
    code, output = run_limited(tree, ("-m", "pytest", *options, *words), limit, env)
    if code is None:
        return Verdict("killed", TIME_LIMIT)
    if code not in {_ALL_PASSED, _NOTHING_COLLECTED}:
        found = _FAILED_TEST.findall(output)
        return Verdict("killed", found[-1] if found else f"exit code {code}", output[-300:])
    return Verdict("survived", note=f"{' '.join(words)} passed")


def mirroring_tests(tree: Path, area: Area, site: Site) -> list[str]:
    """Return the test files that have the name of the mutated module."""
    name = f"test_{Path(site.file).stem}.py"
    return [str(file.relative_to(tree)) for file in sorted((tree / area.tests).rglob(name))]


def run_limited(
    tree: Path, words: Sequence[str], limit: float, env: Mapping[str, str] = _NO_ENV
) -> tuple[int | None, str]:
    """Run Python in a tree. Return its exit code, None after the time limit, and its output.

    The process has a session of its own, so that the limit also ends the processes that it started.
    """
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=tree,
        env={**environment(tree), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        end_session(process)


def end_session(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a process and of those that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate()
