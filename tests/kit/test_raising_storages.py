"""Storages that raise, hang, end their process or answer with a wrong type are failures at every level."""

from __future__ import annotations

import signal
from typing import Final

import pytest

from dibs.storage.capabilities import Capabilities
from dibs_conformance import CertificationReport, certify
from dibs_conformance.certification import run_level
from dibs_conformance.history import free_run
from dibs_conformance.levels import LEVELS
from dibs_conformance.loop_runner import LIMITS, without_exits
from dibs_conformance.report import Findings, LevelReport
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.raising_storages import MISDEEDS, OpenRaising

CLAIMS = Capabilities(manual_clock=True, cross_queue=True)
SHARED = Capabilities(manual_clock=True, cross_queue=True, durable=True, shared=True)
HANGS = ("hangs at an await", "hangs in a block")
#: One misdeed for each path through the kit.
KINDS: Final = ("KeyError", "BaseExceptionGroup", "wrong answer", *HANGS, "os._exit")
#: Processes start slowly, and hangs are waited for; `nox -s certify` runs these.
SLOW: Final = pytest.mark.certify


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limit of a hanging call to 1 s, and that of a test of many calls to 10 s."""
    monkeypatch.setattr(LIMITS, "call", 1.0)
    monkeypatch.setattr(LIMITS, "test", 10.0)
    monkeypatch.setattr(free_run, "CLIENT_TIMEOUT", 10.0)


def run(level: str, target: OpenRaising, claims: Capabilities = CLAIMS) -> LevelReport:
    plan = LevelPlan(locations=Locations(target), claims=claims, seed=1, budget=0.0, examples=2)
    with without_exits():
        return run_level(level, plan)


def assert_reported(level: LevelReport, verb: str, misdeed: str) -> None:
    """Check that the level failed, and that the finding names the verb and the misdeed."""
    assert level.verdict == "broken", level
    finding = "\n".join([level.failures[0].why, *level.failures[0].story])
    assert verb in finding
    assert MISDEEDS[misdeed][1] in finding
    assert "Traceback" not in finding
    assert "dibs_conformance" not in finding


@pytest.mark.parametrize("misdeed", list(MISDEEDS))
def test_l0_reports_a_verb_with_its_history(misdeed: str) -> None:
    level = run("L0", OpenRaising("claim", misdeed))

    assert_reported(level, "claim(", misdeed)
    assert any(line.startswith("enqueue(") for line in level.failures[0].story)


def test_a_background_job_of_a_shell_ends_a_call_that_blocks() -> None:
    """Such a job ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert_reported(run("L0", OpenRaising("claim", "hangs in a block")), "claim(", "hangs in a block")
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("verb", ["open", "close", "get"])
@pytest.mark.parametrize("level", ["L0", "L1"])
def test_every_step_is_reported(level: str, verb: str) -> None:
    assert_reported(run(level, OpenRaising(verb, "KeyError")), verb, "KeyError")


def test_a_wait_that_raises_is_reported() -> None:
    [failure, *_] = run("L0", OpenRaising("wait", "KeyError")).failures

    assert failure.why.startswith("wait")
    assert "KeyError" in failure.why


@pytest.mark.parametrize("misdeed", KINDS)
def test_l1_reports_a_verb_with_its_history(misdeed: str) -> None:
    level = run("L1", OpenRaising("claim", misdeed))

    assert_reported(level, "claim(", misdeed)
    assert level.failures[0].story


@pytest.mark.parametrize(
    "misdeed", ["os._exit", *(pytest.param(kind, marks=SLOW) for kind in (*KINDS[:-1], "EOFError"))]
)
@pytest.mark.parametrize("verb", ["open", pytest.param("settle", marks=SLOW)])
def test_l2_reports_a_child_process(misdeed: str, verb: str, tmp_path: object) -> None:
    if (verb, misdeed) == ("open", "wrong answer"):
        return
    level = run("L2", OpenRaising(verb, misdeed, url=f"file:{tmp_path}/", only_elsewhere=True), SHARED)

    assert level.verdict == "broken", level
    assert level.failures[0].why


@pytest.mark.parametrize(
    "misdeed", ["KeyError", *(pytest.param(kind, marks=SLOW) for kind in (*KINDS[1:], "EOFError"))]
)
def test_l3_reports_a_child_process(misdeed: str, tmp_path: object) -> None:
    level = run("L3", OpenRaising("settle", misdeed, url=f"file:{tmp_path}/", only_elsewhere=True), SHARED)

    assert level.verdict == "broken", level
    assert "settle" in level.failures[0].why + "".join(level.failures[0].story)


@pytest.mark.parametrize("misdeed", ["KeyError", "SystemExit", "os._exit"])
def test_a_storage_that_does_not_open_is_reported(misdeed: str) -> None:
    report = certify(OpenRaising("open", misdeed), "L1", examples=1)

    assert ("L0", "not run") == (report.failed_at, report.levels[1].verdict)
    assert "open" in report.failures[0].why
    assert MISDEEDS[misdeed][1] in report.failures[0].why


def test_ctrl_c_ends_with_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has the levels and histories that ran until then, and the verdict is no failure."""

    async def no_probes(*_: object) -> object:
        return CLAIMS, "none", []

    def interrupt(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("dibs_conformance.certification.probe_capabilities", no_probes)
    monkeypatch.setitem(LEVELS, "L0", lambda _: Findings(histories=1))
    report: CertificationReport = certify("memory:", "L2", examples=30, progress=interrupt)

    assert (False, "L0", ()) == (report.certified, report.reached, report.failures)
    assert [1, 3, 0] == [level.histories for level in report.levels]
    assert "NOT TRIED: the rest of the level: the user interrupted the run" in report.text()
    assert "L2 threads and processes: not run" in report.text()
