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
    done = periodic.run("schedule", "list", "periodic:app", "--next", "3", "--json")
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
    stored = {each["queue"]: each for each in periodic.json("schedule", "list")["schedules"]}
    lines = periodic.type("schedule", "list", "--format", "lines").stdout.splitlines()

    assert {"periodic.refresh": "waiting", "periodic.nightly": "paused"} == {
        queue: each["state"] for queue, each in stored.items()
    }
    assert "every 12h" == stored["periodic.refresh"]["schedule"]
    assert stored["periodic.refresh"]["next"][0] in lines[0] + lines[1]
    assert "periodic.refresh" in run_in_terminal(periodic, "schedule", "list", "periodic:app").text


def run_python(shell: Shell, code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=shell.folder, check=True, timeout=60)


def test_schedule_without_periodic_tasks_says_how_to_read_an_application(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert "dibs schedule list MODULE:APP" in shell.type("schedule", "list").stdout


def test_schedule_of_a_bad_application_is_a_usage_error(shell: Shell) -> None:
    done = shell.run("schedule", "list", "nowhere:app", "--url", shell.url)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))


def test_schedule_changes_schedules_by_name(shell: Shell) -> None:
    def listed() -> dict[str, tuple[str, str, int]]:
        found = shell.json("schedule", "list", "--next", "2")["schedules"]
        return {each["name"]: (each["schedule"], each["state"], len(each["next"])) for each in found}

    shell.type("enqueue", "q", "1")
    shell.type("schedule", "add", "q", "night", "2", "--cron", "0 3 * * *", "--tz", "Europe/Berlin")
    shell.type("schedule", "add", "q", "often", "2", "--every", "30m", "--skip-missed", "--overlap", "skip")
    shell.type("schedule", "pause", "q", "night")

    assert {
        "night": ("cron 0 3 * * * Europe/Berlin", "paused", 0),
        "often": ("every 30m, skip", "waiting", 2),
    } == listed()
    assert "resumed" == shell.json("schedule", "resume", "q", "night")["jobs"][0]["answer"]
    shell.type("schedule", "remove", "q", "often")
    assert {"night": ("cron 0 3 * * * Europe/Berlin", "waiting", 2)} == listed()


@pytest.mark.parametrize("verb", ["pause", "resume", "remove"])
def test_schedule_says_that_a_schedule_does_not_exist(shell: Shell, verb: str) -> None:
    shell.type("enqueue", "q", "1")
    for name in ([], ["nightly"]):
        done = shell.type("schedule", verb, "q", *name)

        assert (1, "not_found") == (done.exit_code, done.stdout.split()[0])
