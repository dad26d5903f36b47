"""The door of the kit: what it refuses, what it reports, and that it is not fooled by claims or bad input."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace

import msgspec
import pytest

from dibs.errors import Refused
from dibs.model import transitions
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import open_storage
from dibs_conformance import Report, certify
from dibs_conformance.command import certify as verb
from dibs_conformance.report.story import StoryRecorder
from dibs_conformance.sequential.bad_input import wrong_verdicts
from dibs_conformance.sequential.examples import run_examples
from dibs_conformance.sequential.lockstep import LawChecker
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.target import Locations, LoopRunner
from tests.kit import shell
from tests.kit.play import play


@asynccontextmanager
async def boastful(location: str, clock: Clock) -> AsyncIterator[Storage]:
    """A memory storage that says it is durable and shared."""
    async with open_storage(f"memory:{location}", clock) as storage:
        said = Capabilities(durable=True, shared=True, cross_queue=True, manual_clock=True)
        type(storage).capabilities = property(lambda _: said)  # type: ignore[assignment, method-assign]
        yield storage


def test_an_untrue_claim_fails_and_an_unclaimed_power_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capability is held against the storage, both ways."""
    kind = type(open_storage("memory:"))
    monkeypatch.setattr(kind, "capabilities", kind.capabilities)

    report = certify(boastful, examples=1, seed=1)
    powers = {power.name: power for power in report.capabilities}

    assert {failure.law for failure in report.failures} >= {"durable", "shared"}
    assert (powers["push_wakeups"].claimed, powers["push_wakeups"].found) == (False, True)
    assert not report.certified


@pytest.mark.parametrize("level", ["L9"])
def test_a_level_that_is_not_built_is_refused_by_name(level: str) -> None:
    with pytest.raises(Refused, match=level):
        certify("memory:", level)


def test_a_failure_is_told_as_the_shortest_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "request_cancel", lambda slot, *_: slot)

    failure, _ = play(50, shrink=True)

    assert failure is not None
    assert len(failure.story) <= 8, failure
    assert any(line.startswith("cancel(") for line in failure.story)


async def test_bad_input_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.model.check_jobs.check_data", lambda *_: None)

    async with Locations("memory:").open("memory:no-limits", "manual") as storage:
        met, wrong = await wrong_verdicts(storage)

    assert met > 70
    assert any("payload above 1 MiB: accepted" in text for text in wrong)


def test_places_are_the_kits_own() -> None:
    """A URL says where; the kit makes a place of its own beside it."""
    locations = Locations("memory:mine")

    assert len({"memory:mine", locations.new(), locations.new()}) == 3


def said(*words: str) -> tuple[int, str]:
    result = shell.said(verb, *words)
    return result.exit_code, result.stdout


def test_the_verb_prints_the_report_as_json() -> None:
    code, text = said("memory:", "--examples", "3", "--seed", "3", "--json")
    report = msgspec.json.decode(text, type=Report)

    assert (code, report.certified, report.seed) == (0, True, 3)
    assert {law.verdict for law in report.laws} == {"kept"}


def test_the_verb_says_no_with_1_and_wrong_words_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "request_cancel", lambda slot, *_: slot)

    assert said("memory:", "--examples", "60", "--seed", "1")[0] == 1
    assert said("memory:", "--level", "L9")[0] == 2
    assert said("nowhere:")[0] == 2


def test_one_example_meets_every_law() -> None:
    """The tour sees to it, so that a short run is not certified by chance."""
    report = certify("memory:", examples=1, seed=1)

    assert ("L0", ()) == (report.reached, report.levels[0].unmet), report.text()


def test_a_budget_without_room_certifies_nothing() -> None:
    """What was not tried is not kept."""
    report = certify("memory:", budget=0.0)

    assert not report.certified
    assert ["not tested"] == [level.verdict for level in report.levels]
    assert "larger budget" in report.text()


@pytest.mark.parametrize("words", ["--budget=nan", "--budget=-1", "--examples=-1"])
def test_an_effort_that_is_none_is_wrong_words(words: str) -> None:
    option, _, value = words.removeprefix("--").partition("=")

    result = shell.said(verb, "memory:", words)

    assert (2, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(f"{option} is {value}")


def test_a_budget_ends_between_two_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after as many as share a seed: on a slow storage these may take minutes."""
    moments = count()
    for module in ("sequential.examples", "sequential.session"):
        monkeypatch.setattr(
            f"dibs_conformance.{module}.time", SimpleNamespace(monotonic=lambda: next(moments))
        )
    runner = LoopRunner()
    session = ExampleSession(Locations("memory:"), LawChecker((), StoryRecorder()), runner, cross_queue=True)
    try:
        assert run_examples(session, first_seed=1, examples=None, budget=5, steps=3) is None
    finally:
        runner.close()

    assert 1 <= session.examples <= 5
