"""The checks of queues, workers, leases and clocks, on every storage, healthy and with each fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from dibs.app import Dibs
from dibs.doctor import Finding, Report, checks, examination, examine, examine_open
from dibs.model.job import Error, JobData, NewJob, Outcome, OutcomeRetention, Slot
from dibs.model.requests import EnqueueRequest, RetryLater, SettingsPatch, Settlement
from dibs.model.results import ExportRecord
from dibs.model.worker_record import WorkerState
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.worker.supervisor import worker_record
from dibs.worker.supervisor.worker_record import WorkerRecordKeeper
from dibs.worker.work_plan import WorkPlan
from tests.worker.faulty_storage import FaultyStorage

#: Codes that the servers of tests cause: they run without fsync and persistence.
OF_SERVERS = ("redis-", "postgres-", "file-")
READY = WorkerState(capacity=100, ready=True)


@pytest.fixture
async def storage(any_url: str) -> Storage:
    return open_storage(any_url)


async def put_record(
    storage: Storage, *served: str, state: WorkerState = READY, name: str = "pod-7", **settings: SettingsPatch
) -> None:
    plan = WorkPlan(queues=served, processes=1, reference="", lease=15.0, heartbeat=5.0, poll=1.0, name=name)
    keeper = WorkerRecordKeeper(storage=storage, plan=plan, settings=settings, get_state=lambda: state)
    await keeper._write()


async def enqueue(storage: Storage, queue: str, *ids: str, delay: int | None = None) -> None:
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id, delay=delay)) for id in ids])


def of_content(report: Report) -> list[Finding]:
    return [each for each in report.findings if not each.code.startswith(OF_SERVERS)]


def subjects(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(each.code, each.subject) for each in findings]


async def findings(storage: Storage) -> list[tuple[str, str]]:
    return subjects(of_content(await examine_open(storage)))


async def test_a_healthy_storage_has_no_findings(any_url: str) -> None:
    async with open_storage(any_url) as storage:
        await put_record(storage, "emails", "emails!fail", emails=SettingsPatch(max_active=3))
        await put_record(storage, "emails", name="pod-8", emails=SettingsPatch(max_active=3))
        await storage.configure("emails", SettingsPatch(fail_handler=True))
        await enqueue(storage, "emails", "a", "b")
        lease = (await storage.grant(["emails"], 60_000, "pod-7")).lease
        await storage.claim("emails", lease, 1)
        report = await examine_open(storage)

    assert [] == of_content(report)
    assert (2, True) == (report.workers, report.was_opened)


async def test_a_storage_is_opened_and_closed_again(any_url: str) -> None:
    storage = open_storage(any_url)
    async with open_storage(any_url) as other:
        await enqueue(other, "emails", "a", delay=60_000)
        report = await examine(storage)

    if not any_url.startswith("memory"):
        assert 1 == report.queues
    assert [] == of_content(report)


async def test_due_jobs_that_nobody_serves_are_found(any_url: str) -> None:
    async with open_storage(any_url) as storage:
        await put_record(storage, "emails")
        await put_record(storage, "starting", name="pod-8", state=WorkerState(ready=False))
        for queue in ("emails", "mistyped", "starting"):
            await enqueue(storage, queue, "a", "b")
        await enqueue(storage, "later", "a", delay=3_600_000)
        report = of_content(await examine_open(storage))

    assert [("queue-not-served", "mistyped"), ("queue-not-served", "starting")] == subjects(report)
    assert "2 due jobs wait, and none of 2 live workers serves them" == report[0].found


async def test_a_queue_whose_runs_fail_is_found_while_its_jobs_are_retried(any_url: str) -> None:
    async with open_storage(any_url) as storage:
        await put_record(storage, "dead", "flaky", "mixed")
        await retry_later(storage, "dead", 12, "shop.Down")
        await enqueue(storage, "dead", "due-1", "due-2")
        # The jobs that are due later do not count.
        await enqueue(storage, "dead", *(f"later-{n}" for n in range(10)), delay=3_600_000)
        # A few retries are no outage: 9 jobs, and 10 of 40.
        await retry_later(storage, "flaky", 9, "shop.Down")
        await retry_later(storage, "mixed", 10, "shop.Down")
        await enqueue(storage, "mixed", *(f"due-{n}" for n in range(30)))
        report = of_content(await examine_open(storage))

    assert [("runs-fail", "dead")] == subjects(report)
    assert "12 jobs wait after a run that failed, most of them by shop.Down" == report[0].found


async def retry_later(storage: Storage, queue: str, count: int, error: str) -> None:
    """Enqueue jobs, and let a run of each fail with an error that is retried in a minute."""
    await enqueue(storage, queue, *(f"retried-{n}" for n in range(count)))
    lease = (await storage.grant([queue], 60_000, "pod-7")).lease
    jobs = (await storage.claim(queue, lease, count)).jobs
    action = RetryLater(delay=60_000, error=Error(type=error, message="secret"))
    runs = [(job.id, job.run.fence) for job in jobs if job.run is not None]
    await storage.settle(queue, [Settlement(id=id, fence=fence, action=action) for id, fence in runs])
    await storage.drop([queue], lease, count)


async def test_paused_queues_with_jobs_are_found(any_url: str) -> None:
    async with open_storage(any_url) as storage:
        await put_record(storage, "paused", "closed", "empty")
        await storage.configure("paused", SettingsPatch(paused=True))
        await storage.configure("empty", SettingsPatch(paused=True))
        await storage.configure("closed", SettingsPatch(max_active=0))
        await enqueue(storage, "paused", "a")
        await enqueue(storage, "closed", "a")

        assert [("queue-paused", "closed"), ("queue-paused", "paused")] == await findings(storage)


async def test_due_jobs_of_a_paused_key_are_found(any_url: str) -> None:
    async with open_storage(any_url) as storage:
        await put_record(storage, "held", "later", "free")
        for queue in ("held", "later", "free"):
            await storage.configure(queue, SettingsPatch(shares={"acme": 0}))
        keyed = JobData(key="acme")
        await storage.enqueue("held", [EnqueueRequest(job=NewJob(id="a", data=keyed))])
        await storage.enqueue("later", [EnqueueRequest(job=NewJob(id="a", data=keyed, delay=60_000))])
        await enqueue(storage, "free", "a")

        assert [("key-paused", "held")] == await findings(storage)


async def test_a_queue_at_its_bound_is_found(any_url: str) -> None:
    async with open_storage(any_url) as storage:
        await put_record(storage, "full", "almost")
        await storage.configure("full", SettingsPatch(max_waiting=2))
        await storage.configure("almost", SettingsPatch(max_waiting=2))
        await enqueue(storage, "full", "a", "b")
        await enqueue(storage, "almost", "a")

        assert [("queue-full", "full")] == await findings(storage)


async def test_jobs_under_expired_leases_are_found(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.doctor.checks.SECOND_LOOK", 0.1)
    async with open_storage(any_url) as storage:
        await enqueue(storage, "dead", "a", "b")
        await enqueue(storage, "live", "a")
        await enqueue(storage, "reaped", "a")
        await put_record(storage, "dead", "live", "reaped")
        for queue, ttl in (("dead", 50), ("live", 60_000), ("reaped", 50)):
            lease = (await storage.grant([queue], ttl, "pod-7")).lease
            assert 0 < len((await storage.claim(queue, lease, 10)).jobs)
        await asyncio.sleep(0.2)
        await storage.reap("reaped", 10)
        report = of_content(await examine_open(storage))

    assert [("leases-expired", "dead")] == subjects(report)
    assert "2 of up to 20 examined jobs are under expired leases, of pod-7" == report[0].found


async def test_a_failure_handler_that_is_missing_or_fails_is_found(any_url: str) -> None:
    failed = Outcome(kind="failed", fence=1, first=1, revision=1, ended_at=1, expires_at=None)
    async with open_storage(any_url) as storage:
        await put_record(storage, "emails", "reports", "reports!fail")
        await storage.configure("emails", SettingsPatch(fail_handler=True))
        await storage.configure("reports", SettingsPatch(fail_handler=True))
        await storage.import_("reports!fail", [ExportRecord(id="a", slot=Slot(outcome=failed))])

        assert [
            ("failure-handler-failed", "reports!fail"), ("failure-handler-missing", "emails"),
        ] == await findings(storage)  # fmt: skip


async def test_outcomes_that_are_kept_for_ever_are_found(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MANY_OUTCOMES", 20)
    kept = Outcome(kind="completed", fence=1, first=1, revision=1, ended_at=1, expires_at=None)
    async with open_storage(any_url) as storage:
        for queue, number, retention in (("many", 20, None), ("few", 19, None), ("short", 20, 60_000)):
            await storage.configure(queue, SettingsPatch(retention=OutcomeRetention(completed=retention)))
            records = [ExportRecord(id=f"id-{n}", slot=Slot(outcome=kept)) for n in range(number)]
            await storage.import_(queue, records)

        assert [("outcomes-kept", "many")] == await findings(storage)


async def test_workers_that_differ_or_cannot_claim_are_found(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "START_SECONDS", -1)
    async with open_storage(any_url) as storage:
        await put_record(storage, "emails", emails=SettingsPatch(max_active=3))
        monkeypatch.setattr(worker_record, "VERSION", "0.0.1")
        await put_record(storage, "emails", name="pod-8", emails=SettingsPatch(max_active=None))
        await put_record(storage, "reports", name="pod-9", state=WorkerState(ready=False))
        await put_record(storage, "reports", name="pod-6", state=WorkerState(stopping=True))
        report = of_content(await examine_open(storage))

    assert [
        ("worker-not-ready", "pod-9"),
        ("worker-settings", "emails"),
        ("worker-versions", ""),
    ] == subjects(report)
    assert "workers declare different values of max_active: pod-7: 3; pod-8: null" == report[1].found


async def test_a_clock_that_differs_is_found(any_url: str) -> None:
    async with open_storage(any_url) as storage:
        fast = await examine_open(storage, lambda: time.time() + 120)
        slow = await examine_open(storage, lambda: time.time() - 120)
        code = "clock-differs" if storage.capabilities.server_clock else "clock-lead"

    assert [(code, "")] == subjects(of_content(fast)) == subjects(of_content(slow))
    assert "s behind this machine" in of_content(fast)[0].found
    assert "s ahead of this machine" in of_content(slow)[0].found


async def test_a_storage_that_does_not_answer_in_time_is_said_to_be_unexamined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examination, "CHECK_SECONDS", 0.05)
    async with open_storage("memory:") as storage:

        async def hang(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(storage, "queues", hang)
        report = await examine_open(storage)

    assert [("not-examined", "")] == subjects(report.findings)
    assert report.is_healthy


async def test_many_findings_of_a_kind_are_one_line_each_for_the_first_ten() -> None:
    async with open_storage("memory:") as storage:
        for number in range(25):
            await enqueue(storage, f"q{number:02}", "a")
        report = await examine_open(storage)

    assert [*(f"q{number:02}" for number in range(10)), "..."] == [each.subject for each in report.findings]
    assert "the same in 15 more" == report.findings[-1].found


async def test_jobs_of_a_program_that_receives_are_served(app: Dibs) -> None:
    await app.storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=JobData())) for id in "ab"])
    lease = (await app.storage.grant(["q"], 60_000, "script")).lease
    await app.storage.claim("q", lease, 1)

    assert [] == await findings(app.storage)


async def test_the_calls_of_an_examination_do_not_depend_on_the_number_of_jobs() -> None:
    calls = []
    for number in (1, 3_000):
        async with open_storage("memory:") as storage:
            for first in range(0, number, 1000):
                await enqueue(storage, "q", *(str(n) for n in range(first, min(first + 1000, number))))
            lease = (await storage.grant(["q"], 60_000, "pod-7")).lease
            await storage.claim("q", lease, number)
            counted = FaultyStorage(storage)
            await examine_open(cast("Storage", counted))
            calls.append(counted.calls)

    assert ["renew", "queues", "counts", "list", "list", "renew"] == calls[0] == calls[1]


async def test_damage_is_a_finding_of_a_storage_that_cannot_be_opened(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    async with open_storage(url) as storage:
        for number in range(3):
            await enqueue(storage, "emails", str(number))
    commit = sorted(tmp_path.glob("jobs/commits/*"))[-2]
    damaged = bytearray(commit.read_bytes())
    damaged[-1] ^= 255
    commit.write_bytes(damaged)
    report = await examine(open_storage(url))
    [finding] = of_content(report)

    assert ("storage-damaged", False, False) == (finding.code, report.was_opened, report.is_healthy)
    assert str(commit) in finding.found
    assert "; later commits: 1; `dibs doctor`" in finding.found
