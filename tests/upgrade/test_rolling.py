"""Clients and workers of an earlier version beside those of today, at one storage.

`before` has the formats of today: both versions work side by side. `older` has earlier layouts of Redis and
Postgres: today's dibs upgrades its data at the first opening, and from then on refuses to open it there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from attrs import frozen

from tests.storage_urls import new_url, unexpected_lines

HERE = Path(__file__).parent
TODAY = "today"
SCHEMES = ("file", "redis", "postgresql")


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the versions that tools/write_earlier_version.py wrote, and return their folder."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(HERE / "earlier.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@frozen
class Shop:
    """The program shop.py at one storage, on any version of dibs."""

    url: str
    earlier: Path
    runs: Path

    def start(self, version: str, *words: str) -> subprocess.Popen[str]:
        path = {} if version == TODAY else {"PYTHONPATH": str(self.earlier / version)}
        shop = {"SHOP_URL": self.url, "SHOP_RUNS": str(self.runs), "SHOP_VERSION": version}
        return subprocess.Popen(
            [sys.executable, str(HERE / "shop.py"), *words],
            env=os.environ | path | shop,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process: subprocess.Popen[str], stdin: str = "") -> str:
        """Wait for a program, require that it succeeds, and return its output."""
        output, errors = process.communicate(stdin, timeout=120)

        assert (0, []) == (process.returncode, unexpected_lines(errors))
        return output

    def run(self, version: str, *words: str, stdin: str = "") -> str:
        return self.end(self.start(version, *words), stdin)

    def refusal(self, version: str) -> str:
        """Return the last line of the traceback of a version that must not open the storage."""
        process = self.start(version, "put", "a", "1")
        _, errors = process.communicate(timeout=120)

        assert process.returncode == 1
        return errors.strip().splitlines()[-1]

    def counted_runs(self) -> Counter[str]:
        """Return how often each argument ran."""
        return Counter(line.split()[0] for line in self.runs.read_text().splitlines())

    def workers(self) -> set[str]:
        return {line.split()[1] for line in self.runs.read_text().splitlines()}


@pytest.fixture(params=SCHEMES)
def shop(request: pytest.FixtureRequest, earlier: Path, tmp_path: Path) -> Shop:
    return Shop(new_url(request.param, request), earlier, tmp_path / "runs")


def expected(number: int) -> set[str]:
    """Return the arguments of the runs of `number` jobs: a merged enqueue has the newest ones."""
    return {f"{index}{'?!'[index % 2]}" for index in range(number)}


@pytest.mark.parametrize(("client", "worker"), [("before", TODAY), (TODAY, "before")])
def test_one_version_runs_the_jobs_of_the_other(shop: Shop, client: str, worker: str) -> None:
    tickets = shop.run(client, "put", "a", "6")
    shop.run(worker, "work")
    results = {version: json.loads(shop.run(version, "read", stdin=tickets)) for version in (client, worker)}

    assert dict.fromkeys(expected(6), 1) == shop.counted_runs()
    assert expected(6) == set(results[client].values())
    assert results[client] == results[worker]


def test_workers_of_both_versions_share_a_queue(shop: Shop) -> None:
    """Both run jobs at the same time, each job once, and readers of both get every result."""
    tickets = json.loads(shop.run("before", "put", "b", "150")) | json.loads(
        shop.run(TODAY, "put", "t", "150")
    )
    workers = [shop.start(version, "work") for version in ("before", TODAY, "before", TODAY)]
    for worker in workers:
        shop.end(worker)
    results = [
        json.loads(shop.run(version, "read", stdin=json.dumps(tickets))) for version in ("before", TODAY)
    ]

    assert dict.fromkeys(expected(150), 2) == shop.counted_runs()
    assert {"before", TODAY} == shop.workers()
    assert results[0] == results[1]


def test_a_process_of_the_version_before_goes_on_after_an_upgrade(shop: Shop) -> None:
    """Today's dibs opens and uses the storage while an earlier process has it open."""
    process = shop.start("before", "hold")
    assert process.stdout is not None
    assert "open\n" == process.stdout.readline()
    shop.run(TODAY, "put", "a", "2")

    assert "enqueued" in shop.end(process, "\n")
    shop.run(TODAY, "work")
    assert {"0?": 1, "1!": 1, "1": 1} == shop.counted_runs()


def test_an_older_version_is_refused_only_where_the_format_is_new(shop: Shop) -> None:
    """Its jobs run here. It could not read the new records of servers; the format of files is the same."""
    tickets = shop.run("older", "put", "a", "4")
    shop.run(TODAY, "work")
    results = json.loads(shop.run(TODAY, "read", stdin=tickets))

    assert expected(4) == set(results.values())
    if shop.url.startswith("file:"):
        assert results == json.loads(shop.run("older", "read", stdin=tickets))
        return
    refusal = shop.refusal("older")
    assert refusal.startswith("dibs.errors.StorageTooNew: ")
    assert "layout" in refusal
    assert "upgrade" in refusal
