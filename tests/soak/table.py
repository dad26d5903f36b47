"""The table of the reports of soaks: `python -m tests.soak.table FOLDER` prints it in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

Report = Mapping[str, Any]

#: The rows of the table: their title, and the value for one storage.
ROWS: Final[dict[str, Callable[[Report], object]]] = {
    "minutes": lambda report: report["minutes"],
    "enqueues accepted": lambda report: report["accepted"],
    "runs": lambda report: report["runs"],
    "processes killed": lambda report: faults(report, "kill_process"),
    "workers killed": lambda report: faults(report, "kill_worker"),
    "workers frozen": lambda report: faults(report, "freeze_worker"),
    "producers killed": lambda report: faults(report, "kill_producer"),
    "servers killed": lambda report: faults(report, "kill_server"),
    "network cut": lambda report: faults(report, "cut_network"),
    "servers full or read-only": lambda report: faults(report, "refuse_writes"),
    "disks full": lambda report: faults(report, "fill_disk"),
    "folders replaced": lambda report: faults(report, "replace_folder"),
    "directories changed by handlers": lambda report: faults(report, "chdir"),
    "workers ended by themselves": lambda report: report["own_exits"],
    "**lost**": lambda report: len(report["lost"]),
    "**doubled**": lambda report: len(report["doubled"]),
    "**overlapping**": lambda report: len(report["overlapping"]),
    "**over a limit**": lambda report: len(report["over_limit"]),
    "late writes tried": lambda report: report["late_tried"],
    "**late writes accepted**": lambda report: len(report["late_accepted"]),
    "server away: p50 (max), s": lambda report: spread(report["server_away"]),
    "recovery, all: p50 (max), s": lambda report: recovery(report, "all"),
    "recovery, process killed": lambda report: recovery(report, "kill_process"),
    "recovery, worker killed": lambda report: recovery(report, "kill_worker"),
    "recovery, worker frozen": lambda report: recovery(report, "freeze_worker"),
    "recovery, server back": lambda report: recovery(report, "kill_server"),
    "recovery, network cut": lambda report: recovery(report, "cut_network"),
    "recovery, server writable": lambda report: recovery(report, "refuse_writes"),
    "recovery, disk free": lambda report: recovery(report, "fill_disk"),
    "recovery, folder replaced": lambda report: recovery(report, "replace_folder"),
    "largest tick gap, s": lambda report: report["tick_gap"],
}


def faults(report: Report, kind: str) -> object:
    return report["faults"].get(kind, "-")


def recovery(report: Report, kind: str) -> str:
    return spread(report["recoveries"].get(kind))


def spread(summary: Mapping[str, float] | None) -> str:
    return f"{summary['p50']} ({summary['max']})" if summary and summary["number"] else "-"


def table(reports: Sequence[Report]) -> str:
    """Return a table with one column for each report."""
    lines = [["", *(report["storage"] for report in reports)], ["---", *("---:" for _ in reports)]]
    lines += [[title, *(str(value(report)) for report in reports)] for title, value in ROWS.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PATHS = sorted(Path(sys.argv[1]).glob("*/report.json"))
    print(table([msgspec.json.decode(path.read_bytes()) for path in PATHS]))  # noqa: T201 - a program
