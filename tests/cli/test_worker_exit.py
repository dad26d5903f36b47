"""`dibs worker --processes 0` ends after a stop signal, whatever its handlers do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from dibs_conformance.servers import (
    PostgresServer,
    RedisServer,
    ServerUnavailable,
    start_postgres,
    start_redis,
)
from tests.cli.shell import Shell

STUBBORN = """
import asyncio, time
from dibs import Dibs

app = Dibs()


async def deaf() -> None:
    print("started", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


@app.task(queue="deaf", timeout=None)
async def swallows_cancellation() -> None:
    await deaf()


@app.task(queue="thread", timeout=None)
async def waits_for_a_thread() -> None:
    print("started", flush=True)
    await asyncio.to_thread(time.sleep, 3600)


@app.task(queue="task", timeout=None)
async def starts_a_deaf_task() -> None:
    app.background = asyncio.create_task(deaf())


@app.task(queue="blocked", timeout=None)
async def blocks_the_loop() -> None:
    print("started", flush=True)
    time.sleep(3600)
"""

#: The command line, with a short margin after the grace.
DIBS = (
    "from dibs.cli import worker_display; worker_display.EXIT_MARGIN = 3.0; "
    "from dibs.cli.main import main; main()"
)


def stop(shell: Shell, queue: str) -> subprocess.CompletedProcess[str]:
    """Stop a worker while its handler runs, and return the ended worker."""
    (shell.folder / "stubborn.py").write_text(STUBBORN)
    shell.type("enqueue", queue, '{"args": []}', "--id", "a")
    words = (
        "worker",
        "stubborn:app",
        "--url",
        shell.url,
        "--processes",
        "0",
        "--grace",
        "0",
        "--queues",
        queue,
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", DIBS, *words, "--json"],
        cwd=shell.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert worker.stdout is not None
    assert "started" in json.loads(worker.stdout.readline())
    assert "started\n" == worker.stdout.readline()
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=60)
    return subprocess.CompletedProcess(words, worker.returncode, out, err)


@pytest.mark.long
@pytest.mark.parametrize("start", [start_redis, start_postgres])
def test_a_worker_waits_for_a_server_that_does_not_answer(
    shell: Shell, start: Callable[[], RedisServer | PostgresServer]
) -> None:
    """A server that starts later than its workers, as after a loss of power."""
    (shell.folder / "late.py").write_text("from dibs import Dibs\napp = Dibs()\n@app.task\ndef f(): ...\n")
    try:
        server = start()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with server:
        url = server.url
        server.kill()
        words = ("worker", "late:app", "--url", url, "--processes", "1", "--json")
        with subprocess.Popen(
            [sys.executable, "-c", DIBS, *words],
            cwd=shell.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as worker:  # fmt: skip
            assert worker.stdout is not None
            assert worker.stderr is not None
            try:
                while "no connection from the storage since" not in worker.stderr.readline():
                    assert worker.poll() is None
                server.start()
                assert "started" in json.loads(worker.stdout.readline())
            finally:
                worker.terminate()
                worker.communicate(timeout=60)


@pytest.mark.long
@pytest.mark.parametrize("queue", ["deaf", "thread"])
def test_the_job_of_a_handler_that_does_not_end_is_released(shell: Shell, queue: str) -> None:
    stopped = stop(shell, queue)
    job = shell.json("show", queue, "a")["current"]

    assert 0 == stopped.returncode
    assert 1 == json.loads(stopped.stdout)["stopped"]["released"]
    assert ("waiting", 0, 0) == (job["state"], job["attempts"], job["stalls"])


@pytest.mark.long
def test_a_task_that_does_not_end_is_reported(shell: Shell) -> None:
    stopped = stop(shell, "task")

    assert 0 == stopped.returncode
    assert "still runs after the grace: the process ends now; the jobs are released" in stopped.stderr


@pytest.mark.long
def test_a_blocked_event_loop_leaves_its_lease(shell: Shell) -> None:
    """The worker cannot release the job, which stays active until the lease expires."""
    stopped = stop(shell, "blocked")

    assert 1 == stopped.returncode
    assert "the process ends now; its jobs return when their lease expires" in stopped.stderr
    assert "active" == shell.json("show", "blocked", "a")["current"]["state"]
