"""Clients and workers of an earlier version beside those of today, at one storage.

`before` has the formats of today: both versions work side by side. `older` has earlier layouts of Redis and
Postgres: today's dibs upgrades its data at the first opening, and from then on refuses to open it there.
"""

from __future__ import annotations

import json
import os
import signal
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

        # An earlier worker names the queue of the records of today's workers, which it does not serve.
        unexpected = [line for line in unexpected_lines(errors) if not line.endswith(": dibs.workers")]
        assert (0, []) == (process.returncode, unexpected)
        return output

    def run(self, version: str, *words: str, stdin: str = "") -> str:
        return self.end(self.start(version, *words), stdin)

    def refusal(self, version: str) -> str:
        """Return the last line of the traceback of a version that must not open the storage."""
        process = self.start(version, "put", "a", "1")
        _, errors = process.communicate(timeout=120)

        assert process.returncode == 1
        return errors.strip().splitlines()[-1]

    def read_runs(self) -> list[list[str]]:
        """Return the id, the argument and the version of each run."""
        return [line.split() for line in self.runs.read_text().splitlines()] if self.runs.exists() else []

    def counted_runs(self) -> Counter[tuple[str, str]]:
        """Return how often each id ran with each argument."""
        return Counter((id, argument) for id, argument, _ in self.read_runs())

    def workers(self) -> set[str]:
        return {version for _, _, version in self.read_runs()}


@pytest.fixture(params=SCHEMES)
def shop(request: pytest.FixtureRequest, earlier: Path, tmp_path: Path) -> Shop:
    return Shop(new_url(request.param, request), earlier, tmp_path / "runs")


def expected(prefix: str, number: int) -> dict[str, str]:
    """Return the results of `number` jobs: the argument of the last enqueue of each."""
    return {f"{prefix}-{index}": f"{index}{'?!'[index % 2]}" for index in range(number)}


@pytest.mark.parametrize(("client", "worker"), [("before", TODAY), (TODAY, "before")])
def test_one_version_runs_the_jobs_of_the_other(shop: Shop, client: str, worker: str) -> None:
    tickets = shop.run(client, "put", "a", "6")
    shop.run(worker, "work")
    results = {version: json.loads(shop.run(version, "read", stdin=tickets)) for version in (client, worker)}

    assert expected("a", 6) == results[client] == results[worker]
    assert dict.fromkeys(expected("a", 6).items(), 1) == shop.counted_runs()


def test_workers_of_both_versions_share_a_queue(shop: Shop) -> None:
    """Both wait for jobs and run some, each job once, and readers of both get every result."""
    workers = [shop.start(version, "serve") for version in ("before", TODAY)]
    stored: dict[str, str] = {}
    # A worker that starts late on a busy machine finds no job of the first rounds.
    for turn in range(30):
        client = ("before", TODAY)[turn % 2]
        put = shop.run(client, "put", f"{client}{turn}", "40")
        stored |= expected(f"{client}{turn}", 40)
        for version in ("before", TODAY):
            assert expected(f"{client}{turn}", 40) == json.loads(shop.run(version, "read", stdin=put))
        if turn and {"before", TODAY} == shop.workers():
            break
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        shop.end(worker)

    assert {"before", TODAY} == shop.workers()
    assert stored.items() <= shop.counted_runs().keys()
    assert {1} == set(shop.counted_runs().values()), "a run was repeated"


def test_a_process_of_the_version_before_goes_on_after_an_upgrade(shop: Shop) -> None:
    """Today's dibs opens and uses the storage while an earlier process has it open."""
    process = shop.start("before", "hold")
    assert process.stdout is not None
    assert "open\n" == process.stdout.readline()
    shop.run(TODAY, "put", "a", "2")

    assert "enqueued" in shop.end(process, "\n")
    shop.run(TODAY, "work")
    assert {("a-0", "0?"): 1, ("a-1", "1!"): 1, ("held", "1"): 1} == shop.counted_runs()


def test_an_older_version_is_refused_only_where_the_format_is_new(shop: Shop) -> None:
    """Its jobs run here. It could not read the new records of servers; the format of files is the same."""
    tickets = shop.run("older", "put", "a", "4")
    shop.run(TODAY, "work")
    results = json.loads(shop.run(TODAY, "read", stdin=tickets))

    assert expected("a", 4) == results
    if shop.url.startswith("file:"):
        assert results == json.loads(shop.run("older", "read", stdin=tickets))
        return
    refusal = shop.refusal("older")
    assert refusal.startswith("dibs.errors.StorageTooNew: ")
    assert "layout" in refusal
    assert "upgrade" in refusal
