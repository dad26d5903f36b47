"""`dibs schedule` lists the next runs of periodic tasks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.shell import Shell
from tests.cli.terminal import run_in_terminal
from tests.cli.test_json_output import SHAPES, differences

PERIODIC = """
from dibs import Dibs

app = Dibs({url!r})


@app.task(every="12h")
async def refresh() -> None: ...


@app.task(cron="30 2 * * *", tz="Europe/Berlin")
async def nightly() -> None: ...


@app.task
async def plain() -> None: ...
"""


@pytest.fixture
def periodic(shell: Shell) -> Shell:
    (shell.folder / "periodic.py").write_text(PERIODIC.format(url=shell.url))
    shell.type("enqueue", "periodic.plain", "1", "--id", "a")
    return shell


def test_schedule_lists_declared_tasks_before_a_worker_ran(periodic: Shell) -> None:
    done = periodic.run("schedule", "periodic:app", "--next", "3", "--json")
    schedules = {each["queue"]: each for each in json.loads(done.stdout)["schedules"]}
    refresh = schedules["periodic.refresh"]

    assert {"periodic.refresh", "periodic.nightly"} == {*schedules}
    assert ("every 12h", "not stored", 3) == (refresh["schedule"], refresh["state"], len(refresh["next"]))
    assert {"00:00:00.000Z", "12:00:00.000Z"} == {moment.partition("T")[2] for moment in refresh["next"]}
    assert "cron 30 2 * * * Europe/Berlin" == schedules["periodic.nightly"]["schedule"]
    assert refresh["next"] == sorted(refresh["next"])
    assert [] == differences(SHAPES["schedule"], json.loads(done.stdout))


def test_schedule_reads_the_ticks_that_workers_stored(periodic: Shell) -> None:
    code = "import periodic; periodic.app.sync.work(until='empty')"
    periodic.type("cancel", "periodic.plain", "a")
    run_python(periodic, code)
    periodic.type("pause", "periodic.nightly")
    stored = {each["queue"]: each for each in periodic.json("schedule")["schedules"]}
    lines = periodic.type("schedule", "--format", "lines").stdout.splitlines()

    assert {"periodic.refresh": "waiting", "periodic.nightly": "paused"} == {
        queue: each["state"] for queue, each in stored.items()
    }
    assert [None, None] == [each["schedule"] for each in stored.values()]
    assert stored["periodic.refresh"]["next"][0] in lines[0] + lines[1]
    assert "periodic.refresh" in run_in_terminal(periodic, "schedule", "periodic:app").text


def run_python(shell: Shell, code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=shell.folder, check=True, timeout=60)


def test_schedule_without_periodic_tasks_says_how_to_read_an_application(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert "dibs schedule MODULE:APP" in shell.type("schedule").stdout


def test_schedule_of_a_bad_application_is_a_usage_error(shell: Shell) -> None:
    done = shell.run("schedule", "nowhere:app", "--url", shell.url)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
