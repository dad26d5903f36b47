"""`dibs web` as a process: its address, its token, its stop, and the error without the extra."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dibs import Dibs
from tests.cli.shell import DIBS, Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


@contextmanager
def serving(shell: Shell, *words: str, **env: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """Run `dibs web` on a free port; yield the JSON that it prints."""
    process = subprocess.Popen(
        [*DIBS, "web", "--port", "0", "--json", "--url", shell.url, *words],
        cwd=shell.folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
async def stored(shell: Shell) -> Shell:
    async with Dibs(shell.url) as app:
        await app.queue("emails").enqueue({"to": "ada"}, id="welcome-42")
    return shell


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_a_storage_without_a_token_and_read_only(stored: Shell, stop: signal.Signals) -> None:
    with serving(stored) as (printed, process):
        overview = httpx2.get(printed["url"], timeout=60)
        job = httpx2.get(f"{printed['url']}job?queue=emails&id=welcome-42", timeout=60)
        write = httpx2.post(f"{printed['url']}do/pause?queue=emails", timeout=60)
        process.send_signal(stop)
        code = process.wait(20)

    assert not printed["write"]
    assert "emails" in overview.text
    assert "ada" in job.text
    assert 403 == write.status_code
    assert 0 == code


async def test_write_needs_the_token_of_the_address(stored: Shell) -> None:
    with serving(stored, "--write", "--hide-values", DIBS_WEB_TOKEN="t" * 20) as (printed, _):
        base, _, token = printed["url"].partition("?token=")
        closed = httpx2.get(base, timeout=60)
        with httpx2.Client(follow_redirects=True, timeout=60) as client:
            opened = client.get(printed["url"])
            job = client.get(f"{base}job?queue=emails&id=welcome-42")

    assert (True, "t" * 20) == (printed["write"], token)
    assert (401, 200) == (closed.status_code, opened.status_code)
    assert "Pause</button>" in opened.text
    assert "ada" not in job.text


@pytest.mark.parametrize(
    ("words", "env", "reason"),
    [
        (["--url", "memory:"], {}, "exists only inside one process"),
        (["--url", "file:./missing"], {}, "there is no directory"),
        (["--url", "nonsense:x"], {}, "no storage is registered"),
        (["--port", "70000"], {}, "70000"),
        (["--write"], {"DIBS_WEB_TOKEN": "short"}, "DIBS_WEB_TOKEN"),
        (["no.such.module:app"], {}, "no.such"),
        (["--url", "file:.", "--warehouse", "./missing"], {}, "there is no folder ./missing"),
        (["--url", "file:.", "--warehouse", "ftp://host/history"], {}, "no warehouse can be at ftp://"),
    ],
)
def test_a_wrong_use_is_one_line(shell: Shell, words: list[str], env: dict[str, str], reason: str) -> None:
    done = subprocess.run(
        [*DIBS, "web", *words],
        cwd=shell.folder,
        env={**os.environ, "DIBS_URL": shell.url, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert 1 == len(done.stderr.strip().splitlines())


def test_without_the_extra_it_says_what_to_install(stored: Shell) -> None:
    hide = "import sys; sys.modules['starlette'] = None; from dibs.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hide, "web", "--url", stored.url],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert 2 == done.returncode
    assert 'pip install "dibs[web]"' in done.stderr
    assert 1 == len(done.stderr.splitlines())


def test_a_port_in_use_is_an_error(stored: Shell) -> None:
    with serving(stored) as (printed, _):
        port = printed["url"].rstrip("/").rpartition(":")[2]
        done = subprocess.run(
            [*DIBS, "web", "--port", port, "--url", stored.url],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    assert 1 == done.returncode
    assert "ddress already in use" in done.stderr
