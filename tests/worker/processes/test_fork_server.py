"""The stem of worker processes: they end with it, it with its supervisor, and it knows no application."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from dibs.client.app import Dibs
from dibs.worker import messages
from dibs.worker.processes import fork_server as nursery_of
from dibs.worker.processes.child_main import ProcessSpec
from dibs.worker.processes.fork_server import SUPPORTED, ForkedProcess, ForkServer
from tests.worker.fleet import PATIENCE, script, working
from tests.worker.workshop import Gate, counted, current, ends, kinds, outcome, put, request

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="processes are spawned here")

APPS = "tests.worker.apps:app"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


class Child:
    """A forked process, what it said, and how it ended."""

    def __init__(self, nursery: ForkServer, reference: str = APPS) -> None:
        self.ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        spec = ProcessSpec(app=reference, queues=("echo",), parent=0)
        self.process: ForkedProcess = nursery.fork(spec, self._heard, self.end.set_result)

    def _heard(self, raw: bytes) -> None:
        message = messages.decode_from_worker(raw)
        if isinstance(message, messages.ProcessReady):
            self.ready.set_result(message.pid)


@pytest.fixture
async def nursery(app: Dibs) -> AsyncIterator[ForkServer]:
    nursery = ForkServer()
    try:
        yield nursery
    finally:
        nursery.close()


def stem_of(pid: int) -> int:
    return psutil.Process(pid).ppid()


async def settled(condition: Callable[[], bool]) -> None:
    """Wait for what the kernel tells nobody."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


# -- the processes -----------------------------------------------------------------------------------


async def test_what_it_forks_is_told_of_like_any_child(nursery: ForkServer) -> None:
    async with asyncio.timeout(PATIENCE):
        children = [Child(nursery) for _ in range(3)]
        pids = [await child.ready for child in children]
        os.kill(pids[0], signal.SIGSEGV)
        children[1].process.kill()
        reasons = [await child.end for child in children[:2]]

    assert [child.process.pid for child in children] == pids
    assert ["was killed by SIGSEGV", "was killed by SIGKILL"] == reasons
    assert not children[2].end.done()
    assert os.getpid() == stem_of(stem_of(pids[2]))


async def test_what_cannot_begin_says_why_and_ends_well(nursery: ForkServer) -> None:
    async with asyncio.timeout(PATIENCE):
        child = Child(nursery, "tests.worker.apps:nowhere")
        reason = await child.end

    assert "exited with code 0" == reason
    assert not child.ready.done()


