"""Producers and workers on real servers, with kills, freezes and cut connections, and accounts at the end.

The short form runs by default. The long form runs with `nox -s soak`, DIBS_SOAK_MINUTES on each storage.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dibs_conformance.servers import ServerUnavailable
from tests.soak.soak import STORAGES, SoakPlan, SoakReport, long_plan, run_soak, short_plan, soak_minutes
from tests.soak.table import table


@pytest.mark.parametrize("storage", STORAGES)
def test_short(storage: str, tmp_path: Path) -> None:
    check(run_or_skip(short_plan(storage), tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize("storage", STORAGES)
def test_long(storage: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("DIBS_SOAK_REPORTS", tmp_path)) / storage
    folder.mkdir(parents=True)
    check(run_or_skip(long_plan(storage, soak_minutes()), folder))


def run_or_skip(plan: SoakPlan, folder: Path) -> SoakReport:
    try:
        return run_soak(plan, folder)
    except ServerUnavailable as reason:
        if os.environ.get("DIBS_TEST_SERVERS") == "required":
            raise
        pytest.skip(str(reason))


def check(report: SoakReport) -> None:
    print(table([report.as_json()]))  # noqa: T201 - `pytest -rP` shows it

    assert [] == report.account.violations
    assert [] == report.strays
    assert not any(report.left.values())
    # A worker that a fault has just restarted may still be importing when SIGTERM comes.
    assert {0, -signal.SIGTERM} >= set(report.worker_exits)
    assert report.account.accepted
    assert report.account.faults
