"""Run programs with the package of an example installed, without pip."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import attrs

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
