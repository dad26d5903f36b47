"""`dibs configure` shows and changes the settings of a queue."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from dibs.cli.parsing import parse_rate
from dibs.client.options.queue_settings import format_rate
from tests.cli.shell import Shell
from tests.cli.terminal import run_in_terminal
from tests.cli.test_json_output import SHAPES, differences


def test_configure_changes_only_the_given_settings(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    shell.json("configure", "q", "--max-active", "3", "--retention", "failed=30d", "--log-age", "12h")
    settings = shell.json(
        "configure", "q", "--paused", "yes", "--retention", "cancelled=forever", "--request-key-age", "90",
        "--log-level", "all", "--log-bytes", "1000",
    )["settings"]  # fmt: skip

    assert {
        "paused": True, "max_active": 3, "retention": {"failed": 2_592_000.0, "cancelled": None},
        "log_level": "all", "log_age": 43_200.0, "log_bytes": 1000, "log_results": 0, "request_key_age": 90.0,
        "fail_handler": False, "per_key": None, "rate": None, "key_rate": None, "max_waiting": None,
        "when_full": "refuse", "fair": False, "shares": {},
    } == settings  # fmt: skip
    assert settings == shell.json("configure", "q")["settings"]
    assert shell.json("configure", "q", "--max-active", "none")["settings"]["max_active"] is None


def test_a_full_queue_takes_no_job_and_the_command_says_so(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    settings = shell.json("configure", "q", "--max-waiting", "1")["settings"]
    refused = shell.type("enqueue", "q", "2", "--id", "b")
    shell.type("configure", "q", "--when-full", "drop_new")
    dropped = shell.type("enqueue", "q", "2", "--id", "b", "--json")
    shell.type("configure", "q", "--max-waiting", "none")

    assert (1, "refuse") == (settings["max_waiting"], settings["when_full"])
    assert (1, "full q/b\n") == (refused.exit_code, refused.stdout)
    assert "q/b was refused: the queue has as many waiting jobs as its max_waiting allows" in refused.stderr
    assert 1 == dropped.exit_code
    assert '"status":"dropped"' in dropped.stdout
    assert 0 == shell.type("enqueue", "q", "2").exit_code
    assert 2 == shell.type("configure", "q", "--max-waiting", "0").exit_code


def test_configure_sets_limits_and_none_removes_them(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    words = ["--per-key", "1", "--rate", "5/s burst 10", "--key-rate", "10/m", "--log-results", "100"]
    settings = shell.json("configure", "q", *words, "--fail-handler", "yes")["settings"]
    shown = shell.type("show").stdout
    removed = shell.json("configure", "q", "--per-key", "none", "--rate", "none", "--key-rate", "none")

    limits = {name: settings[name] for name in ("per_key", "rate", "key_rate", "log_results", "fail_handler")}
    assert {
        "per_key": 1,
        "rate": {"starts": 5, "per": 1.0, "burst": 10},
        "key_rate": {"starts": 10, "per": 60.0, "burst": 1},
        "log_results": 100,
        "fail_handler": True,
    } == limits
    assert "per_key 1, rate 5/s burst 10, key_rate 10/m, log_results 100, fail_handler yes" in shown
    assert [None] * 3 == [removed["settings"][name] for name in ("per_key", "rate", "key_rate")]


def test_keys_take_turns_and_one_of_them_is_paused(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--key", "acme")
    settings = shell.json("configure", "q", "--fair", "yes", "--share", "a=b=3", "--share", "old=2")[
        "settings"
    ]
    removed = shell.json("configure", "q", "--share", "old=none", "--fair", "no")["settings"]
    paused = shell.json("pause", "q", "--key", "acme")
    shown = shell.type("configure", "q").stdout
    resumed = shell.type("resume", "q", "--key", "acme", "--share", "4").stdout
    bad = [shell.type("configure", "q", "--share", text) for text in ("acme", "=3", "acme=x", "acme=-1")]

    assert (True, {"a=b": 3, "old": 2}) == (settings["fair"], settings["shares"])
    assert (False, {"a=b": 3}) == (removed["fair"], removed["shares"])
    assert {"queues": {"q": {"key": "acme", "paused": True}}} == paused
    assert "share acme" in shown
    assert "resumed q key acme\n" == resumed
    assert {"a=b": 3, "acme": 4} == shell.json("configure", "q")["settings"]["shares"]
    assert [2] * 4 == [one.exit_code for one in bad]
    assert 2 == shell.type("resume", "q", "--share", "4").exit_code


@pytest.mark.parametrize(
    "text", ["5/s", "10/m", "100/h", "3/d", "10/30s", "7/1m30s", "5/s burst 10", "2/20ms"]
)
def test_the_text_of_a_rate_is_shown_as_it_is_written(text: str) -> None:
    assert text == format_rate(parse_rate("--rate", text).to_model())


def test_a_retention_without_a_kind_is_for_all_kinds(shell: Shell) -> None:
    shown = shell.type("configure", "q", "--retention", "1h30m", "--retention", "failed=0").stdout

    assert 2 == shown.count("1h30m")
    assert "retention failed     0s" in shown


def test_settings_that_differ_are_in_the_list_of_queues(shell: Shell) -> None:
    shell.type("enqueue", "plain", "1")
    shell.type("configure", "q", "--paused", "yes", "--max-active", "3")
    lines = shell.type("show").stdout.splitlines()

    assert ["paused, max_active 3"] == [line[-20:] for line in lines if line.startswith("q ")]
    assert [True] == [line.endswith("0") for line in lines if line.startswith("plain ")]


@pytest.mark.parametrize(
    "words",
    [("--key-rate", "9999999/s"), ("--log-age", "inf"), ("--request-key-age", "200000d")],
    ids=" ".join,
)
def test_a_bad_setting_changes_nothing(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell.type("configure", "q", "--log-level", "all", *words)

    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert words[0] in result.stderr
    assert not Path("jobs").exists()


def test_configure_without_an_option_does_not_create_a_queue(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert 1 == shell.type("configure", "typo").exit_code
    assert ["q"] == [*shell.json("counts")["queues"]]


# -- `dibs metrics`: it serves the metrics of a storage until a signal, and refuses what it cannot serve


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(shell: Shell, number: signal.Signals) -> None:
    shell.type("enqueue", "emails", "1")
    process = shell.start("metrics", "--port", "0", "--url", shell.url, "--json")
    with process:
        assert process.stdout is not None
        page = urlopen(json.loads(process.stdout.readline())["url"]).read().decode()
        process.send_signal(number)

    assert 0 == process.returncode
    assert 'dibs_jobs{queue="emails",state="waiting"} 1.0' in page
    assert 'dibs_findings{code="queue-not-served",severity="error"} 1.0' in page


def test_a_missing_folder_or_package_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = shell.type("metrics", url="file:./nothing-here")
    monkeypatch.setitem(sys.modules, "dibs.telemetry.storage_metrics", None)
    shell.type("enqueue", "emails", "1")
    without = shell.type("metrics")

    assert (1, 2) == (missing.exit_code, without.exit_code)
    assert "there is no directory" in missing.stderr
    assert 'pip install "dibs[metrics]"' in " ".join(without.stderr.split())


# -- `dibs schedule` lists the next runs of periodic tasks -------------------------------------------


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
