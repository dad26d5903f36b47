"""The parent reads the messages of a child that may wait in batches, and loses none of them."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import pytest

from dibs.errors import ConfigurationError
from dibs.worker.processes import child_process, logs
from dibs.worker.processes.app_import import import_app, is_importing_app
from dibs.worker.processes.child_process import LARGE_READ, ChildProcess, FrameDecoder, SpawnedProcess
from dibs.worker.processes.logs import repeated_warnings_once_a_minute
from dibs.worker.work_plan import cpu_count, read_quotas
from tests.worker.supervisors import TIMEOUT

#: Seconds for which no test waits.
NEVER: Final = 1000.0
#: Turns of the event loop in which a reader gets its data.
TURNS: Final = 20


class Child(ChildProcess):
    """The parent's side of a child without a process: the test writes its messages, and ends it."""

    def __init__(self) -> None:
        parent_end, self.child_end = Pipe()
        self.received: list[str] = []
        super().__init__(parent_end, lambda raw: self.received.append(raw.decode()), self.received.append)
        self.may_wait = True

    def write(self, message: str) -> None:
        self.child_end.send_bytes(message.encode())

    def end(self) -> None:
        self._finish_after_exit(0, "ended")


@pytest.fixture
async def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    monkeypatch.setattr(child_process, "READ_PAUSE", NEVER)
    return Child()


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_messages_after_the_first_wait(child: Child) -> None:
    child.write("first")
    await turn()
    child.write("second")
    await turn()

    assert ["first"] == child.received


async def test_waiting_messages_are_read_before_the_exit_is_reported(child: Child) -> None:
    child.write("first")
    await turn()
    child.write("second")
    child.write("third")
    child.end()

    assert ["first", "second", "third", "ended"] == child.received


async def test_messages_are_read_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "READ_PAUSE", 0.001)
    child = Child()
    for message in ("first", "second"):
        child.write(message)
        while message not in child.received:  # noqa: ASYNC110 - the child sends no event
            await asyncio.sleep(0.001)

    assert ["first", "second"] == child.received


async def test_many_bytes_cause_no_pause(child: Child) -> None:
    child.write("x" * LARGE_READ)
    await turn()
    child.write("second")
    await turn()

    assert "second" == child.received[-1]


async def test_a_quiet_child_wakes_the_parent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "READ_PAUSE", 0.001)
    monkeypatch.setattr(child_process, "QUIET_SECONDS", -1.0)
    child = Child()
    child.write("first")
    while "first" not in child.received or child._read_timer is not None:  # noqa: ASYNC110 - one poll
        await asyncio.sleep(0)
    monkeypatch.setattr(child_process, "READ_PAUSE", NEVER)
    child.write("second")
    await turn()

    assert ["first", "second"] == child.received


async def test_a_child_whose_messages_may_not_wait_causes_no_pause(child: Child) -> None:
    child.may_wait = False
    for message in ("first", "second"):
        child.write(message)
        await turn()

    assert ["first", "second"] == child.received


# -- A warning that a loop repeats is logged once in a while; other records pass ---------------------


logger = logging.getLogger("dibs.worker")


def test_a_repeated_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), repeated_warnings_once_a_minute():
        for turn in range(3):
            logger.warning("waiting failed: %s", "no connection")
            logger.error("%s is lost", turn)
            logger.info("done")

    assert [
        "waiting failed: no connection",
        "0 is lost",
        "done",
        "1 is lost",
        "done",
        "2 is lost",
        "done",
    ] == (caplog.messages)


def test_it_is_logged_again_after_the_pause_and_after_the_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with repeated_warnings_once_a_minute():
            logger.warning("waiting failed")
            logger.warning("waiting failed")
    monkeypatch.setattr(logs, "QUIET", 0.0)
    with repeated_warnings_once_a_minute():
        logger.warning("waiting failed")
        logger.warning("waiting failed")

    assert 4 == len(caplog.messages)


def test_the_texts_that_are_remembered_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with repeated_warnings_once_a_minute():
        for number in range(logs.MAX_TEXTS + 1):
            logger.warning("%d", number)
        logger.warning("0")

    assert logs.MAX_TEXTS + 2 == len(caplog.messages)


# -- The import of an application by its name, in a worker process -----------------------------------


def write_module(folder: Path, patch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, name, raising=False)


def test_a_missing_module_is_reported_with_what_to_check() -> None:
    with pytest.raises(ConfigurationError) as error:
        import_app("no_such_app:app")

    assert (
        "cannot import no_such_app: No module named 'no_such_app'; check the name, and that sys.path has its "
        "directory"
    ) == str(error.value)


