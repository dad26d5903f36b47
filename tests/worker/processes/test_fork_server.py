"""The fork server: its processes end with it, it ends with its supervisor, and it imports no application."""

from __future__ import annotations

import asyncio
import json
import multiprocessing.process
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from dibs.app import Dibs
from dibs.worker import messages
from dibs.worker.processes import fork_server as fork_server_module
from dibs.worker.processes.child_main import ProcessSpec
from dibs.worker.processes.fork_server import SUPPORTED, ForkedProcess, ForkServer
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import current, event_kinds, outcome, put, request, wait_for_count
from tests.worker.supervisors import TIMEOUT, script, working

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="this platform has no fork server")

APPS = "tests.worker.apps:app"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


class Child:
    """A forked process, its first message, and its exit."""

    def __init__(self, fork_server: ForkServer, reference: str = APPS) -> None:
        self.ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        spec = ProcessSpec(app=reference, queues=("echo",), parent=0)
        self.process: ForkedProcess = fork_server.fork(spec, self._on_message, self.end.set_result)

    def _on_message(self, raw: bytes) -> None:
        message = messages.decode_from_worker(raw)
        if isinstance(message, messages.ProcessReady):
            self.ready.set_result(message.pid)


@pytest.fixture
async def fork_server(app: Dibs) -> AsyncIterator[ForkServer]:
    fork_server = ForkServer()
    try:
        yield fork_server
    finally:
        fork_server.close()


def parent_of(pid: int) -> int:
    return psutil.Process(pid).ppid()


async def poll_until(condition: Callable[[], bool]) -> None:
    """Poll until a condition is true that no event reports."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


# -- the processes -----------------------------------------------------------------------------------


async def test_exits_of_forked_processes_are_reported(fork_server: ForkServer) -> None:
    async with asyncio.timeout(TIMEOUT):
        children = [Child(fork_server) for _ in range(3)]
        pids = [await child.ready for child in children]
        os.kill(pids[0], signal.SIGSEGV)
        children[1].process.kill()
        reasons = [await child.end for child in children[:2]]

    assert [child.process.pid for child in children] == pids
    assert ["was killed by SIGSEGV", "was killed by SIGKILL"] == reasons
    assert not children[2].end.done()
    assert os.getpid() == parent_of(parent_of(pids[2]))


async def test_a_process_that_cannot_start_exits_with_code_0(fork_server: ForkServer) -> None:
    async with asyncio.timeout(TIMEOUT):
        child = Child(fork_server, "tests.worker.apps:nowhere")
        reason = await child.end

    assert "exited with code 0" == reason
    assert not child.ready.done()


async def test_a_process_has_the_present_environment_of_its_supervisor(
    app: Dibs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment, directory and path are those at the fork, not at the start of the fork server."""
    await put(app, "surroundings", request("a", "WHERE"))
    async with working(app, "suicide", "surroundings", until="stopped"):
        await wait_for_count(app, "surroundings", "completed")
        monkeypatch.setenv("WHERE", "elsewhere")
        monkeypatch.setenv("WHAT", "no UTF-8: \udcff")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)
        await put(app, "suicide", "b")
        await wait_for_count(app, "suicide", "failed")
        await put(app, "surroundings", request("c", "WHERE"))
        await wait_for_count(app, "surroundings", "completed", 2)

    before, after = [json.loads((await outcome(app, "surroundings", id)).result or b"") for id in "ac"]
    assert None is before[0]
    assert ["elsewhere", str(tmp_path), str(tmp_path)] == after


