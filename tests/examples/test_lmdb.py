"""Tests that examples/dibs-lmdb stays certified. dibs finds its storage through an entry point."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.examples.package import Package, installed
from tests.source import PROJECT

pytest.importorskip("lmdb")


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return installed(PROJECT / "examples/dibs-lmdb", tmp_path)


def test_it_is_certified_at_l0(package: Package, tmp_path: Path) -> None:
    done = package.certify_l0(f"lmdb:{tmp_path}/jobs?fsync=0")

    assert 0 == done.returncode, done.stdout + done.stderr


def test_its_own_tests_pass(package: Package) -> None:
    done = package.run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_storage.py")

    assert 0 == done.returncode, done.stdout + done.stderr


def test_a_restored_copy_draws_no_lost_number(package: Package, tmp_path: Path) -> None:
    done = package.lose_writes(f"lmdb:{tmp_path}/jobs?fsync=0")

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.certify
def test_its_contract_test_passes(package: Package) -> None:
    done = package.run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_contract.py")

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.certify
def test_it_reaches_l3_within_the_budget(package: Package, tmp_path: Path) -> None:
    """Certify for DIBS_CERTIFY_BUDGET seconds, and print the report with its seed."""
    budget = os.environ.get("DIBS_CERTIFY_BUDGET", "240")
    url = f"lmdb:{tmp_path}/jobs?fsync=0"
    done = package.run("dibs", "certify", url, "--level", "L3", "--budget", budget)
    sys.stdout.write(done.stdout)

    assert 0 == done.returncode, done.stdout + done.stderr
