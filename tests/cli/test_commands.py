"""The effect of each command on the storage, and its output."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from dibs.cli.commands import list as list_command
from dibs.client.calls.run_steps import encode_memo
from dibs.client.calls.signals import StoredWait
from dibs.model.job import Error
from dibs.model.limits import LATEST_TIME
from dibs.model.requests import Fail, Release, SettingsPatch, Settlement
from dibs.storage.protocol import Storage
from dibs_conformance.servers import RedisServer
from tests.cli.shell import Shell, claim_one, in_storage
from tests.cli.terminal import run_in_terminal
from tests.cli.test_json_output import SHAPES, differences


def fail(id: str) -> object:
    async def work(storage: Storage) -> None:
        fence = await claim_one(storage, "q")
        error = Error(type="ValueError", message="bad\x1b[31m")
        await storage.settle("q", [Settlement(id=id, fence=fence, action=Fail(error=error))])

    return work


def test_an_enqueued_job_is_counted_listed_and_shown(shell: Shell) -> None:
    enqueued = shell.type(
        "enqueue", "q", '{"to": "ada"}', "--id", "a", "--priority", "7", "--attribute", "n=[1]"
    )
    shown = shell.json("show", "q", "a")

    assert "queued q/a\n" == enqueued.stdout
    assert 1 == shell.json("counts")["queues"]["q"]["waiting"]
    assert ["a"] == [job["id"] for job in shell.json("list", "q")["jobs"]]
    assert {"to": "ada"} == shown["current"]["payload"]["value"]
    assert (7, {"n": [1]}) == (shown["current"]["priority"], shown["current"]["attributes"])


def test_a_payload_is_read_from_stdin(shell: Shell) -> None:
    assert 0 == shell.type("enqueue", "q", "-", "--id", "a", stdin="[1, 2]").exit_code
    assert [1, 2] == shell.json("show", "q", "a")["current"]["payload"]["value"]


def test_a_job_is_enqueued_for_a_time(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a", "--at", "2040-01-31T09:00:00+01:00")

    assert "2040-01-31T08:00:00.000Z" == shell.json("show", "q", "a")["current"]["run_at"]


def test_a_misspelled_queue_is_noticed(shell: Shell) -> None:
    first = shell.type("enqueue", "emails", "1")
    again = shell.type("enqueue", "emails", "1")
    other = shell.type("enqueue", "reports", "1")
    wrong = shell.type("enqueue", "emials", "1", "--id", "a")

    assert ["", "", ""] == [each.stderr for each in (first, again, other)]
    assert "did you mean 'emails'?" in wrong.stderr
    assert (0, "queued emials/a\n") == (wrong.exit_code, wrong.stdout)


def test_reject_does_not_change_an_existing_job(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")

    assert "duplicate" == shell.json("enqueue", "q", "2", "--id", "a", "--reject", code=1)["status"]
    assert 1 == shell.json("show", "q", "a")["current"]["payload"]["value"]


def test_supersede_asks_the_active_run_to_end(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a", "--supersede")
    wrong = shell.type("enqueue", "q", "1", "--id", "a", "--supersede", "--reject")

    assert "updated" == shell.json("enqueue", "q", "2", "--id", "a", "--supersede")["status"]
    assert "use one of them" in wrong.stderr


def test_show_of_an_unknown_id_exits_with_1(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    result = shell.type("show", "q", "unknown")

    assert (1, "q/unknown does not exist\n") == (result.exit_code, result.stdout)


def test_cancel_prints_an_answer_for_each_id(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")
    result = shell.type("cancel", "q", "a", "b")

    assert 1 == result.exit_code
    assert "cancelled  q/a" == result.stdout.splitlines()[0]
    assert result.stdout.splitlines()[1].startswith("not_found  q/b: there is no job with this id")


def test_an_active_job_is_asked_to_stop_only_with_running(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")
    in_storage(shell, lambda storage: claim_one(storage, "q"))

    assert "active" == shell.json("cancel", "q", "a", code=1)["jobs"][0]["answer"]
    assert "requested" == shell.json("cancel", "q", "a", "--running")["jobs"][0]["answer"]
    assert shell.json("show", "q", "a")["current"]["run"]["cancel_requested"]


def test_a_signal_is_sent_to_a_live_job(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")
    sent = shell.type("signal", "q", "a", "approved", '{"by": "ada"}')
    absent = shell.type("signal", "q", "b", "approved")
    bad = shell.type("signal", "q", "a", "approved", "{")

    assert (0, "delivered  q/a") == (sent.exit_code, sent.stdout.strip())
    assert (1, "absent  q/b: no job with this id waits or runs") == (absent.exit_code, absent.stdout.strip())
    assert "JSON is not valid JSON" in bad.stderr
    [signal] = shell.json("show", "q", "a")["current"]["attributes"].values()
    assert {"json": {"by": "ada"}} == signal


@pytest.mark.parametrize(
    ("until", "end"), [(1_800_000_000_000, " until 2027-01-15T08:00:00.000Z"), (LATEST_TIME, "")]
)
def test_a_parked_job_is_shown_with_its_signal(shell: Shell, until: int, end: str) -> None:
    async def park(storage: Storage) -> None:
        fence = await claim_one(storage, "q")
        wait = StoredWait("approved", until=until)
        memo = encode_memo({"dibs.wait.approved.1.until": msgspec.msgpack.encode(wait)})
        await storage.report("q", "a", fence, memo=memo)
        action = Release(run_at=until, parked=True)
        await storage.settle("q", [Settlement(id="a", fence=fence, action=action)])

    shell.type("enqueue", "q", "1", "--id", "a")
    in_storage(shell, park)
    shown = shell.type("show", "q", "a").stdout

    assert f"q/a is parked: its handler waits for a signal named 'approved'{end}" == shown.splitlines()[0]


def test_a_failed_job_is_enqueued_again(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")
    in_storage(shell, fail("a"))

    assert "queued" == shell.json("retry", "q", "a")["jobs"][0]["answer"]
    assert "waiting" == shell.json("show", "q", "a")["state"]


def test_amend_changes_the_given_fields(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a", "--attribute", "x=1")
    shell.type("amend", "q", "a", "--payload", "2", "--attribute", "y=2", "--at", "2100-01-01T00:00:00+00:00")
    shell.type("amend", "q", "a", "--lease", "90s")
    job = shell.json("show", "q", "a")["current"]

    assert (2, {"x": 1, "y": 2}) == (job["payload"]["value"], job["attributes"])
    assert ("2100-01-01T00:00:00.000Z", {"lease": 90.0}) == (job["run_at"], job["overrides"])


def test_pause_and_resume(shell: Shell) -> None:
    assert "paused q\n" == shell.type("pause", "q").stdout
    assert shell.json("show")["queues"][0]["settings"]["paused"]
    assert "resumed q\n" == shell.type("resume", "q").stdout
    assert not shell.json("show")["queues"][0]["settings"]["paused"]


def test_all_queues_are_paused_and_resumed(shell: Shell) -> None:
    for queue in ("a", "b", "c"):
        shell.type("enqueue", queue, "1")

    assert "paused a\npaused b\npaused c\n" == shell.type("pause", "--all").stdout
    assert "resumed c\nresumed a\n" == shell.type("resume", "c", "a").stdout
    assert {"a": False, "b": True, "c": False} == {
        queue["name"]: queue["settings"]["paused"] for queue in shell.json("show")["queues"]
    }


@pytest.mark.parametrize("words", [(), ("a", "--all")])
def test_a_pause_names_queues_or_all(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell.type("pause", *words)

    assert 2 == result.exit_code
    assert "Pass either QUEUE..., one or more names, or --all" in result.stderr


def test_events_continue_after_an_offset(shell: Shell) -> None:
    for id in ("a", "b"):
        shell.type("enqueue", "q", "1", "--id", id)
        shell.type("cancel", "q", id)
    lines = [json.loads(line) for line in shell.type("events", "q", "--json").stdout.splitlines()]
    rest = shell.type("events", "q", "--json", "--after", lines[0]["offset"])

    assert ["a", "b"] == [event["id"] for event in lines]
    assert ["b"] == [json.loads(line)["id"] for line in rest.stdout.splitlines()]
    assert "" == shell.type("events", "q", "--after", "now").stdout


def test_follow_prints_new_events(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")
    shell.type("cancel", "q", "a")
    follower = shell.start("events", "q", "--follow", "--json", "--url", shell.url)
    assert follower.stdout is not None
    first = follower.stdout.readline()

    shell.type("enqueue", "q", "1", "--id", "b")
    shell.type("cancel", "q", "b")
    second = follower.stdout.readline()
    follower.terminate()
    follower.communicate(timeout=10)

    assert ["a", "b"] == [json.loads(line)["id"] for line in (first, second)]


@pytest.mark.long
def test_watch_prints_changed_counts(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    watcher = shell.start("counts", "--watch", "--json", "--url", shell.url)
    assert watcher.stdout is not None
    first = json.loads(watcher.stdout.readline())

    shell.type("enqueue", "q", "1")
    second = json.loads(watcher.stdout.readline())
    watcher.terminate()
    watcher.communicate(timeout=10)

    assert [1, 2] == [counts["queues"]["q"]["waiting"] for counts in (first, second)]


def test_without_a_terminal_tables_are_not_cut(shell: Shell) -> None:
    id = "a-long-id-" * 20
    shell.type("enqueue", "q", "1", "--id", id)

    assert id in shell.type("list", "q").stdout


@pytest.fixture
def mixed(shell: Shell) -> Shell:
    """Return a shell with a failed, a cancelled, a waiting and three scheduled jobs."""
    shell.type("enqueue", "q", '{"to": "ada"}', "--id", "broken")
    in_storage(shell, fail("broken"))
    shell.type("enqueue", "q", '{"to": "bob"}', "--id", "dropped")
    shell.type("cancel", "q", "dropped")
    shell.type("enqueue", "q", '{"to": "Ada"}', "--id", "due", "--key", "vip")
    for hour in (1, 2, 3):
        shell.type("enqueue", "q", "{}", "--id", f"in-{hour}", "--delay", f"{hour}h")
    return shell


def listed(shell: Shell, *words: str) -> list[str]:
    return sorted(job["id"] for job in shell.json("list", "q", *words)["jobs"])


def test_all_states_are_listed(mixed: Shell) -> None:
    everything = ["broken", "dropped", "due", "in-1", "in-2", "in-3"]
    found, words = [], list[str]()
    while True:
        page = mixed.json("list", "q", "--state", "all", "--limit", "2", *words)
        found += [job["id"] for job in page["jobs"]]
        if page["after"] is None:
            break
        words = ["--after", page["after"]]
    lines = mixed.type("list", "q", "--state", "all", "--format", "lines").stdout.splitlines()

    assert everything == sorted(found)
    assert {"failed", "cancelled", "waiting"} == {line.split("\t")[1] for line in lines}
    assert 2 == mixed.type("list", "q", "--state", "all", "--after", "5").exit_code


def test_an_empty_listing_says_which_states_have_jobs(mixed: Shell) -> None:
    assert "q has no jobs in the state completed; it has 4 waiting, 1 failed, 1 cancelled\n" == (
        mixed.type("list", "q", "--state", "completed").stdout
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--since", "1h"), ["due", "in-1", "in-2", "in-3"]),
        (("--since", "2999-01-01T00:00:00Z"), []),
        (("--until", "0s"), ["due"]),
        (("--until", "2000-01-01T00:00:00+01:00", "--state", "all"), []),
        (("--since", "1h", "--until", "0s", "--state", "all"), ["broken", "dropped", "due"]),
        (("--match", "ADA"), ["due"]),
        (("--match", "vip"), ["due"]),
        (("--match", "in-"), ["in-1", "in-2", "in-3"]),
        (("--match", "in-", "--limit", "2"), 2),
        (("--match", "VALUEERROR: bad", "--state", "failed"), ["broken"]),
        (("--match", "ada", "--state", "all"), ["broken", "due"]),
        (("--match", "elephant", "--state", "all"), []),
    ],
)
def test_a_listing_is_filtered(mixed: Shell, words: tuple[str, ...], found: list[str] | int) -> None:
    names = listed(mixed, *words)

    assert found == (len(names) if isinstance(found, int) else names)


def test_a_filtered_listing_goes_on_after_its_limit(mixed: Shell) -> None:
    first = mixed.json("list", "q", "--match", "in-", "--limit", "2")
    rest = mixed.json("list", "q", "--match", "in-", "--after", first["after"])

    assert ["in-1", "in-2", "in-3"] == sorted(job["id"] for job in [*first["jobs"], *rest["jobs"]])


def test_a_filtered_listing_reads_a_bounded_number_of_jobs(
    mixed: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_command, "MAX_READ", 2)
    monkeypatch.setattr(list_command, "PAGE_SIZE", 1)
    first = mixed.json("list", "q", "--match", "elephant")
    rest = mixed.json("list", "q", "--match", "in-", "--after", first["after"])

    assert ([], True) == (first["jobs"], first["after"] is not None)
    assert len(rest["jobs"]) <= 2


def test_control_characters_are_escaped(shell: Shell) -> None:
    shell.type("enqueue", "q", '"\\u001b[2J"', "--id", "a\x1b[31m\u202e[red]b")
    in_storage(shell, fail("a\x1b[31m\u202e[red]b"))
    words = [("list", "q", "--state", "failed"), ("show", "q", "a\x1b[31m\u202e[red]b"), ("events", "q")]
    screens = [shell.type(*each).output for each in words]

    assert [] == [screen for screen in screens if "\x1b" in screen or "\u202e" in screen]
    assert all("a\\x1b[31m\\u202e[red]b" in screen for screen in screens)


def test_show_lists_the_files_of_a_directory(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    screen = shell.type("show").stdout
    top = {entry["path"].partition("/")[0] for entry in shell.json("show")["files"]}

    assert f"storage     {shell.url}" in screen
    assert "jobs survive the death of every process" in screen
    assert "locked by the writer" in screen
    assert top == {path.name for path in Path("jobs").iterdir() if path.is_file() or any(path.iterdir())}


def test_every_entry_of_a_directory_is_explained(shell: Shell) -> None:
    from dibs.cli.storage_access import ENTRY_MEANINGS

    shell.type("enqueue", "q", "1")

    assert {path.name for path in Path("jobs").iterdir()} <= set(ENTRY_MEANINGS)


def test_the_key_of_a_job_is_stored_and_shown(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a", "--key", "ada")
    shell.type("enqueue", "q", "2", "--id", "b")

    assert ["key", "ada"] in [line.split() for line in shell.type("show", "q", "a").stdout.splitlines()]
    assert ["ada", None] == [shell.json("show", "q", id)["current"]["key"] for id in "ab"]
    assert any("ada" in line.split() for line in shell.type("list", "q").stdout.splitlines())


# -- `dibs doctor`: its table, its JSON, its exit code, and storages that it does not open -----------


async def paused(storage: Storage) -> None:
    await storage.configure("emails", SettingsPatch(paused=True))


def test_a_storage_without_faults_exits_with_0(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1", "--delay", "1h")
    done = shell.type("doctor")

    assert 0 == done.exit_code
    assert "examined    1 queues, 0 live workers" in done.stdout
    assert "file-no-fsync" in done.stdout


def test_a_fault_exits_with_1_and_says_what_to_do(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1")
    report = shell.json("doctor", code=1)
    (found,) = [each for each in report["findings"] if each["code"] == "queue-not-served"]

    assert ("error", "emails", False) == (found["severity"], found["subject"], report["healthy"])
    assert "Start a worker" in found["advice"]
    assert [] == differences(SHAPES["doctor"], report)


def test_a_damaged_storage_that_cannot_be_opened_has_a_remedy(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    for number in range(4):
        shell.type("enqueue", "emails", str(number), "--url", f"file:{folder}")
    commit = sorted(folder.glob("commits/*"))[-2]
    damaged = bytearray(commit.read_bytes())
    damaged[-1] ^= 255
    commit.write_bytes(damaged)
    done = shell.type("doctor", f"file:{folder}")
    counts = shell.type("counts", "--url", f"file:{folder}")

    assert 1 == done.exit_code
    assert "storage-damaged" in done.stdout
    assert commit.name in done.stdout.replace("\n", "")
    assert "remove this file and all with higher numbers" in " ".join(done.stdout.split())
    assert "`dibs doctor` says what to do" in counts.stderr


def test_the_table_is_whole_at_80_columns(shell: Shell) -> None:
    for queue in ("emails", "q" * 300):
        shell.type("enqueue", queue, "1")
    in_storage(shell, paused)
    screen = run_in_terminal(shell, "doctor")

    assert 1 == screen.code
    assert 80 >= max(len(line) for line in screen.lines if not line.startswith("storage "))
    assert {"queue-not-served", "queue-paused"} <= set(screen.text.split())


def test_lines_are_for_other_programs(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1")
    done = shell.type("doctor", "--format", "lines")

    assert ["error", "queue-not-served", "emails"] == done.stdout.split("\t")[:3]


def test_the_url_is_an_argument_or_an_option(shell: Shell, tmp_path: Path) -> None:
    shell.type("enqueue", "emails", "1")
    refused = shell.type("doctor", shell.url, "--url", shell.url)

    assert 1 == shell.type("doctor", shell.url, url="file:./nothing-here").exit_code
    assert (1, True) == (refused.exit_code, "the URL is given twice" in refused.stderr)
    assert "there is no directory" in shell.type("doctor", f"file:{tmp_path}/missing").stderr


def test_a_redis_that_may_evict_is_examined_and_no_password_is_printed(
    shell: Shell, redis_server: RedisServer
) -> None:
    redis_server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        done = shell.type("doctor", redis_server.url)
        report = json.loads(shell.type("doctor", redis_server.url, "--json").stdout)
    finally:
        redis_server.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")

    assert (1, False) == (done.exit_code, report["opened"])
    assert ["redis-eviction", "redis-no-persistence"] == [each["code"] for each in report["findings"]]
    assert redis_server.password not in done.output + json.dumps(report)
