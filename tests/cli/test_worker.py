"""`dibs worker` as a service manager meets it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from dibs.cli.refusals import WrongWords
from dibs.cli.verbs.worker import _listening
from tests.cli.shell import Shell
from tests.cli.test_shapes import SHAPES, differences

APPLICATION = """
from dibs import Dibs

app = Dibs()


@app.task(queue="double")
def double(number: int) -> int:
    return 2 * number


@app.task(queue="other")
def other() -> None: ...
"""


def speaks_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not speaks_ipv6(), reason="this machine has no IPv6")


@pytest.fixture
def place(shell: Shell) -> Shell:
    (shell.folder / "my_app.py").write_text(APPLICATION)
    shell.type("enqueue", "double", '{"args": [21]}', "--id", "a")
    return shell


def test_it_says_where_it_works_and_stops_when_told(place: Shell) -> None:
    worker = place.start("worker", "my_app:app", "--url", place.url, "--processes", "1", "--json")
    assert worker.stdout is not None
    started = json.loads(worker.stdout.readline())
    asyncio.run(ended(place, "double"))
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=30)

    assert 0 == worker.returncode
    assert [] == differences(SHAPES["worker"], started)
    assert [] == differences(SHAPES["worker-stopped"], json.loads(out))
    assert 1 == json.loads(out)["stopped"]["completed"]
    assert 42 == place.json("show", "double", "a")["outcome"]["result"]["value"]


async def ended(shell: Shell, queue: str) -> None:
    """Return when the job `a` of a queue has ended: by then the worker hears signals."""
    async with shell.storage() as storage:
        while (await storage.get(queue, ["a"]))[0].outcome is None:
            await storage.wait([queue], for_="ids", ids=["a"], timeout=0.1)


def test_people_read_the_same(place: Shell) -> None:
    place.type("enqueue", "other", "{}", "--id", "a")
    worker = place.start("worker", "my_app:app", "--url", place.url, "--processes", "0", "--queues", "other")
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in range(3)]
    asyncio.run(ended(place, "other"))
    worker.send_signal(signal.SIGINT)
    out, err = worker.communicate(timeout=30)

    assert f"dibs worker at {place.url}; " in lines[0]
    assert "this one" in lines[1]
    assert "other                my_app.other" in lines[2]
    assert out.startswith("stopped: 1 completed")
    assert "double" in err


MISTAKES = {
    "no module": (("nowhere:app",), "cannot import nowhere"),
    "no colon": (("my_app",), "package.module:app"),
    "no application": (("my_app:nope",), "nope"),
    "no such queue": (("my_app:app", "--queues", "nope"), "'nope'"),
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_clear_line(place: Shell, words: tuple[str, ...], said: str) -> None:
    done = place.run("worker", *words, "--url", place.url)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert said in done.stderr


def test_a_url_beside_one_of_the_application_is_refused(place: Shell) -> None:
    Path("fixed.py").write_text("from dibs import Dibs\napp = Dibs('file:./here')\n")
    done = place.run("worker", "fixed:app", "--url", place.url)

    assert 2 == done.returncode
    assert "names its place itself" in done.stderr


FAILING = """
import asyncio
from dibs import Dibs

app = Dibs()


@app.task(queue="double")
def double(number: int) -> int:
    return 2 * number


@app.lifespan
async def pools():
    raise ConnectionError("no database here")
    yield
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_lifespan_that_fails_is_one_clear_error(place: Shell, processes: str) -> None:
    (place.folder / "failing.py").write_text(FAILING)
    done = place.run("worker", "failing:app", "--url", place.url, "--processes", processes)

    assert 0 != done.returncode
    assert (1, 1) == (len(done.stderr.splitlines()), done.stderr.count("no database here"))


def asked(address: str, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}")


HANGING = """
import ctypes, os
from dibs import Dibs

app = Dibs()


@app.task(queue="hang", timeout=None)
def hang() -> None:
    os.write(1, b"hanging\\n")
    ctypes.PyDLL(None).usleep(3_600_000_000)
"""


def test_health_is_told_whatever_a_handler_holds(place: Shell) -> None:
    (place.folder / "hanging.py").write_text(HANGING)
    place.type("enqueue", "hang", "{}")
    words = ("worker", "hanging:app", "--url", place.url, "--processes", "1", "--health", "0", "--json")
    worker = place.start(*words, "--grace", "0")
    assert worker.stdout is not None
    address = json.loads(worker.stdout.readline())["started"]["health"]
    assert "hanging\n" == worker.stdout.readline()
    alive, ready = asked(address, "/healthz"), asked(address, "/readyz")
    worker.terminate()
    worker.communicate(timeout=60)

    assert (200, True, False, 1) == (alive[0], alive[1]["ready"], alive[1]["stopping"], alive[1]["running"])
    assert 1 == len(alive[1]["processes"])
    assert "127.0.0.1" == address.partition(":")[0], "to this machine alone"
    assert 200 == ready[0]
    assert 0 == worker.returncode


