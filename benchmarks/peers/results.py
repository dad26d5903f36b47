"""The results of a comparison: a JSON file, written after each measurement, so that a run can resume."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from benchmarks.peers.environments import NODE
from benchmarks.peers.systems import PEERS

#: Digits of a figure in the file.
DIGITS: Final = 5


@define
class Results:
    """The figures of all rounds, and where and when they were measured."""

    #: The versions of the servers, the machine and the date.
    about: dict[str, Any] = field(factory=dict)
    #: For each round: `baselines` has the rates of the baselines, `systems` the figures by key of the peer.
    rounds: list[dict[str, Any]] = field(factory=list)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file. Return empty results if it does not exist."""
        if not path.exists():
            return cls()
        document = json.loads(path.read_text("utf-8"))
        return cls(document["about"], document["rounds"])

    def save(self, path: Path) -> None:
        """Write the file, in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"about": self.about, "rounds": rounded(self.rounds)}
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        temporary.replace(path)

    def round(self, number: int) -> dict[str, Any]:
        """Return the figures of a round, which may still be empty."""
        while len(self.rounds) <= number:
            self.rounds.append({"baselines": {}, "systems": {}})
        return self.rounds[number]

    def describe(self, servers: dict[str, str], **settings: object) -> None:
        """Note the versions, the machine, the date and the settings of the run."""
        self.about = {
            "date": datetime.now(UTC).date().isoformat(),
            "commit": current_commit(),
            "cpus": os.cpu_count(),
            "load at the start": os.getloadavg()[0],
            "python": platform.python_version(),
            "node": NODE,
            **servers,
            **settings,
            "requirements": {peer.key: list(peer.requirements) for peer in PEERS if peer.requirements},
        }


def current_commit() -> str:
    """Return the short name of the commit of the current folder, or "" outside of a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def rounded(value: Any) -> Any:
    """Return the value with all floats rounded, so that the file stays small."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
