"""Runs with steps whose process is killed or suspended: a stored step never runs again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from dibs.app import Dibs
from dibs.client.calls.run_steps import decode_memo, encode_memo
from dibs.worker.supervisor import workers
from tests.worker.gate import Gate
from tests.worker.jobs import current, event_kinds, outcome, put
from tests.worker.scenarios.test_zombies import LEASE, take_over
from tests.worker.supervisors import TIMEOUT, program, working


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to which the handlers write."""
    monkeypatch.setenv("STEPS", str(tmp_path))
    return tmp_path


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("queue", ["charges", pytest.param("charges_alone", marks=pytest.mark.chaos)])
async def test_a_kill_at_any_point_repeats_no_stored_step(
    app: Dibs, folder: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine runs are killed: before each of three steps, after its effect, and after its result was stored."""
    monkeypatch.setattr(workers, "RESTART_PAUSE", (0.0, 0.0))
    await put(app, queue, "a")
    async with working(app, queue) as task:
        await task

    effects = [line.split() for line in lines(folder / "effects")]
    assert ["0", "0", "1", "1", "2", "2"] == [name for name, _ in effects], "the second call was stored"
    assert 3 == len({key for _, key in effects}), "a step has one key in all runs"
    assert ["receipt 0", "receipt 1", "receipt 2"] == json.loads(
        (await outcome(app, queue, "a")).result or b""
    )
    assert [*["stalled"] * 9, "completed"] == await event_kinds(app, queue, "a")


async def test_the_step_of_a_zombie_is_refused(app: Dibs, gate: Gate, folder: Path) -> None:
    """The supervisor is suspended, so its process goes on after the job was claimed elsewhere."""
    await put(app, "charges_held", "a")
    async with program(folder, "charges_held", lease=LEASE, heartbeat=0.2) as zombie:
        await gate.arrived("a")
        os.kill(zombie.pid, signal.SIGSTOP)
        job = await take_over(app, "charges_held")
        assert ["first"] == list(decode_memo(job.data.memo)), "the new run has the step of the first one"
        assert job.run is not None
        memo = encode_memo({"first": b"1", "other": b"2"})
        await app.storage.report("charges_held", "a", job.run.fence, memo=memo)
        await gate.release_without_waiting("a")
        async with asyncio.timeout(TIMEOUT):
            while not lines(folder / "refused"):  # noqa: ASYNC110 - another process writes the file
                await asyncio.sleep(0.01)

    assert memo == (await current(app, "charges_held", "a")).data.memo
