"""The pauses before a dead worker is replaced."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dibs.app import Dibs
from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.client.options.serde import JSON
from dibs.client.work_report import WorkReport
from dibs.errors import StorageUnavailable
from dibs.model.job import Error
from dibs.model.overrides import Overrides
from dibs.model.requests import Fail, Release, RetryLater
from dibs.model.retry import Exponential, Fixed
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.worker import messages
from dibs.worker.supervisor import crash_recovery
from dibs.worker.supervisor.crash_recovery import Crash, CrashRecovery, recovery_action
from dibs.worker.supervisor.held_runs import HeldRun
from dibs.worker.supervisor.workers import MAX_FAILED_STARTS, RESTART_PAUSE, STABLE_LIFETIME, Workers
from dibs.worker.work_plan import WorkPlan
from tests.worker.faulty_storage import faulty_storage
from tests.worker.jobs import add, arguments, event_kinds, put

PLAN = WorkPlan(queues=("q",), processes=1, reference="", lease=15.0, heartbeat=5.0, poll=1.0)


def test_the_pause_doubles_after_each_short_life_up_to_the_longest() -> None:
    workers = Workers(Dibs("memory:"), PLAN, None)
    pauses = [workers.next_restart_pause(0.0) for _ in range(8)]

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0] == [round(pause, 1) for pause in pauses]


def test_the_pause_is_short_again_after_a_long_life() -> None:
    workers = Workers(Dibs("memory:"), PLAN, None)
    for _ in range(8):
        workers.next_restart_pause(0.0)

    assert RESTART_PAUSE[0] == workers.next_restart_pause(STABLE_LIFETIME)


def test_starts_fail_after_several_short_lives() -> None:
    workers = Workers(Dibs("memory:"), PLAN, None)
    for _ in range(MAX_FAILED_STARTS - 1):
        workers.next_restart_pause(0.0)
    before = workers.starts_keep_failing
    workers.next_restart_pause(0.0)

    assert (False, True) == (before, workers.starts_keep_failing)


# -- The settlement of runs whose worker process has died --------------------------------------------


def claimed_run(index: int, id: str = "a") -> messages.ClaimedRun:
    return messages.ClaimedRun(index, id, 100 + index, 0, 500, 1, 2, None)


def handler(**limits: int | None) -> Handler:
    return Handler(
        queue="q", function=print, is_async=False, serde=JSON, decode_arguments=arguments,
        limits=HandlerLimits(backoff=Exponential(1), **limits),
    )  # fmt: skip


def test_after_a_crash_only_started_runs_are_stalled() -> None:
    error = Error(type="ProcessDied")
    held_run = HeldRun("q", "lease", claimed_run(1))

    assert RetryLater(cause="stall", delay=2000, error=error) == recovery_action(
        held_run, handler(), Crash([0.0, 1.5], error), 0
    )
    assert Release() == recovery_action(held_run, handler(), Crash([1.5, 0.0], error), 0)


@pytest.mark.parametrize("queue", [FLOWS, EVALUATIONS])
def test_flows_run_again_a_second_after_each_crash(queue: str) -> None:
    """The stalls of an evaluation add up as long as its flow lives, and no later wake-up may come."""
    error = Error(type="ProcessDied")
    held_run = HeldRun(queue, "lease", replace(claimed_run(0), stalls=9))

    assert RetryLater(cause="stall", delay=1000, error=error) == recovery_action(
        held_run, handler(max_stalls=None), Crash([1.5], error), 0
    )


def test_a_job_that_has_stalled_too_often_comes_back_at_once_and_fails_at_its_claim() -> None:
    error = Error(type="ProcessDied")
    held_run = HeldRun("q", "lease", replace(claimed_run(0), stalls=2))
    comes_back = RetryLater(cause="stall", delay=0, error=error)

    assert comes_back == recovery_action(held_run, handler(max_stalls=2), Crash([1.5], error), 0)


def test_after_an_overrun_only_overrun_runs_have_timed_out() -> None:
    neighbour, late = (
        HeldRun("q", "lease", claimed_run(1)),
        HeldRun("q", "lease", claimed_run(2), overran=True),
    )
    error = Error(type="TimeoutError", message="took longer than its timeout of 0.5 s")
    again = RetryLater(cause="timeout", delay=4000, error=error)

    assert Release() == recovery_action(neighbour, handler(), None, 0)
    assert again == recovery_action(late, handler(), None, 0)
    assert again == recovery_action(late, handler(), Crash([0.0, 0.0, 1.5], error), 0)
    assert Fail(error=error) == recovery_action(late, handler(max_timeouts=2), None, 0)


def test_the_overrides_of_a_job_replace_the_limits_of_its_handler() -> None:
    overrides = Overrides(max_timeouts=3, backoff=Fixed(7))
    late = HeldRun("q", "lease", replace(claimed_run(1), overrides=overrides), overran=True)
    action = recovery_action(late, handler(max_timeouts=2), None, 0)

    assert isinstance(action, RetryLater)
    assert 7000 == action.delay


async def test_runs_are_settled_when_the_storage_is_available_again(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_recovery, "RETRY_EVERY", 0.01)
    add(app, "q", print)
    await put(app, "q", "a", "b")
    lease = (await app.storage.grant(["q"], 60_000, "test")).lease
    jobs = (await app.storage.claim("q", lease, 2)).jobs
    held_runs = [
        HeldRun("q", lease, replace(claimed_run(index, job.id), fence=job.run.fence))
        for index, job in enumerate(jobs)
        if job.run is not None
    ]
    report = WorkReport()
    async with faulty_storage(app) as storage:
        recovery = CrashRecovery(app.storage, app.handlers, report)
        storage.fail("settle", StorageUnavailable("nobody there"))
        await recovery.settle_runs(held_runs, Crash([0.0, 1.5], Error(type="ProcessDied")))

    assert 2 == storage.calls.count("settle")
    assert (["released"], ["stalled"]) == (await event_kinds(app, "q", "a"), await event_kinds(app, "q", "b"))
    assert (1, 1) == (report.queue("q").released, report.queue("q").stalled)
