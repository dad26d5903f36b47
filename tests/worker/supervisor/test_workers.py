"""The pauses before a dead worker is replaced."""

from __future__ import annotations

from dibs.app import Dibs
from dibs.worker.supervisor.workers import MAX_FAILED_STARTS, RESTART_PAUSE, STABLE_LIFETIME, Workers
from dibs.worker.work_plan import WorkPlan

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
