"""Each rule finds what only it can find, leaves alone what is close to it, and raises no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs_conformance.history import Step, check, read_steps, write_steps
from dibs_conformance.history.rules import RULES
from tests.kit.history.histories import make_history
from tests.kit.history.planted import PLANTED, HistoryBuilder, fences_decrease, planted

#: R22 tries every order, so that whatever is wrong with one id is wrong for it, too.
NAMES = [rule.name for rule in RULES if rule.name != "R22"]


#: Histories that a rule once took for broken: a lost reap, a window that ended too early.
REMEMBERED = (1_010_764, 2_007_705)


def broken(name: str, *, bad: bool) -> set[str]:
    return {failure.law.split()[0] for failure in check(planted(name, bad=bad), deep=False).failures}


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_alone_finds_what_breaks_it(name: str) -> None:
    assert {name} == broken(name, bad=True)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_close_to_a_breach_is_left_alone(name: str) -> None:
    assert set() == broken(name, bad=False)


def test_fences_that_go_back_are_found() -> None:
    assert "R4 fences grow" in {failure.law for failure in check(fences_decrease()).failures}


@pytest.mark.parametrize(("queues", "alarms"), [(("q",), {"R17"}), (("q", "q!fail"), set())])
def test_a_lease_on_several_queues_may_live_on_one_of_them_for_longer_than_was_told(
    queues: tuple[str, ...], alarms: set[str]
) -> None:
    """Each was granted in its own moment, and told is the earliest end (protocol, grant)."""
    granted = Step(
        op="grant", lease="l", status="granted", client="c", call=1, began=0, ended=5, now=0, until=10
    )
    renewed = Step(
        op="renew", lease="l", status="alive", client="c", call=2, began=6, ended=7, now=11, until=21
    )
    steps = [replace(granted, queue=queue) for queue in queues] + [replace(renewed, queue=queues[-1])]

    assert alarms == {failure.law.split()[0] for failure in check(steps, deep=False).failures}


def test_what_a_cancel_dropped_is_not_missed_in_a_later_run() -> None:
    """Its revision lies within the range of the run that came back, and of what was enqueued since."""
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).enqueued(2, "blocked", payload="dropped")
    history = history.add("cancel", "cancelled").enqueued(3, "blocked", replaces=False, resets=False)
    history = history.settled("retry", 10, "returned").claimed(11, 1, 3, attempt=2)

    assert check(history.steps).holds


def test_a_repeat_of_an_end_does_not_say_when_it_was() -> None:
    """The drop ended the run, whose cancellation had been asked for, at an unknown moment."""
    history = HistoryBuilder().enqueued(1).claimed(10, 1, 1).add("cancel", "requested", running=True)
    history = history.enqueued(2, "blocked").add("claim", "short", id="", lease="m", limit=1)
    history = history.add("drop", "dropped", id="", lease="l", at=35, ended=95)
    history = history.claimed(11, 2, 2, lease="m", at=65).settled("retry", 10, "cancelled")

    assert check(history.steps).holds


def test_every_rule_is_tried() -> None:
    assert NAMES == list(PLANTED)


def test_the_docs_tell_every_rule() -> None:
    page = Path("docs/reference/history.md").read_text("utf-8")
    rows = [f"| {rule.name} {rule.title} | {rule.section} | {rule.sentence} |" for rule in RULES]

    assert rows == [line for line in page.splitlines() if line.startswith("| R")]


def test_the_order_of_the_lines_means_nothing() -> None:
    """Clients write at their own pace."""
    for name in NAMES:
        lines = [*write_steps(planted(name, bad=True))]

        assert [f.law for f in check(read_steps(reversed(lines)), deep=False).failures] == [
            f.law for f in check(planted(name, bad=True), deep=False).failures
        ]


def test_a_failure_is_told_as_a_timeline_of_its_id() -> None:
    [failure] = check(planted("R5", bad=True), deep=False).failures

    assert "fence 11 was given while 10 ran" in failure.why
    assert [line[0] for line in failure.story] == [" ", ">", ">"]
    assert "claim 'a'" in failure.story[1]


def test_the_reference_raises_no_alarm() -> None:
    """Whatever order the overlap of real answers leaves open, they can be explained."""
    alarms = [
        (seed, f.law, f.why)
        for seed in (*range(300), *REMEMBERED)
        for f in check(make_history(seed)).failures
    ]

    assert [] == alarms


def test_long_histories_of_the_reference_raise_no_alarm() -> None:
    """What is dropped and comes back is seldom met in short ones."""
    alarms = [(seed, f.law, f.why) for seed in range(15) for f in check(make_history(seed, 400)).failures]

    assert [] == alarms


@pytest.mark.certify
@pytest.mark.parametrize("part", range(20))
def test_the_reference_raises_no_alarm_in_memory_in_the_long_form(part: int) -> None:
    """100,000 histories."""
    first = 1_000_000 + 5_000 * part
    alarms = [
        (seed, f.law, f.why)
        for seed in range(first, first + 5_000)
        for f in check(make_history(seed)).failures
    ]

    assert [] == alarms


def test_the_histories_meet_nearly_every_rule() -> None:
    """What no random history meets is only planted: a drain, counts at rest, outside effects."""
    met = {law.name.split()[0] for seed in range(100) for law in check(make_history(seed)).laws if law.met}

    assert {"R2", "R13", "R19"} == set(NAMES) - met
    assert "R22" in met
