"""`dibs worker` as a process: output, signals, --health, --reload, usage errors."""

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

from dibs.cli.commands.worker import _open_health_socket
from dibs.cli.errors import UsageError
from tests.cli.shell import Shell
from tests.cli.test_json_output import SHAPES, differences

APPLICATION = """
from dibs import Dibs

app = Dibs()


@app.task(queue="double")
def double(number: int) -> int:
    return 2 * number


@app.task(queue="other")
def other() -> None: ...
"""


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture
def service(shell: Shell) -> Shell:
    (shell.folder / "my_app.py").write_text(APPLICATION)
    shell.type("enqueue", "double", '{"args": [21]}', "--id", "a")
    return shell


def test_it_prints_its_settings_and_stops_after_sigterm(service: Shell) -> None:
    worker = service.start("worker", "my_app:app", "--url", service.url, "--processes", "1", "--json")
    assert worker.stdout is not None
    started = json.loads(worker.stdout.readline())
    asyncio.run(ended(service, "double"))
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=30)

    assert 0 == worker.returncode
    assert [] == differences(SHAPES["worker"], started)
    assert [] == differences(SHAPES["worker-stopped"], json.loads(out))
    assert 1 == json.loads(out)["stopped"]["completed"]
    assert 42 == service.json("show", "double", "a")["outcome"]["result"]["value"]


async def ended(shell: Shell, queue: str) -> None:
    """Wait until the job `a` of a queue has ended. From then on the worker handles signals."""
    async with shell.storage() as storage:
        while (await storage.get(queue, ["a"]))[0].outcome is None:
            await storage.wait([queue], for_="ids", ids=["a"], timeout=0.1)


def test_without_json_it_prints_lines(service: Shell) -> None:
    service.type("enqueue", "other", "{}", "--id", "a")
    worker = service.start(
        "worker", "my_app:app", "--url", service.url, "--processes", "0", "--queues", "other"
    )
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in range(3)]
    asyncio.run(ended(service, "other"))
    worker.send_signal(signal.SIGINT)
    out, err = worker.communicate(timeout=30)

    assert f"dibs worker at {service.url}; " in lines[0]
    assert "jobs run in this process" in lines[1]
    assert "other                my_app.other, up to 10 at a time in a process" in lines[2]
    assert out.startswith("stopped: 1 completed")
    assert "double" in err


MISTAKES = {
    "no module": (("nowhere:app",), "cannot import nowhere"),
    "no colon": (("my_app",), "package.module:app"),
    "no application": (("my_app:nope",), "nope"),
    "no such queue": (("my_app:app", "--queues", "nope"), "'nope'"),
    "an error at import": (
        ("raises:app",),
        "cannot import raises: ValueError: no settings (",
        "raises.py:1)",
    ),
    "an exit at import": (("exits:app",), "cannot import exits: SystemExit: 5"),
    "no Python": (("unparsable:app",), "cannot import unparsable: SyntaxError: ", "unparsable.py:1)"),
    "a missing dependency": (("needy:app",), "No module named 'nowhere' (", "needy.py:1)"),
    "no main guard": (("unguarded:app",), 'under `if __name__ == "__main__":`'),
    "no main guard, one process": (("unguarded:app", "--processes", "0"), "under `if __name__"),
    "a lifespan that raises": (("failing:app", "--processes", "0"), "no database here"),
}
#: Modules with mistakes; "unguarded" once started worker processes for ever, each of which imported it again.
BROKEN_MODULES = {
    "raises": "raise ValueError('no settings')",
    "exits": "import sys; sys.exit(5)",
    "unparsable": "def f(:",
    "needy": "import nowhere",
    "unguarded": APPLICATION + "app.sync.work(processes=1)",
}


@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES)
def test_a_usage_error_is_one_line(service: Shell, case: tuple[Any, ...]) -> None:
    words, *messages = case
    for name, text in {**BROKEN_MODULES, "failing": FAILING}.items():
        (service.folder / f"{name}.py").write_text(text)
    done = service.run("worker", *words, "--url", service.url)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert all(message in done.stderr for message in messages)


def test_a_url_that_differs_from_the_application_s_is_refused(service: Shell) -> None:
    Path("fixed.py").write_text("from dibs import Dibs\napp = Dibs('file:./here')\n")
    done = service.run("worker", "fixed:app", "--url", service.url)

    assert 2 == done.returncode
    assert "has a URL of its own" in done.stderr


def test_a_worker_says_that_its_application_ignores_the_variable(service: Shell) -> None:
    Path("two_apps.py").write_text("from dibs import Dibs\nfree, app = Dibs(), Dibs('file:./here')\n")
    warned, calm = (service.type("worker", f"two_apps:{name}") for name in ("app", "free"))

    assert "and ignores $DIBS_URL" in warned.stderr
    assert "$DIBS_URL" not in calm.stderr


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
def test_a_failing_lifespan_is_one_line(service: Shell, processes: str) -> None:
    (service.folder / "failing.py").write_text(FAILING)
    done = service.run("worker", "failing:app", "--url", service.url, "--processes", processes)

    assert 0 != done.returncode
    assert (1, 1) == (len(done.stderr.splitlines()), done.stderr.count("no database here"))


