"""The results of a comparison of flows: a JSON file, written after each measurement."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import define, field

from benchmarks.flows.systems import SYSTEMS
from benchmarks.peers.environments import NODE
from benchmarks.peers.results import current_commit, rounded


@define
class Results:
    """The figures of all rounds and of the runs with kills, by key of the system."""

    #: The versions of the servers, the machine, the date and the settings of the run.
    about: dict[str, Any]
    #: For each round, the figures of each system, or the reason in `not_run`.
    rounds: list[dict[str, Any]] = field(factory=list)
    #: Lost and doubled fan-ins of each system, or the reason in `not_run`.
    kills: dict[str, Any] = field(factory=dict)

    @classmethod
    def describe(cls, versions: dict[str, str], **settings: object) -> Results:
        return cls(
            {
                "date": datetime.now(UTC).date().isoformat(),
                "commit": current_commit(),
                "cpus": os.cpu_count(),
                "load at the start": os.getloadavg()[0],
                "python": platform.python_version(),
                "node": NODE,
                **versions,
                **settings,
                "requirements": {one.key: list(one.requirements) for one in SYSTEMS if one.requirements},
            }
        )

    @classmethod
    def load(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text("utf-8")))

    def save(self, path: Path | None) -> None:
        """Write the file in one step, if a path was given."""
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        document = rounded({"about": self.about, "rounds": self.rounds, "kills": self.kills})
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        temporary.replace(path)
