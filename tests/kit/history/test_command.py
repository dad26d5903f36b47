"""`dibs check-history` with a file, with standard input, and with the log of a queue; and its errors."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.events import LogEvent
from dibs.model.requests import LogLevel, SettingsPatch
from dibs.storage.registry import open_storage
from dibs_conformance.history import CheckResult, InvalidHistory, RecordedStep, check, read_steps, write_steps
from dibs_conformance.history.command import check_history, read_log
from dibs_conformance.history.from_log import log_of, steps_of
from tests.kit.history.histories import QUEUE, run_random_calls
from tests.kit.history.planted import planted
from tests.kit.shell import invoke


def lines_of(name: str, *, bad: bool) -> bytes:
    return b"".join(write_steps(planted(name, bad=bad)))


def test_a_correct_history_exits_with_0_and_a_broken_one_with_1(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_bytes(lines_of("R15", bad=False))
    bad.write_bytes(lines_of("R15", bad=True))

    assert (0, True) == (
        (done := invoke(check_history, str(good))).exit_code,
        "no rule is broken" in done.stdout,
    )
    assert (1, True) == (
        (done := invoke(check_history, str(bad))).exit_code,
        "BROKEN: R15 not early" in done.stdout,
    )


def test_it_reads_standard_input_and_prints_json() -> None:
    done = invoke(check_history, "-", "--json", stdin=lines_of("run_ends_twice", bad=True))

    failures = msgspec.json.decode(done.stdout, type=CheckResult).failures

    assert ["R22 some order explains it"] == [failure.law for failure in failures]


@pytest.mark.parametrize("words", [(), ("a.jsonl", "--url", "file:./x"), ("--url", "file:./x")])
def test_a_usage_error_exits_with_2(words: tuple[str, ...]) -> None:
    assert 2 == invoke(check_history, *words).exit_code


@pytest.mark.parametrize("line", [b"{", b'{"op": "climb"}', b'{"op": "claim", "status": "taken"}'])
def test_an_invalid_line_is_reported_with_its_number(line: bytes) -> None:
    with pytest.raises(InvalidHistory, match="line 2 is not a step"):
        [*read_steps([b"\n", line])]


@pytest.mark.parametrize("level", ["runs", "all"])
async def test_the_log_of_a_queue_is_a_history(level: LogLevel) -> None:
    """An event log of a correct storage breaks no rule. The steps missing from the log do not count as
    violations.
    """
    met = set()
    for seed in range(20):
        async with open_storage("memory:", "manual") as storage:
            await storage.configure(QUEUE, SettingsPatch(log_level=level))
            await run_random_calls(storage, Random(seed), 60)
            checked = check(await log_of(storage, QUEUE))
        met |= {law.name.split()[0] for law in checked.laws if law.met}

        assert checked.holds, checked.failures

    assert {"R4", "R22"} <= met
    assert ("R11" in met) == (level == "all")


def test_an_overlap_in_the_log_is_found_by_the_storages_time() -> None:
    """In the order of the log, the first run ends before the second. The times in it show that both were
    active.
    """
    first = LogEvent(
        kind="retried", id="a", at=20, attempt=1, fence=5_000, claimed_at=5, run_at=1, revision=1
    )
    second = replace(first, kind="completed", at=30, attempt=2, fence=6_000, claimed_at=6)

    steps = [RecordedStep(op="partial"), *steps_of("q", [first, second])]

    assert ["R22 some order explains it"] == [f.law for f in check(steps).failures]


async def test_the_log_of_a_storage_inside_one_process_cannot_be_read() -> None:
    with pytest.raises(Refused, match="inside one process"):
        await read_log("memory:", "q")
