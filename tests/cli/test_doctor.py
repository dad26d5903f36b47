"""`dibs doctor`: its table, its JSON, its exit code, and storages that it does not open."""

from __future__ import annotations

import json
from pathlib import Path

from dibs.model.requests import SettingsPatch
from dibs.storage.protocol import Storage
from dibs_conformance.servers import RedisServer
from tests.cli.shell import Shell, in_storage
from tests.cli.terminal import run_in_terminal
from tests.cli.test_json_output import SHAPES, differences


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
