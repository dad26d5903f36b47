"""The commands of operators: failures, retry, purge, workers and finish; unknown queues."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from dibs.cli import failed_jobs
from dibs.model.job import Error, NewJob
from dibs.model.requests import EnqueueRequest, Fail, HandOff, RetryLater, Settlement
from dibs.model.worker_record import WorkerState
from dibs.storage.protocol import Storage
from dibs.version import VERSION
from dibs.worker.supervisor.worker_record import WorkerRecordKeeper
from dibs.worker.work_plan import WorkPlan
from tests.cli.shell import Shell, in_storage
from tests.cli.terminal import run_in_terminal
from tests.cli.test_json_output import SHAPES, differences

Work = Callable[[Storage], Coroutine[Any, Any, None]]


def failed(queue: str, *ids: str, error: str = "OSError", retried: bool = False) -> Work:
    """Return a step that enqueues jobs and lets a run of each fail with a type of error, for good or not."""

    async def work(storage: Storage) -> None:
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids])
        lease = (await storage.grant([queue], 60_000, "test")).lease
        jobs = (await storage.claim(queue, lease, len(ids))).jobs
        found = Error(type=error, message=f"no {error}")
        action = RetryLater(delay=3_600_000, error=found) if retried else Fail(error=found)
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


def test_an_outage_shows_while_all_its_jobs_are_retried(shell: Shell) -> None:
    in_storage(shell, failed("emails", *"abcdef", error="shop.Down", retried=True))
    [group] = shell.json("failures")["failures"]
    counts = shell.json("counts")["queues"]["emails"]

    assert ("shop.Down", 0, 6, "no shop.Down") == tuple(
        group[name] for name in ("error", "failed", "retrying", "message")
    )
    assert (None, None, 3) == (group["oldest"], group["newest"], len(group["ids"]))
    assert (6, 6, 6, 0) == tuple(counts[name] for name in ("waiting", "scheduled", "retrying", "failed"))


def test_failed_and_retrying_jobs_with_an_error_are_one_group(broken: Shell) -> None:
    in_storage(broken, failed("reports", "g", "h", error="httpx.ConnectError", retried=True))
    screen = run_in_terminal(broken, "failures")

    assert [(4, 0), (1, 2), (1, 0)] == [
        (group["failed"], group["retrying"]) for group in broken.json("failures")["failures"]
    ]
    assert "retrying" in screen.text
    assert 80 >= max(map(len, screen.lines))


def test_the_number_of_retrying_jobs_that_were_not_read_is_an_estimate(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_jobs, "BATCH_SIZE", 4)
    in_storage(shell, failed("emails", *map(str, range(10)), retried=True))

    assert [10] == [group["retrying"] for group in shell.json("failures")["failures"]]


def test_the_table_of_counts_has_retrying_jobs_and_fits_a_terminal(shell: Shell) -> None:
    in_storage(shell, failed("emails", "a", "b"))
    without = run_in_terminal(shell, "counts")
    in_storage(shell, failed("emails", "c", "d", retried=True))
    screen = run_in_terminal(shell, "counts")

    assert "retrying" not in without.text
    assert ["queue", "waiting", "scheduled", "retrying", "active", "completed", "failed"] == screen.lines[
        0
    ].split()
    assert 80 >= max(map(len, screen.lines))


# -- top -----------------------------------------------------------------------------------------------


def test_top_shows_the_queue_that_nobody_serves_first(broken: Shell) -> None:
    shown = broken.json("top", "--interval", "0.1")

    assert [] == differences(SHAPES["top"], shown)
    assert ("emails", 1, 5, True) == (
        next(iter(shown["queues"])),
        *(shown["queues"]["emails"][name] for name in ("waiting", "failed", "unserved")),
    )
    assert [("queue-not-served", "emails")] == [(each["code"], each["subject"]) for each in shown["errors"]]


def test_top_shows_the_queues_with_a_text_in_their_names(broken: Shell) -> None:
    assert ["reports"] == [*broken.json("top", "port", "--interval", "0.1")["queues"]]


def test_top_needs_no_package_of_the_dashboard(broken: Shell) -> None:
    program = (
        "import sys\n"
        "for name in ('jinja2', 'markupsafe', 'sse_starlette', 'starlette', 'uvicorn'):\n"
        "    sys.modules[name] = None\n"
        "from dibs.__main__ import main\n"
        "main()\n"
    )
    words = ["top", "--interval", "0.1", "--url", broken.url]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=broken.folder,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert "queue-not-served: emails 1 due jobs" in done.stdout


def test_top_fits_a_terminal_and_ends_with_ctrl_c(broken: Shell) -> None:
    screen = run_in_terminal(broken, "top", "--interval", "0.1", ctrl_c_after="queue-not-served")

    assert 130 == screen.code
    assert ["queue", "waiting", "oldest", "due"] == screen.lines[2].split()[:4]
    # The last line follows the end of the second screen of the terminal.
    assert 80 >= max(map(len, screen.lines[:-1]))


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


def test_long_work_shows_its_progress(shell: Shell) -> None:
    in_storage(shell, failed("emails", *map(str, range(1000))))
    read = run_in_terminal(shell, "failures")
    retried = run_in_terminal(shell, "retry", "--all", "--yes")
    purged = run_in_terminal(shell, "purge", "emails", "--yes")

    assert "failed jobs read" in read.text
    assert "1000/1000" in read.text
    assert "1,000 failed jobs are enqueued again" in retried.text
    assert "retried" in retried.text.partition("1000/1000")[2]
    assert "0/1000" in purged.text
    assert "removed 1,000 jobs and all outcomes of emails" in purged.text


def test_without_failures_the_table_is_a_sentence(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert (0, "no job has failed\n") == (shell.type("failures").exit_code, shell.type("failures").stdout)
    assert "" == shell.type("failures", "--format", "lines").stdout


# -- retry -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["httpx.ConnectError", "ConnectError"])
def test_all_failures_with_an_error_are_retried(broken: Shell, error: str) -> None:
    numbers = broken.json("retry", "--error", error, "--yes")

    assert {"queues": {"emails": {"queued": 1}, "reports": {"queued": 1}}} == numbers
    assert [] == differences(SHAPES["retry-many"], numbers)
    assert ["OSError"] == [group["error"] for group in broken.json("failures")["failures"]]
    assert "waiting" == broken.json("show", "reports", "f")["state"]


def test_an_error_is_not_matched_by_a_part_of_its_name(broken: Shell) -> None:
    assert {"queues": {}} == broken.json("retry", "--error", "Error", "--yes", code=1)


def test_retries_are_spread_over_a_time(shell: Shell) -> None:
    ids = [f"{n:03}" for n in range(150)]
    in_storage(shell, failed("emails", *ids))

    assert {"emails": {"queued": 150}} == shell.json("retry", "--all", "--yes", "--over", "10m")["queues"]
    counts = shell.json("counts")["queues"]["emails"]
    assert (150, 50) == (counts["waiting"], counts["scheduled"])


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


def test_without_workers_the_list_is_empty(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert "no worker is running\n" == shell.type("workers").stdout


def recorded(name: str, *queues: str, processes: tuple[int, ...] = (), lease_of: str = "") -> Work:
    """Return a step that writes the record of a worker, which has the lease of the jobs of one queue."""
    state = WorkerState(processes=processes, capacity=200, busy=50, running=5, ready=True)
    plan = WorkPlan(queues=queues, processes=2, reference="", lease=15.0, heartbeat=5.0, poll=1.0, name=name)

    async def work(storage: Storage) -> None:
        held = (await storage.list(lease_of, "active")).items if lease_of else []
        runs = [slot.current.run for _, slot in held if slot.current is not None]
        leases = tuple(run.lease for run in runs if run is not None and run.lease is not None)
        own = replace(state, leases=leases)
        keeper = WorkerRecordKeeper(storage=storage, plan=plan, settings={}, get_state=lambda: own)
        await keeper._write()

    return work


def test_workers_of_one_name_have_each_their_own_jobs(shell: Shell) -> None:
    """Two workers hold a job each, and two jobs belong to none of them: a hand-off, and an unknown lease."""
    for queue in "abcd":
        shell.type("enqueue", queue, "1")
        in_storage(shell, claimed(queue, hand_off=queue == "c"))
        if queue in "ab":
            in_storage(shell, recorded("pod-7", queue, lease_of=queue))
    workers = shell.json("workers")["workers"]
    rows = sorted(sorted(run["queue"] for run in each["runs"]) for each in workers)

    assert rows in ([["a", "c", "d"], ["b"]], [["a"], ["b", "c", "d"]])


def test_idle_workers_are_listed_with_their_processes_and_queues(shell: Shell) -> None:
    in_storage(shell, recorded("pod-7", "emails", "reports", processes=(11, 12)))
    in_storage(shell, recorded("pod-8", *(f"queue-{number:03}" for number in range(100))))
    shell.type("enqueue", "emails", "1")
    in_storage(shell, claimed("emails"))
    first, second = shell.json("workers")["workers"]
    table = shell.type("workers").stdout

    assert ("pod-7", [11, 12], 200, 50) == tuple(
        first[name] for name in ("holder", "processes", "capacity", "busy")
    )
    assert (1, VERSION) == (first["active"], first["version"])
    assert ["emails"] == [run["queue"] for run in first["runs"]]
    assert 100 == len(second["queues"])
    assert ["pod-7"] == [each["holder"] for each in shell.json("workers", "emails")["workers"]]
    assert "25 %" in table
    assert "queue-004, and 95 more" in " ".join(table.split())


def test_the_queue_of_worker_records_is_shown_to_those_who_name_it(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1")
    in_storage(shell, recorded("pod-7", "emails"))

    assert ["emails"] == [*shell.json("counts")["queues"]]
    assert ["emails"] == [each["name"] for each in shell.json("show")["queues"]]
    assert "dibs.workers" not in shell.type("schedule", "list").stdout + shell.type("prune").stdout
    assert 1 == len(shell.json("list", "dibs.workers", "--state", "completed")["jobs"])


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


@pytest.mark.parametrize("fail_handler", ["yes", "no"])
def test_the_setting_fail_handler_decides_whether_the_failure_handler_gets_a_job(
    handed_off: tuple[Shell, str], fail_handler: str
) -> None:
    shell, revision = handed_off
    shell.type("configure", "q", "--fail-handler", fail_handler)
    shell.type("finish", "q", "a", "--revision", revision, "--error", "x")

    assert (fail_handler == "yes") == ("q!fail" in shell.json("counts")["queues"])


# -- unknown queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "events", "counts", "prune", "failures", "workers", "configure"])
def test_an_unknown_queue_is_an_error(shell: Shell, command: str) -> None:
    shell.type("enqueue", "emails", "1")
    result = shell.type(command, "email")

    assert 1 == result.exit_code
    assert "queue 'email' does not exist" in result.stderr


@pytest.mark.parametrize("words", [("pause", "email"), ("configure", "email", "--max-active", "1")])
def test_a_new_queue_gets_its_settings_with_a_warning(shell: Shell, words: tuple[str, ...]) -> None:
    shell.type("enqueue", "emails", "1")
    results = [shell.type(*words) for _ in range(2)]

    assert [0, 0] == [result.exit_code for result in results]
    assert f"dibs: queue 'email' is new in {shell.url}; did you mean 'emails'?\n" == results[0].stderr
    assert "" == results[1].stderr


def test_an_empty_queue_is_no_error(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1")

    assert [0, 0] == [shell.type(command, "emails").exit_code for command in ("events", "failures")]
