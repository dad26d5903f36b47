"""Tests of `pytest --dibs-storage` in a separate project that has only a function `open_storage`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from dibs.storage.capabilities import Capabilities
from dibs.storage.registry import open_storage
from dibs_conformance.pytest_items import create_plugin, find_target

MINE = """
from contextlib import asynccontextmanager

from dibs.storage.capabilities import Capabilities
from dibs.storage.registry import open_storage as open_url


@asynccontextmanager
async def open_storage(location, clock):
    async with open_url(f"memory:{location}", clock) as storage:
        type(storage).capabilities = property(lambda _: Capabilities(CLAIMS))
        yield storage
"""
TRUE = "cross_queue=True, manual_clock=True"


def run(folder: Path, claims: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(MINE.replace("CLAIMS", claims), "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *words]
    paths = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_each_capability_and_level_is_a_test(tmp_path: Path) -> None:
    done = run(
        tmp_path, TRUE, "--dibs-storage", "mine:open_storage", "--dibs-examples", "1", "--dibs-html", "r.html"
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert f"{len(attrs.fields(Capabilities)) + 1} passed" in done.stdout
    assert "push_wakeups works and is not claimed" in done.stdout
    assert "Certified at L0: histories " in (tmp_path / "r.html").read_text("utf-8")


def test_a_false_claim_fails_its_test(tmp_path: Path) -> None:
    claims = f"{TRUE}, durable=True"
    done = run(tmp_path, claims, "--dibs-storage", "mine:open_storage", "--dibs-examples", "1")

    assert 1 == done.returncode, done.stdout + done.stderr
    assert "durable: claimed, not found" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere:open_storage", "No module named 'nowhere'"),
        ("json:open_storage", "has no attribute 'open_storage'"),
        ("json", "a storage URL begins with a scheme"),
    ],
)
def test_an_unknown_target_is_a_usage_error(target: str, message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        find_target(target)


def test_an_unknown_level_is_a_usage_error(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "dibs_level", "L9")

    with pytest.raises(pytest.UsageError, match="unknown level 'L9'"):
        create_plugin(pytestconfig)


def test_an_invalid_budget_is_a_usage_error(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "dibs_budget", float("nan"))

    with pytest.raises(pytest.UsageError, match="--dibs-budget: budget is nan"):
        create_plugin(pytestconfig)


def test_a_target_is_a_url_or_a_function() -> None:
    assert "memory:" == find_target("memory:")
    assert open_storage is find_target("dibs.storage.registry:open_storage")