def test_an_error_in_the_module_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, monkeypatch, "app_that_divides", "\n1 / 0\n")
    with pytest.raises(ConfigurationError) as error:
        import_app("app_that_divides:app")

    place = tmp_path / "app_that_divides.py"
    assert f"cannot import app_that_divides: ZeroDivisionError: division by zero ({place}:2)" == str(
        error.value
    )


def test_a_module_is_told_that_it_is_imported_as_an_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from dibs import Dibs\n"
        "from dibs.worker.processes.app_import import is_importing_app\n"
        "app, inside = Dibs('memory:'), is_importing_app()\n"
    )
    write_module(tmp_path, monkeypatch, "app_that_asks", text)
    app = import_app("app_that_asks:app")

    assert app is sys.modules["app_that_asks"].app
    assert (True, False) == (sys.modules["app_that_asks"].inside, is_importing_app())


# -- The pipe to a process that hangs: the parent never waits for it ---------------------------------


def send_half(pipe: Connection) -> None:
    """Send a message and half of another, then stop."""
    pipe.send_bytes(b"whole")
    os.write(pipe.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGSTOP)


def never_read(pipe: Connection) -> None:
    """Send a message, and never read the pipe."""
    pipe.send_bytes(b"here")
    signal.pause()


class SpawnedChild:
    """A spawned process, its messages, and its exit."""

    def __init__(self, target: Callable[[Connection], None]) -> None:
        self.messages: list[bytes] = []
        self.has_sent = asyncio.Event()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.process = SpawnedProcess(target, (), self._on_message, self.end.set_result)

    def _on_message(self, message: bytes) -> None:
        self.messages.append(message)
        self.has_sent.set()


async def test_the_parent_does_not_wait_for_half_a_message() -> None:
    async with asyncio.timeout(TIMEOUT):
        child = SpawnedChild(send_half)
        await child.has_sent.wait()
        child.process.kill()
        reason = await child.end

    assert ([b"whole"], "was killed by SIGKILL") == (child.messages, reason)


async def test_a_process_that_never_reads_is_killed_when_its_pipe_is_full() -> None:
    async with asyncio.timeout(TIMEOUT):
        child = SpawnedChild(never_read)
        await child.has_sent.wait()
        while not child.end.done():
            child.process.send(b"x" * 100)
            await asyncio.sleep(0)
        reason = await child.end

    assert "was killed by SIGKILL" == reason


def test_messages_are_decoded_from_chunks_of_any_size() -> None:
    messages = [b"", b"a", b"x" * 70_000, b"last"]
    stream = b"".join(struct.pack("!i", len(message)) + message for message in messages)
    for step in (1, 3, 4096, len(stream)):
        decoder, decoded = FrameDecoder(), list[bytes]()
        for start in range(0, len(stream), step):
            decoded += decoder.decode(stream[start : start + step])

        assert messages == decoded


# -- The number of CPUs by the quotas of cgroups of both versions ------------------------------------


V1 = "12:pids:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc"


@pytest.mark.parametrize(
    ("memberships", "files", "quotas"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, [1.5]),
        ("0::/", {"cpu.max": "max 100000"}, []),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50 100", "cpu.max": "900 90"}, [0.5, 10]),
        ("0::/in/the/host", {"cpu.max": "200000 100000"}, [2.0]),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "300", "cpu,cpuacct/cpu.cfs_period_us": "100"}, [3.0]),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100"}, []),
        ("0::/", {"cpu.max": "damaged"}, []),
        ("0::/", {}, []),
        (None, {}, []),
    ],
)  # fmt: skip
def test_the_quota_of_each_cgroup_above_is_read(
    tmp_path: Path, memberships: str | None, files: dict[str, str], quotas: list[float]
) -> None:
    if memberships is not None:
        (tmp_path / "cgroup").write_text(memberships + "\n")
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(text + "\n")

    assert quotas == [*read_quotas(tmp_path / "cgroup", tmp_path / "mount")]


def may_mount() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "--mount", "sh", "-c", "mount --bind /tmp /sys/fs/cgroup"],
            capture_output=True,
            check=False,
        ).returncode
    )


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a folder")
def test_a_quota_below_one_cpu_is_one_process(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("20000 100000\n")
    (tmp_path / "membership").write_text("0::/\n")
    script = f"cd {tmp_path}; mount --bind . /sys/fs/cgroup; mount --bind membership /proc/$$/cgroup"
    code = "from dibs.worker.work_plan import cpu_count; print(cpu_count())"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{script}; exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "1\n" == done.stdout
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)
