"""Tests of `certify`: invalid arguments, the report, false claims and invalid input."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dibs.errors import Refused
from dibs.model import transitions
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import open_storage
from dibs_conformance import CertificationReport, certify
from dibs_conformance.command import certify as verb
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report.call_text import CallRecorder
from dibs_conformance.sequential import levels as sequential_levels
from dibs_conformance.sequential.bad_calls import check_bad_calls
from dibs_conformance.sequential.levels import run_examples
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.target import Locations
from tests.kit import shell
from tests.kit.play import play


@asynccontextmanager
async def open_false_claims(location: str, clock: Clock) -> AsyncIterator[Storage]:
    """Open a memory storage that claims to be durable and shared."""
    async with open_storage(f"memory:{location}", clock) as storage:
        claims = Capabilities(durable=True, shared=True, manual_clock=True)
        type(storage).capabilities = property(lambda _: claims)  # type: ignore[assignment, method-assign]
        yield storage


def test_a_false_claim_fails_and_an_unclaimed_capability_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capability is compared with the storage, in both directions."""
    kind = type(open_storage("memory:"))
    monkeypatch.setattr(kind, "capabilities", kind.capabilities)

    report = certify(open_false_claims, examples=1, seed=1)
    capabilities = {one.name: one for one in report.capabilities}

    assert {failure.law for failure in report.failures} >= {"durable", "shared"}
    assert (capabilities["cross_queue"].claimed, capabilities["cross_queue"].found) == (False, True)
    assert not report.certified


@pytest.mark.parametrize("level", ["L9"])
def test_an_unknown_level_is_refused(level: str) -> None:
    with pytest.raises(Refused, match=level):
        certify("memory:", level)


def test_a_failure_is_reported_with_the_fewest_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "request_cancel", lambda slot, *_: slot)

    failure, _ = play(50, shrink=True)

    assert failure is not None
    assert len(failure.story) <= 9, failure
    assert any(line.startswith("cancel(") or "supersede" in line for line in failure.story)


async def test_accepted_invalid_input_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.model.check_jobs.check_job_data", lambda *_: None)

    async with Locations("memory:").open("memory:no-limits", "manual") as storage:
        met, wrong = await check_bad_calls(storage)

    assert met > 70
    assert any("payload above 1 MiB: accepted" in text for text in wrong)


def test_locations_differ_from_the_target() -> None:
    """The kit creates locations of its own next to the one in the URL."""
    locations = Locations("memory:mine")

    assert len({"memory:mine", locations.new(), locations.new()}) == 3


def run(*words: str) -> tuple[int, str]:
    result = shell.invoke(verb, *words)
    return result.exit_code, result.stdout


def test_the_command_prints_the_report_as_json() -> None:
    code, text = run("memory:", "--examples", "3", "--seed", "3", "--json")
    report = msgspec.json.decode(text, type=CertificationReport)

    assert (code, report.certified, report.seed) == (0, True, 3)
    assert {law.verdict for law in report.laws} == {"kept"}


def test_the_command_exits_with_1_if_not_certified_and_2_for_invalid_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transitions, "request_cancel", lambda slot, *_: slot)

    assert run("memory:", "--examples", "60", "--seed", "1")[0] == 1
    assert run("memory:", "--level", "L9")[0] == 2
    assert run("nowhere:")[0] == 2


def test_one_example_checks_every_verb() -> None:
    """The walkthrough calls every verb, so a short run does not depend on chance."""
    report = certify("memory:", examples=1, seed=1)

    assert ("L0", ()) == (report.reached, report.levels[0].unmet), report.text()


def test_a_budget_of_zero_certifies_no_level() -> None:
    """A law that was not checked is not kept."""
    report = certify("memory:", budget=0.0)

    assert not report.certified
    assert ["not tested"] == [level.verdict for level in report.levels]
    assert "larger budget" in report.text()


@pytest.mark.parametrize("words", ["--budget=nan", "--budget=-1", "--examples=-1"])
def test_an_invalid_budget_or_number_is_a_usage_error(words: str) -> None:
    option, _, value = words.removeprefix("--").partition("=")

    result = shell.invoke(verb, "memory:", words)

    assert (2, "") == (result.exit_code, result.stdout)
    assert option in result.stderr
    assert value in result.stderr


def test_a_small_budget_has_a_share_for_random_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes of capabilities, the walkthrough and the probes of L0 take longer than 0.01 s."""
    shares = []

    def record(session: ExampleSession, **options: Any) -> None:
        shares.append(options["budget"])

    monkeypatch.setattr(sequential_levels, "run_examples", record)
    certify("memory:", budget=0.01, seed=1)

    assert [0.0025] == shares


def test_a_budget_ends_between_two_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget also ends within a chunk of examples, which may take minutes on a slow storage."""
    moments = count()
    clock = SimpleNamespace(monotonic=lambda: next(moments))
    for module in ("levels", "session"):
        monkeypatch.setattr(f"dibs_conformance.sequential.{module}.time", clock)
    runner = LoopRunner()
    session = ExampleSession(Locations("memory:"), CallRecorder(), runner, cross_queue=True)
    try:
        assert run_examples(session, first_seed=1, examples=None, budget=5, steps=3) is None
    finally:
        runner.close()

    assert 1 <= session.examples <= 5
