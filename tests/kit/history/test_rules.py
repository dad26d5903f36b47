"""Each rule rejects the history planted for it, accepts a similar one, and raises no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs_conformance.history import RecordedStep, check, read_steps, write_steps
from dibs_conformance.history.rules import RULES
from tests.kit.history.histories import make_history
from tests.kit.history.planted import OF_ONE_ID, PLANTED, HistoryBuilder, planted

NAMES = [rule.name for rule in RULES if rule.name != "R22"]


def broken(name: str, *, bad: bool) -> set[str]:
    return {failure.law.split()[0] for failure in check(planted(name, bad=bad)).failures}


@pytest.mark.parametrize("name", NAMES)
def test_only_the_rule_rejects_its_planted_history(name: str) -> None:
    assert {name} == broken(name, bad=True)


@pytest.mark.parametrize("name", OF_ONE_ID)
def test_the_search_rejects_a_wrong_answer_about_one_id(name: str) -> None:
    assert {"R22"} == broken(name, bad=True)


@pytest.mark.parametrize("name", [*NAMES, *OF_ONE_ID])
def test_a_rule_accepts_a_similar_correct_history(name: str) -> None:
    assert set() == broken(name, bad=False)


@pytest.mark.parametrize("name", ["R12", "R16"])
def test_a_claim_beside_a_call_that_may_hold_any_job_may_pass_over_one(name: str) -> None:
    steps = planted(name, bad=True)
    beside = [
        RecordedStep(op="reap", status="nothing", began=0, ended=10_000, queue="q"),
        RecordedStep(op="claim", status="lost", began=0, ended=10_000, queue="q", lease="old"),
    ]

    assert {"R12", "R16"} >= broken(name, bad=True) > set()
    for step in beside:
        assert check([*steps, step]).holds


def test_open_runs_of_two_ids_with_equal_fences_are_compared() -> None:
    """The jobs of one call may share a fence, and these two runs have the same end: none."""
    history = HistoryBuilder().add("configure", "configured", id="", patch={"max_active": "1"}, settings={})
    history = history.enqueued(1).enqueued(2, id="b").claimed(10, 1, 1).claimed(10, 2, 2, id="b")

    assert {"R23 max_active is exact"} == {failure.law for failure in check(history.steps).failures}


@pytest.mark.parametrize(("queues", "alarms"), [(("q",), {"R17"}), (("q", "q!fail"), set())])
def test_a_lease_on_several_queues_may_live_longer_on_one_of_them(
    queues: tuple[str, ...], alarms: set[str]
) -> None:
    """The lease begins at a different time on each queue, and grant returns the earliest end."""
    granted = RecordedStep(
        op="grant", lease="l", status="granted", client="c", call=1, began=0, ended=5, now=0, until=10
    )
    renewed = RecordedStep(
        op="renew", lease="l", status="alive", client="c", call=2, began=6, ended=7, now=11, until=21
    )
    steps = [replace(granted, queue=queue) for queue in queues] + [replace(renewed, queue=queues[-1])]

    assert alarms == {failure.law.split()[0] for failure in check(steps).failures}


def test_an_enqueue_dropped_by_a_cancel_may_be_missing_in_a_later_run() -> None:
    """The revision of the dropped enqueue is in the range of the returned run, below the later enqueue's."""
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).enqueued(2, "blocked", payload="dropped")
    history = history.add("cancel", "cancelled").enqueued(3, "blocked", replaces=False, resets=False)
    history = history.settled("retry", 10, "returned").claimed(11, 1, 3, attempt=2)

    assert check(history.steps).holds


def test_a_repeated_end_does_not_show_its_time() -> None:
    """The run had a requested cancellation. The drop ended it at an unknown time."""
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).add("cancel", "requested", running=True)
    history = history.enqueued(2, "blocked").add("claim", "short", id="", lease="m", limit=1)
    history = history.add("drop", "dropped", id="", lease="l", at=35, ended=95)
    history = history.claimed(11, 2, 2, lease="m", at=65).settled("retry", 10, "cancelled")

    assert check(history.steps).holds


@pytest.mark.parametrize(("last", "alarms"), [(7, set()), (1, {"R22"})])
def test_the_run_of_an_imported_job_may_cover_the_revisions_of_an_earlier_run(
    last: int, alarms: set[str]
) -> None:
    """The clock that numbered the import may be behind the numbers of the storage."""
    history = HistoryBuilder().enqueued(5).claimed(10, 5, 5).settled("complete", 10, "done")
    history = history.add("import", "imported", first=2, revision=2, payload="x")
    history = history.enqueued(7, "updated", first=2).claimed(11, min(2, last), last)
    history = history.settled("complete", 11, "done").read()

    assert alarms == {failure.law.split()[0] for failure in check(history.steps).failures}


def test_every_rule_has_a_planted_history() -> None:
    assert NAMES == list(PLANTED)


def test_the_docs_list_every_rule() -> None:
    page = Path("docs/reference/history.md").read_text("utf-8")
    rows = [f"| {rule.name} {rule.title} | {rule.section} | {rule.sentence} |" for rule in RULES]

    assert rows == [line for line in page.splitlines() if line.startswith("| R")]


def test_the_order_of_lines_does_not_matter() -> None:
    """Clients write independently, so the lines may be in any order."""
    for name in NAMES:
        lines = [*write_steps(planted(name, bad=True))]

        assert [f.law for f in check(read_steps(reversed(lines))).failures] == [
            f.law for f in check(planted(name, bad=True)).failures
        ]


def test_a_failure_has_a_timeline_of_its_id() -> None:
    [failure] = check(planted("two_active_runs", bad=True)).failures

    assert "no order of its calls explains the answer 'taken' of a claim" in failure.why
    assert [line[0] for line in failure.story] == [" ", " ", ">"]
    assert "claim 'a'" in failure.story[2]


def test_correct_histories_raise_no_alarm() -> None:
    """Correct answers can be explained, in whichever order the overlap allows."""
    alarms = [(seed, f.law, f.why) for seed in range(300) for f in check(make_history(seed)).failures]

    assert [] == alarms


def test_long_correct_histories_raise_no_alarm() -> None:
    """Dropped jobs that return are rare in short histories."""
    alarms = [(seed, f.law, f.why) for seed in range(15) for f in check(make_history(seed, 400)).failures]

    assert [] == alarms


@pytest.mark.certify
@pytest.mark.parametrize("part", range(20))
def test_correct_histories_raise_no_alarm_in_memory_in_the_long_form(part: int) -> None:
    """The parts of the long form have 100,000 histories together."""
    first = 1_000_000 + 5_000 * part
    alarms = [
        (seed, f.law, f.why)
        for seed in range(first, first + 5_000)
        for f in check(make_history(seed)).failures
    ]

    assert [] == alarms


def test_nearly_every_rule_applies_to_random_histories() -> None:
    """Random histories do not contain a drain, counts and a log read after one, outside effects, and limits.
    Only planted histories do.
    """
    met = {
        law.name.split()[0] for seed in range(300, 400) for law in check(make_history(seed)).laws if law.met
    }

    assert {"R2", "R13", "R19", "R26", "R27", "R30", "R31"} == set(NAMES) - met
    assert "R22" in met