FRAGILE = """
import multiprocessing, os, signal
from pathlib import Path

# The first process of dibs that imports this module is killed, as by the OOM killer.
if multiprocessing.current_process().name == "dibs-worker" and not Path("killed").exists():
    Path("killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("processes", "executor"), [("1", "auto"), ("0", "process")], ids=["worker", "isolated"]
)
def test_a_process_that_is_killed_at_its_start_is_replaced(
    service: Shell, processes: str, executor: str
) -> None:
    text = FRAGILE + APPLICATION.replace('"double"', f'"double", executor={executor!r}')
    (service.folder / "fragile.py").write_text(text)
    worker = service.start("worker", "fragile:app", "--url", service.url, "--processes", processes)
    asyncio.run(ended(service, "double"))
    worker.terminate()
    _, err = worker.communicate(timeout=60)

    assert 0 == worker.returncode
    assert (service.folder / "killed").exists()
    assert "was killed by SIGKILL while it was starting" in err


def get(address: str, path: str) -> tuple[int, dict[str, Any]]:
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


@pytest.mark.long
def test_health_answers_while_a_task_holds_the_gil(service: Shell) -> None:
    (service.folder / "hanging.py").write_text(HANGING)
    service.type("enqueue", "hang", "{}")
    words = ("worker", "hanging:app", "--url", service.url, "--processes", "1", "--health", "0", "--json")
    worker = service.start(*words, "--grace", "0")
    assert worker.stdout is not None
    address = json.loads(worker.stdout.readline())["started"]["health"]
    assert "hanging\n" == worker.stdout.readline()
    alive, ready = get(address, "/healthz"), get(address, "/readyz")
    worker.terminate()
    worker.communicate(timeout=60)

    assert (200, True, False, 1) == (alive[0], alive[1]["ready"], alive[1]["stopping"], alive[1]["running"])
    assert 1 == len(alive[1]["processes"])
    assert "127.0.0.1" == address.partition(":")[0], "the default host"
    assert 200 == ready[0]
    assert 0 == worker.returncode


def test_a_port_in_use_is_a_usage_error(service: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = service.run("worker", "my_app:app", "--url", service.url, "--health", port)

    assert 2 == done.returncode
    assert f"cannot listen on {port}" in done.stderr


@pytest.mark.parametrize("words", ["http", "127.0.0.1", "8080x", "-1", "65536", "localhost:", ""])
def test_an_address_without_a_port_is_a_usage_error(words: str) -> None:
    with (
        pytest.raises(UsageError, match=r"write PORT \(up to 65535\) or HOST:PORT"),
        _open_health_socket(words),
    ):
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
def test_health_listens_on_the_given_host(words: str, host: str) -> None:
    with _open_health_socket(words) as listener:
        assert listener is not None
        assert host == listener.getsockname()[0]


def test_without_a_terminal_the_log_of_every_process_is_json(service: Shell) -> None:
    (service.folder / "raising.py").write_text(
        APPLICATION.replace("return 2 * number", 'raise OSError("boom")')
    )
    worker = service.start("worker", "raising:app", "--url", service.url, "--processes", "1", "--grace", "0")
    assert worker.stderr is not None
    record = json.loads(worker.stderr.readline())
    worker.terminate()
    worker.communicate(timeout=60)

    assert ("WARNING", "dibs.worker", "double", "a") == tuple(
        record[key] for key in ("level", "logger", "queue", "id")
    )
    assert "boom" in record["message"]


def test_a_terminal_shows_a_live_table(service: Shell) -> None:
    ours, theirs = os.openpty()
    worker = service.start(
        "worker", "my_app:app", "--url", service.url, "--processes", "0", "--queues", "double", stdout=theirs
    )
    os.close(theirs)
    shown = b""
    while b"timeouts" not in shown or b"this process" not in shown:
        shown += os.read(ours, 4096)
    asyncio.run(ended(service, "double"))
    worker.terminate()
    while b"stopped: 1 completed" not in shown:
        shown += os.read(ours, 4096)
    worker.communicate(timeout=60)
    os.close(ours)

    assert 0 == worker.returncode


def test_reload_restarts_after_a_change(service: Shell) -> None:
    words = ("worker", "my_app:app", "--url", service.url, "--processes", "0", "--reload", "--json")
    worker = service.start(*words)
    assert worker.stdout is not None
    first = json.loads(worker.stdout.readline())
    asyncio.run(ended(service, "double"))
    (service.folder / "my_app.py").write_text(APPLICATION.replace('"other"', '"another"'))
    assert "stopped" in json.loads(worker.stdout.readline())
    second = json.loads(worker.stdout.readline())
    service.type("enqueue", "another", "{}", "--id", "a")
    asyncio.run(ended(service, "another"))
    worker.terminate()
    out, _ = worker.communicate(timeout=60)

    assert ["double", "other"] == [each["queue"] for each in first["started"]["handlers"]]
    assert ["double", "another"] == [each["queue"] for each in second["started"]["handlers"]]
    assert (0, 1) == (worker.returncode, json.loads(out)["stopped"]["completed"])


def test_reload_waits_for_a_change_if_the_worker_cannot_start(service: Shell) -> None:
    (service.folder / "my_app.py").write_text("import nowhere")
    worker = service.start(
        "worker", "my_app:app", "--url", service.url, "--processes", "0", "--reload", "--json"
    )
    assert worker.stdout is not None
    assert worker.stderr is not None
    assert "cannot import my_app" in worker.stderr.readline()
    assert "will start again when the source changes" in worker.stderr.readline()
    (service.folder / "my_app.py").write_text(APPLICATION)
    assert "started" in json.loads(worker.stdout.readline())
    asyncio.run(ended(service, "double"))
    worker.terminate()
    worker.communicate(timeout=60)

    assert 0 == worker.returncode