async def test_a_process_is_begun_as_its_supervisor_is_now(
    app: Dibs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as it was when the stem began: environment, folder and path are those of the moment."""
    await put(app, "surroundings", request("a", "WHERE"))
    async with working(app, "suicide", "surroundings", until="stopped"):
        await counted(app, "surroundings", "completed")
        monkeypatch.setenv("WHERE", "elsewhere")
        monkeypatch.setenv("WHAT", "no UTF-8: \udcff")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)
        await put(app, "suicide", "b")
        await counted(app, "suicide", "failed")
        await put(app, "surroundings", request("c", "WHERE"))
        await counted(app, "surroundings", "completed", 2)

    before, after = [json.loads((await outcome(app, "surroundings", id)).result or b"") for id in "ac"]
    assert None is before[0]
    assert ["elsewhere", str(tmp_path), str(tmp_path)] == after


async def test_where_there_can_be_none_processes_are_spawned(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery_of, "SUPPORTED", False)
    await put(app, "held", "a")
    async with working(app, "held") as task:
        pid = await gate.arrived("a")
        assert os.getpid() == psutil.Process(pid).ppid()
        await gate.let_go("a")
        report = await task

    assert (1, 0) == (report.total("completed"), report.crashes)


# -- how it ends -------------------------------------------------------------------------------------


async def test_when_it_ends_so_do_its_processes_and_it_is_replaced(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a")
    async with working(app, "held", lease=3600.0, heartbeat=1000.0) as task:
        pid = await gate.arrived("a")
        stem = stem_of(pid)
        os.kill(stem, signal.SIGKILL)
        gate.again("a")
        await ends(pid)
        other = stem_of(await gate.arrived("a"))
        await gate.let_go("a")
        report = await task

    assert stem != other
    assert ["stalled", "completed"] == await kinds(app, "held", "a")
    assert (1, 1) == (report.crashes, report.total("stalled"))
    assert not psutil.pid_exists(other)


async def test_one_that_is_gone_refuses_and_the_next_is_another(nursery: ForkServer) -> None:
    async with asyncio.timeout(PATIENCE):
        first = Child(nursery)
        stem = stem_of(await first.ready)
        os.kill(stem, signal.SIGKILL)
        # Without a step of the loop: nobody has heard of it when the next one is asked for.
        os.waitid(os.P_PID, stem, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - see above
        late = Child(nursery)
        reasons = [await late.end, await first.end]
        assert stem != stem_of(await Child(nursery).ready)

    assert "could not be forked" in reasons[0]
    assert "was killed by SIGKILL" == reasons[1]


async def test_one_that_hangs_keeps_nobody_waiting(nursery: ForkServer) -> None:
    async with asyncio.timeout(PATIENCE):
        first = Child(nursery)
        stem = psutil.Process(stem_of(await first.ready))
        stem.suspend()
        late = Child(nursery)
        late.process.kill()
        assert "was killed by SIGKILL" == await late.end
        stem.resume()
        assert await Child(nursery).ready
        # What it forked when it went on was ended at once.
        await settled(lambda: len(stem.children()) == 2)

    assert not late.ready.done()


PROGRAMS = {
    "a program": "import asyncio\nfrom tests.worker.apps import app\nfrom dibs.worker import run\n\n"
    "if __name__ == '__main__':\n    asyncio.run(run(app, queues=['gil'], processes=2))\n",
    "the command line": "import sys\nfrom dibs.__main__ import main\n\n"
    "if __name__ == '__main__':\n"
    f"    sys.argv[1:] = ['worker', '{APPS}', '--queues', 'gil', '--processes', '2']\n    main()\n",
}


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
async def test_nothing_is_left_of_a_supervisor_that_is_killed(
    app: Dibs, gate: Gate, tmp_path: Path, text: str
) -> None:
    """By the kernel: one of its processes holds the interpreter, and can do nothing about it itself."""
    await put(app, "gil", "a")
    async with script(tmp_path, text) as program:
        await gate.arrived("a")
        await gate.let_go("a")
        family = psutil.Process(program.pid).children(recursive=True)
        program.kill()
        for each in family:
            await ends(each.pid)

    assert len(family) >= 2
    assert (await current(app, "gil", "a")).run is not None


# -- what it knows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["file", "redis", "postgresql"])
async def test_it_opens_nothing_and_starts_no_thread(nursery: ForkServer, scheme: str) -> None:
    """Whatever storage it was told to expect: a fork would have half of it."""
    nursery.preload(scheme)
    async with asyncio.timeout(PATIENCE):
        stem = psutil.Process(stem_of(await Child(nursery).ready))

    files = [file for file in stem.open_files() if file.fd > 2]
    assert (1, [], []) == (stem.num_threads(), files, stem.net_connections("inet"))


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
    """Who has imported the application in a folder, each with its parent."""
    found: list[list[int]] = []
    yield found
    found += [[int(number) for number in line.split()] for line in (folder / "who").read_text().splitlines()]


async def test_it_does_not_import_a_program_that_it_serves(tmp_path: Path, app: Dibs) -> None:
    await put(app, "pid", "a")
    async with importing(tmp_path) as found, script(tmp_path, WHO + RUN) as program:
        _, err = await program.communicate()

    assert 0 == program.returncode, err
    assert_only_forks_know(found, program.pid)


async def test_it_does_not_import_the_application_of_the_command_line(tmp_path: Path, app: Dibs) -> None:
    await put(app, "pid", "a")
    (tmp_path / "who_am_i.py").write_text(WHO)
    text = PROGRAMS["the command line"].replace(APPS, "who_am_i:app").replace("gil", "pid")
    async with importing(tmp_path) as found, script(tmp_path, text) as program:
        await counted(app, "pid", "completed")
        program.terminate()
        await program.communicate()

    assert_only_forks_know(found, program.pid)


def assert_only_forks_know(found: list[list[int]], program: int) -> None:
    # The second process may have been ended before it came to that.
    assert [program] == [pid for pid, _ in found if pid == program]
    [stem] = {parent for pid, parent in found if pid != program}
    assert stem not in {pid for pid, _ in found}
    assert stem != program
