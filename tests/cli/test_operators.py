"""The commands of operators: failures, retry, purge, configure, schedule, workers and finish."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dibs.cli import failed_jobs
from dibs.model.job import Error, NewJob
from dibs.model.requests import EnqueueRequest, Fail, HandOff, Settlement
from dibs.storage.protocol import Storage
from tests.cli.shell import Shell, in_storage
from tests.cli.terminal import run_in_terminal

Work = Callable[[Storage], Coroutine[Any, Any, None]]


def failed(queue: str, *ids: str, error: str = "OSError") -> Work:
    """Return a step that enqueues jobs and lets them fail with a type of error."""

    async def work(storage: Storage) -> None:
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids])
        lease = (await storage.grant([queue], 60_000, "test")).lease
        jobs = (await storage.claim(queue, lease, len(ids))).jobs
        action = Fail(error=Error(type=error, message=f"no {error}"))
        await storage.settle(
            queue,
            [Settlement(id=job.id, fence=job.run.fence if job.run else 0, action=action) for job in jobs],
        )

    return work


@pytest.fixture
def broken(shell: Shell) -> Shell:
    """A storage in which jobs of two queues have failed with two types of error."""
    in_storage(shell, failed("emails", "a", "b", "c", "d"))
    in_storage(shell, failed("emails", "e", error="httpx.ConnectError"))
    in_storage(shell, failed("reports", "f", error="httpx.ConnectError"))
    shell.type("enqueue", "emails", "1", "--id", "waiting")
    return shell


# -- failures ------------------------------------------------------------------------------------------


def test_failures_are_grouped_by_error_and_queue(broken: Shell) -> None:
    groups = broken.json("failures")["failures"]

    assert [
        ("OSError", "emails", 4),
        ("httpx.ConnectError", "emails", 1),
        ("httpx.ConnectError", "reports", 1),
    ] == [(group["error"], group["queue"], group["failed"]) for group in groups]
    assert (3, {"a", "b", "c", "d"}) == (len(groups[0]["ids"]), {*groups[0]["ids"], "a", "b", "c", "d"})
    assert "no OSError" == groups[0]["message"]
    assert groups[0]["oldest"] <= groups[0]["newest"]


def test_failures_of_one_queue(broken: Shell) -> None:
    assert ["reports"] == [group["queue"] for group in broken.json("failures", "reports")["failures"]]


def test_failures_are_read_page_by_page(broken: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_jobs, "BATCH_SIZE", 2)

    assert [4, 1, 1] == [group["failed"] for group in broken.json("failures")["failures"]]
    assert {"queued": 4} == broken.json("retry", "--error", "OSError", "--yes")["queues"]["emails"]


def test_the_table_of_failures_fits_a_terminal(broken: Shell) -> None:
    screen = run_in_terminal(broken, "failures")

    assert 0 == screen.code
    assert "OSError             emails" in screen.text
    assert 80 >= max(map(len, screen.lines))


def test_without_failures_the_table_is_a_sentence(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert (0, "no job has failed\n") == (shell.type("failures").exit_code, shell.type("failures").stdout)
    assert "" == shell.type("failures", "--format", "lines").stdout


# -- retry -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["httpx.ConnectError", "ConnectError"])
def test_all_failures_with_an_error_are_retried(broken: Shell, error: str) -> None:
    numbers = broken.json("retry", "--error", error, "--yes")

    assert {"queues": {"emails": {"queued": 1}, "reports": {"queued": 1}}} == numbers
    assert ["OSError"] == [group["error"] for group in broken.json("failures")["failures"]]
    assert "waiting" == broken.json("show", "reports", "f")["state"]


def test_an_error_is_not_matched_by_a_part_of_its_name(broken: Shell) -> None:
    assert {"queues": {}} == broken.json("retry", "--error", "Error", "--yes")


def test_the_failures_of_one_queue_are_retried(broken: Shell) -> None:
    assert {"queues": {"emails": {"queued": 5}}} == broken.json("retry", "emails", "--all", "--yes")
    assert 1 == broken.json("counts")["queues"]["reports"]["failed"]


def test_an_answer_other_than_queued_exits_with_1(broken: Shell) -> None:
    broken.type("enqueue", "emails", "1", "--id", "a")

    assert {"queued": 3, "live": 1} == broken.json("retry", "--error", "OSError", "--yes", code=1)["queues"][
        "emails"
    ]


@pytest.mark.parametrize(("answer", "code", "failed"), [("y", 0, 0), ("n", 1, 5), ("", 1, 5)])
def test_a_retry_of_many_jobs_asks_in_a_terminal(broken: Shell, answer: str, code: int, failed: int) -> None:
    screen = run_in_terminal(broken, "retry", "--all", typed=f"{answer}\n")

    assert "Retry 6 failed jobs of 2 queues? [y/N]:" in screen.text
    assert (code, failed) == (screen.code, broken.json("counts")["queues"]["emails"]["failed"])


@pytest.mark.parametrize("words", [("retry", "--all"), ("purge", "emails")])
def test_a_program_must_confirm(broken: Shell, words: tuple[str, ...]) -> None:
    before = broken.json("counts")
    result = broken.type(*words)

    assert (2, "") == (result.exit_code, result.stdout)
    assert "confirm with --yes" in result.stderr
    assert before == broken.json("counts")


@pytest.mark.parametrize("words", [[], ["emails"], ["emails", "a", "--all"], ["--all", "--error", "X"]])
def test_retry_needs_one_choice_of_jobs(broken: Shell, words: list[str]) -> None:
    assert 2 == broken.type("retry", *words, "--yes").exit_code


def test_a_refused_retry_explains_itself(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")

    assert "live  q/a: a job with this id waits or runs already\n" == shell.type("retry", "q", "a").stdout


# -- purge -----------------------------------------------------------------------------------------------


def test_purge_removes_waiting_jobs_and_outcomes(broken: Shell) -> None:
    assert {"queues": {"emails": {"removed": 1}}} == broken.json("purge", "emails", "--yes")
    counts = broken.json("counts")["queues"]
    assert (0, 0, 1) == (counts["emails"]["waiting"], counts["emails"]["failed"], counts["reports"]["failed"])


def test_purge_leaves_active_jobs(broken: Shell) -> None:
    in_storage(broken, claimed("emails"))

    assert {"queues": {"emails": {"removed": 0}}} == broken.json("purge", "emails", "--yes")
    assert 1 == broken.json("counts")["queues"]["emails"]["active"]
    assert {"queues": {"emails": {"removed": 1}}} == broken.json("purge", "emails", "--yes", "--running")
    assert 0 == broken.json("counts")["queues"]["emails"]["active"]


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1)])
def test_purge_asks_in_a_terminal(broken: Shell, answer: str, left: int) -> None:
    screen = run_in_terminal(broken, "purge", "emails", typed=f"{answer}\n")

    assert "Remove 1 jobs and 5 outcomes of emails? [y/N]:" in screen.text
    assert left == broken.json("counts")["queues"]["emails"]["waiting"]


def test_purge_of_an_unknown_queue_removes_nothing(broken: Shell) -> None:
    result = broken.type("purge", "emails", "email", "--yes")

    assert 1 == result.exit_code
    assert "did you mean 'emails'?" in result.stderr
    assert 1 == broken.json("counts")["queues"]["emails"]["waiting"]


# -- workers and finish ----------------------------------------------------------------------------------


def claimed(queue: str, holder: str = "pod-7", *, hand_off: bool = False) -> Work:
    """Return a step in which a worker claims all due jobs of a queue, and may hand them off."""

    async def work(storage: Storage) -> None:
        lease = (await storage.grant([queue], 60_000, holder)).lease
        for job in (await storage.claim(queue, lease, 100)).jobs:
            if hand_off and job.run is not None:
                await storage.settle(queue, [Settlement(id=job.id, fence=job.run.fence, action=HandOff())])

    return work


def test_workers_are_the_holders_of_active_jobs(shell: Shell) -> None:
    for queue, holder in (("emails", "pod-7"), ("reports", "pod-7"), ("videos", "pod-8")):
        shell.type("enqueue", queue, "1")
        shell.type("enqueue", queue, "1")
        in_storage(shell, claimed(queue, holder, hand_off=queue == "videos"))
    workers = shell.json("workers")["workers"]

    assert [("pod-7", 4, 0, ["emails", "reports"]), ("pod-8", 0, 2, ["videos"])] == [
        (each["holder"], each["active"], each["handed_off"], each["queues"]) for each in workers
    ]
    assert workers[0]["earliest_claim"] <= workers[0]["latest_claim"]
    assert ["pod-8"] == [each["holder"] for each in shell.json("workers", "videos")["workers"]]


def test_without_active_jobs_there_is_no_worker_to_list(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert "no worker holds a job\n" == shell.type("workers").stdout


@pytest.fixture
def handed_off(shell: Shell) -> tuple[Shell, str]:
    """A storage with a job that was handed off, and its revision."""
    shell.type("enqueue", "q", "1", "--id", "a")
    in_storage(shell, claimed("q", hand_off=True))
    return shell, str(shell.json("show", "q", "a")["current"]["revisions"][1])


ENDS = [
    (["--result", '{"n": 1}'], "completed", {"n": 1}, None),
    (["--error", "no space"], "failed", None, "no space"),
    (["--cancelled"], "cancelled", None, None),
]


@pytest.mark.parametrize(("words", "kind", "result", "message"), ENDS, ids=[kind for _, kind, *_ in ENDS])
def test_a_job_that_was_handed_off_is_finished(
    handed_off: tuple[Shell, str], words: list[str], kind: str, result: Any, message: str | None
) -> None:
    shell, revision = handed_off
    answers = [
        shell.json("finish", "q", "a", "--revision", revision, *words)["jobs"][0]["answer"] for _ in "12"
    ]
    outcome = shell.json("show", "q", "a")["outcome"]

    assert ["done", "done"] == answers
    assert (kind, result) == (outcome["kind"], outcome["result"]["value"])
    assert message == (outcome["error"] and outcome["error"]["message"])


@pytest.mark.parametrize("handled", [True, False])
def test_the_failure_handler_gets_a_job_only_with_handled(
    handed_off: tuple[Shell, str], *, handled: bool
) -> None:
    shell, revision = handed_off
    shell.type(
        "finish", "q", "a", "--revision", revision, "--error", "x", *(["--handled"] if handled else [])
    )

    assert handled == ("q!fail" in shell.json("counts")["queues"])


def test_a_job_that_was_not_handed_off_is_refused(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")
    revision = str(shell.json("show", "q", "a")["current"]["revisions"][1])
    result = shell.type("finish", "q", "a", "--revision", revision, "--result", "1")

    assert 1 == result.exit_code
    assert result.stdout.startswith("refused  q/a: it waits, or a worker holds it")


@pytest.mark.parametrize(
    "words", [[], ["--result", "1", "--cancelled"], ["--result", "{"], ["--cancelled", "--handled"]]
)
def test_finish_refuses_wrong_arguments(handed_off: tuple[Shell, str], words: list[str]) -> None:
    shell, revision = handed_off

    assert 2 == shell.type("finish", "q", "a", "--revision", revision, *words).exit_code
    assert "active" == shell.json("show", "q", "a")["state"]


# -- configure ---------------------------------------------------------------------------------------------


def test_configure_changes_only_the_given_settings(shell: Shell) -> None:
    shell.json("configure", "q", "--max-active", "3", "--retention", "failed=30d", "--log-age", "12h")
    settings = shell.json(
        "configure", "q", "--paused", "yes", "--retention", "cancelled=forever", "--request-key-age", "90",
        "--log-level", "all", "--log-bytes", "1000",
    )["settings"]  # fmt: skip

    assert {
        "paused": True, "max_active": 3, "retention": {"failed": 2_592_000.0, "cancelled": None},
        "log_level": "all", "log_age": 43_200.0, "log_bytes": 1000, "request_key_age": 90.0,
    } == settings  # fmt: skip
    assert settings == shell.json("configure", "q")["settings"]
    assert shell.json("configure", "q", "--max-active", "none")["settings"]["max_active"] is None


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
    [
        ("--max-active", "-1"), ("--max-active", "many"), ("--paused", "maybe"), ("--retention", "soon"),
        ("--retention", "ended=5m"), ("--retention", "-5"), ("--retention", "nan"), ("--log-age", "-1"),
        ("--log-age", "inf"), ("--log-bytes", "1.5"), ("--log-level", "loud"),
        ("--request-key-age", "200000d"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_setting_changes_nothing(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell.type("configure", "q", "--log-level", "all", *words)

    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert words[0] in result.stderr
    assert not Path("jobs").exists()


def test_configure_without_an_option_does_not_create_a_queue(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert 1 == shell.type("configure", "typo").exit_code
    assert ["q"] == [*shell.json("counts")["queues"]]


# -- schedule ----------------------------------------------------------------------------------------------

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


# -- unknown queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "events", "counts", "prune", "failures", "workers", "configure"])
def test_an_unknown_queue_is_an_error(shell: Shell, command: str) -> None:
    shell.type("enqueue", "emails", "1")
    result = shell.type(command, "email")

    assert 1 == result.exit_code
    assert "queue 'email' does not exist" in result.stderr


def test_an_empty_queue_is_no_error(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1")

    assert [0, 0] == [shell.type(command, "emails").exit_code for command in ("events", "failures")]