async def test_a_process_starts_after_the_working_directory_was_removed(
    fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment removes the folder of the release that still runs. The process starts in "/" then."""
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    monkeypatch.setattr(multiprocessing.process, "ORIGINAL_DIR", str(removed))
    removed.rmdir()
    child = Child(fork_server)
    async with asyncio.timeout(TIMEOUT):
        pid = await child.ready

    assert "/" == psutil.Process(pid).cwd()


async def test_without_a_fork_server_processes_are_spawned(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server_module, "SUPPORTED", False)
    await put(app, "held", "a")
    async with working(app, "held") as task:
        pid = await gate.arrived("a")
        assert os.getpid() == psutil.Process(pid).ppid()
        await gate.release("a")
        report = await task

    assert (1, 0) == (report.total("completed"), report.crashes)


# -- its end ----------------------------------------------------------------------------------------


async def test_its_processes_end_with_it_and_it_is_replaced(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a")
    async with working(app, "held", lease=3600.0, heartbeat=1000.0) as task:
        pid = await gate.arrived("a")
        server = parent_of(pid)
        os.kill(server, signal.SIGKILL)
        gate.expect_again("a")
        await wait_for_exit(pid)
        other = parent_of(await gate.arrived("a"))
        await gate.release("a")
        report = await task

    assert server != other
    assert ["stalled", "completed"] == await event_kinds(app, "held", "a")
    assert (1, 1) == (report.crashes, report.total("stalled"))
    assert not psutil.pid_exists(other)


async def test_a_dead_fork_server_is_replaced_at_the_next_fork(
    fork_server: ForkServer,
) -> None:
    async with asyncio.timeout(TIMEOUT):
        first = Child(fork_server)
        server = parent_of(await first.ready)
        os.kill(server, signal.SIGKILL)
        # waitid() blocks the loop, so the exit is not noticed before the next fork.
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - see above
        late = Child(fork_server)
        reasons = [await late.end, await first.end]
        assert server != parent_of(await Child(fork_server).ready)

    assert "could not be forked" in reasons[0]
    assert "was killed by SIGKILL" == reasons[1]


async def test_a_fork_server_that_hangs_blocks_no_caller(fork_server: ForkServer) -> None:
    async with asyncio.timeout(TIMEOUT):
        first = Child(fork_server)
        server = psutil.Process(parent_of(await first.ready))
        server.suspend()
        late = Child(fork_server)
        late.process.kill()
        assert "was killed by SIGKILL" == await late.end
        server.resume()
        assert await Child(fork_server).ready
        # After its resumption the server also forked the process of `late`, which was killed at once.
        await poll_until(lambda: len(server.children()) == 2)

    assert not late.ready.done()


PROGRAMS = {
    "a program": "import asyncio\nfrom tests.worker.apps import app\nfrom dibs.worker import run\n\n"
    "if __name__ == '__main__':\n    asyncio.run(run(app, queues=['gil'], processes=2))\n",
    "the command line": "import sys\nfrom dibs.__main__ import main\n\n"
    "if __name__ == '__main__':\n"
    f"    sys.argv[1:] = ['worker', '{APPS}', '--queues', 'gil', '--processes', '2']\n    main()\n",
}


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
async def test_all_processes_of_a_killed_supervisor_end(
    app: Dibs, gate: Gate, tmp_path: Path, text: str
) -> None:
    """The kernel kills them: one of the processes holds its GIL and runs no Python code."""
    await put(app, "gil", "a")
    async with script(tmp_path, text) as program:
        await gate.arrived("a")
        await gate.release("a")
        family = psutil.Process(program.pid).children(recursive=True)
        program.kill()
        for each in family:
            await wait_for_exit(each.pid)

    assert len(family) >= 2
    assert (await current(app, "gil", "a")).run is not None


# -- its imports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["file", "redis", "postgresql"])
async def test_it_opens_no_file_and_starts_no_thread(fork_server: ForkServer, scheme: str) -> None:
    """This holds for every preloaded storage: a fork would share open files and lose threads."""
    fork_server.preload(scheme)
    async with asyncio.timeout(TIMEOUT):
        server = psutil.Process(parent_of(await Child(fork_server).ready))

    files = [file for file in server.open_files() if file.fd > 2]
    assert (1, [], []) == (server.num_threads(), files, server.net_connections("inet"))


WHO = """
import os
from pathlib import Path
from dibs import Dibs

app = Dibs()
with Path(__file__).with_name("who").open("a") as file:
    file.write(f"{os.getpid()} {os.getppid()}\\n")


@app.queue("pid").handler()
def pid(data: list[int]) -> int:
    return os.getpid()
"""
RUN = """
if __name__ == "__main__":
    app.sync.work(processes=2, until="empty")
"""


@asynccontextmanager
async def importing(folder: Path) -> AsyncIterator[list[list[int]]]:
    """Collect [pid, parent pid] of each process that imported the application in a folder."""
    found: list[list[int]] = []
    yield found
    found += [[int(number) for number in line.split()] for line in (folder / "who").read_text().splitlines()]


async def test_it_does_not_import_the_program_of_its_supervisor(tmp_path: Path, app: Dibs) -> None:
    await put(app, "pid", "a")
    async with importing(tmp_path) as found, script(tmp_path, WHO + RUN) as program:
        _, err = await program.communicate()

    assert 0 == program.returncode, err
    assert_only_forks_imported(found, program.pid)


async def test_it_does_not_import_the_application_of_the_command_line(tmp_path: Path, app: Dibs) -> None:
    await put(app, "pid", "a")
    (tmp_path / "who_am_i.py").write_text(WHO)
    text = PROGRAMS["the command line"].replace(APPS, "who_am_i:app").replace("gil", "pid")
    async with importing(tmp_path) as found, script(tmp_path, text) as program:
        await wait_for_count(app, "pid", "completed")
        program.terminate()
        await program.communicate()

    assert_only_forks_imported(found, program.pid)


def assert_only_forks_imported(found: list[list[int]], program: int) -> None:
    # The second process may have been killed before it imported the program.
    assert [program] == [pid for pid, _ in found if pid == program]
    [server] = {parent for pid, parent in found if pid != program}
    assert server not in {pid for pid, _ in found}
    assert server != program
