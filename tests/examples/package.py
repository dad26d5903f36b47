"""Run programs with the package of an example installed, without pip, and the tests of each such package."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import attrs
import pytest

from tests.source import PROJECT

#: A certification at the lowest level, L0. Higher levels take minutes.
_CERTIFY_L0 = """
import sys
from dibs_conformance import certify

if __name__ == "__main__":
    report = certify(sys.argv[1], examples=10, seed=1)
    sys.exit(None if report.certified else report.text())
"""
#: The test of L3 that restores a copy of the files.
_LOSE_WRITES = """
import sys
from dibs.storage.capabilities import Capabilities
from dibs_conformance.crashes.lost_writes import try_lost_writes
from dibs_conformance.target import LevelPlan, Locations

if __name__ == "__main__":
    locations = Locations(sys.argv[1])
    plan = LevelPlan(locations=locations, claims=Capabilities(durable=True), seed=1, budget=0)
    found = try_lost_writes(plan, 0)
    locations.remove_all()
    sys.exit(found.failures[0].why if found.failures else None)
"""


@attrs.frozen
class Package:
    """The package in the folder `example`, whose metadata is in the folder `metadata`."""

    example: Path
    metadata: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m` with these words in the folder of the example."""
        path = os.pathsep.join([str(self.metadata), str(self.example / "src")])
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.example,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    def certify_l0(self, url: str) -> subprocess.CompletedProcess[str]:
        (self.metadata / "certify_l0.py").write_text(_CERTIFY_L0)
        return self.run("certify_l0", url)

    def lose_writes(self, url: str) -> subprocess.CompletedProcess[str]:
        (self.metadata / "lose_writes.py").write_text(_LOSE_WRITES)
        return self.run("lose_writes", url)


def installed(example: Path, folder: Path) -> Package:
    """Write the metadata that pip would write, by which dibs finds the storage, into `folder`."""
    project = tomllib.loads((example / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    [(group, points)] = project["entry-points"].items()
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return Package(example, folder)


class PackageTests:
    """Tests that the package of an example stays certified. dibs finds its storage through an entry point."""

    #: The name of the folder in `examples`, and the end of the URL of a storage.
    example: str
    url_end: str

    @pytest.fixture
    def package(self, tmp_path: Path) -> Package:
        return installed(PROJECT / "examples" / self.example, tmp_path)

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"{self.example.removeprefix('dibs-')}:{tmp_path}/jobs{self.url_end}"

    def test_it_is_certified_at_l0(self, package: Package, url: str) -> None:
        expect_success(package.certify_l0(url))

    def test_its_own_tests_pass(self, package: Package) -> None:
        expect_success(package.run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_storage.py"))

    def test_a_restored_copy_draws_no_lost_number(self, package: Package, url: str) -> None:
        expect_success(package.lose_writes(url))

    @pytest.mark.certify
    def test_its_contract_test_passes(self, package: Package) -> None:
        expect_success(package.run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_contract.py"))

    @pytest.mark.certify
    def test_it_reaches_l3_within_the_budget(self, package: Package, url: str) -> None:
        """Certify for DIBS_CERTIFY_BUDGET seconds, and print the report with its seed."""
        budget = os.environ.get("DIBS_CERTIFY_BUDGET", "240")
        done = package.run("dibs", "certify", url, "--level", "L3", "--budget", budget)
        sys.stdout.write(done.stdout)
        expect_success(done)


def expect_success(done: subprocess.CompletedProcess[str]) -> None:
    assert 0 == done.returncode, done.stdout + done.stderr