def test_a_port_that_is_taken_is_a_mistake(place: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = place.run("worker", "my_app:app", "--url", place.url, "--health", port)

    assert 2 == done.returncode
    assert f"cannot listen on {port}" in done.stderr


@pytest.mark.parametrize("words", ["http", "127.0.0.1", "8080x", "-1", "65536", "localhost:", ""])
def test_an_address_without_a_port_is_a_mistake(words: str) -> None:
    with pytest.raises(WrongWords, match="say a port up to 65535, or HOST:PORT"), _listening(words):
        pass


@pytest.mark.parametrize(
    ("words", "host"),
    [
        ("0", "127.0.0.1"),
        (":0", "127.0.0.1"),
        ("127.0.0.2:0", "127.0.0.2"),
        ("0.0.0.0:0", "0.0.0.0"),
        pytest.param("[::1]:0", "::1", marks=NEEDS_IPV6),
    ],
)
def test_health_is_told_where_it_says(words: str, host: str) -> None:
    with _listening(words) as listener:
        assert listener is not None
        assert host == listener.getsockname()[0]


def test_away_from_a_terminal_the_log_is_json_from_every_process(place: Shell) -> None:
    (place.folder / "raising.py").write_text(
        APPLICATION.replace("return 2 * number", 'raise OSError("boom")')
    )
    worker = place.start("worker", "raising:app", "--url", place.url, "--processes", "1", "--grace", "0")
    assert worker.stderr is not None
    told = json.loads(worker.stderr.readline())
    worker.terminate()
    worker.communicate(timeout=60)

    assert ("INFO", "dibs.worker", "double", "a") == tuple(
        told[key] for key in ("level", "logger", "queue", "id")
    )
    assert "boom" in told["message"]


def test_in_a_terminal_a_table_moves(place: Shell) -> None:
    ours, theirs = os.openpty()
    worker = place.start(
        "worker", "my_app:app", "--url", place.url, "--processes", "0", "--queues", "double", stdout=theirs
    )
    os.close(theirs)
    shown = b""
    while b"timeouts" not in shown or b"this process" not in shown:
        shown += os.read(ours, 4096)
    asyncio.run(ended(place, "double"))
    worker.terminate()
    while b"stopped: 1 completed" not in shown:
        shown += os.read(ours, 4096)
    worker.communicate(timeout=60)
    os.close(ours)

    assert 0 == worker.returncode


def test_reload_starts_anew_when_the_source_changes(place: Shell) -> None:
    words = ("worker", "my_app:app", "--url", place.url, "--processes", "0", "--reload", "--json")
    worker = place.start(*words)
    assert worker.stdout is not None
    first = json.loads(worker.stdout.readline())
    asyncio.run(ended(place, "double"))
    (place.folder / "my_app.py").write_text(APPLICATION.replace('"other"', '"another"'))
    assert "stopped" in json.loads(worker.stdout.readline())
    second = json.loads(worker.stdout.readline())
    place.type("enqueue", "another", "{}", "--id", "a")
    asyncio.run(ended(place, "another"))
    worker.terminate()
    out, _ = worker.communicate(timeout=60)

    assert ["double", "other"] == [each["queue"] for each in first["started"]["handlers"]]
    assert ["double", "another"] == [each["queue"] for each in second["started"]["handlers"]]
    assert (0, 1) == (worker.returncode, json.loads(out)["stopped"]["completed"])


def test_reload_waits_for_a_change_when_the_worker_cannot_start(place: Shell) -> None:
    (place.folder / "my_app.py").write_text("import nowhere")
    worker = place.start("worker", "my_app:app", "--url", place.url, "--processes", "0", "--reload", "--json")
    assert worker.stdout is not None
    assert worker.stderr is not None
    assert "cannot import my_app" in worker.stderr.readline()
    assert "starts again when the source changes" in worker.stderr.readline()
    (place.folder / "my_app.py").write_text(APPLICATION)
    assert "started" in json.loads(worker.stdout.readline())
    asyncio.run(ended(place, "double"))
    worker.terminate()
    worker.communicate(timeout=60)

    assert 0 == worker.returncode
