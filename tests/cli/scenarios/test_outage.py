"""An operator's work after an outage, with the commands of `dibs`, on each storage that processes share."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs
from tests.cli.shell import Shell
from tests.storage_urls import new_url


async def break_jobs(url: str) -> None:
    """Claim four jobs in each of two queues: two fail, one completes, and one is handed off."""
    async with Dibs(url) as app:
        for name, message in (("emails", "timed out"), ("reports", "refused")):
            queue = app.queue(name)
            await queue.enqueue_many(queue.bind(number, id=f"job-{number}") for number in range(4))
            async with queue.receive(max_jobs=4, lease=3600) as claims:
                first, second, third, fourth = [await anext(claims) for _ in range(4)]
                await first.fail(ConnectionError(message))
                await second.fail(ValueError(message))
                await third.complete()
                await fourth.hand_off()


@pytest.mark.parametrize("scheme", ["file", "redis", "postgresql"])
def test_an_operator_finds_and_retries_failures(
    scheme: str, shell: Shell, request: pytest.FixtureRequest
) -> None:
    shell.url = new_url(scheme, request)
    asyncio.run(break_jobs(shell.url))
    groups = [(group["error"], group["queue"]) for group in shell.json("failures")["failures"]]
    retried = shell.json("retry", "--error", "ConnectionError", "--yes")
    (worker,) = shell.json("workers")["workers"]
    handed_off = shell.json("list", "emails", "--state", "handed_off")["jobs"]
    revision = str(handed_off[0]["current"]["revisions"][1])
    finished = shell.json("finish", "emails", handed_off[0]["id"], "--revision", revision, "--result", "1")
    settings = shell.json("configure", "emails", "--max-active", "2", "--retention", "failed=30d")["settings"]
    purged = shell.json("purge", "emails", "--yes")
    counts = shell.json("counts")["queues"]

    assert [
        (error, queue) for error in ("ConnectionError", "ValueError") for queue in ("emails", "reports")
    ] == groups
    assert {"queues": {"emails": {"queued": 1}, "reports": {"queued": 1}}} == retried
    assert (0, 2, ["emails", "reports"]) == (worker["active"], worker["handed_off"], worker["queues"])
    assert "done" == finished["jobs"][0]["answer"]
    assert (2, 2_592_000.0) == (settings["max_active"], settings["retention"]["failed"])
    assert {"queues": {"emails": {"removed": 1}}} == purged
    assert {0} == {counts["emails"][state] for state in ("waiting", "active", "completed", "failed")}
    assert (1, 1, 1) == tuple(counts["reports"][state] for state in ("waiting", "handed_off", "failed"))
