"""The first use of each extra after an installation: a program or a command from its page in the docs.

tools/try_wheel.py runs these functions, each in a new environment that has the wheel with this extra alone.
"""

# ruff: noqa: INP001, T201, S310, S603 - a script for contributors that starts what it has installed

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from attrs import frozen

PROJECT: Final = Path(__file__).parent.parent
#: Files that read and run the blocks of a page.
READERS: Final = ("tests/__init__.py", "tests/source.py", "tests/docs/pages.py")
RUN_PAGES: Final = """
import asyncio, contextlib, io, sys
from pathlib import Path
from tests.docs.pages import OUTPUT, Page, run_block

async def run(name):
    page = Page(name)
    page.save(Path.cwd())
    names = {"__name__": "__main__"}
    for block in page.python_blocks:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            await run_block(block.text, names)
        assert OUTPUT.findall(block.text) == out.getvalue().splitlines(), block.text
    if "app" in names:
        await names["app"].close()
    page.unload()
    print(name, len(page.python_blocks), "blocks printed what the page shows")

sys.path.insert(0, "")
for name in sys.argv[1:]:
    asyncio.run(run(name))
"""
#: A module of users, with a test by each of the two plugins for pytest.
USERS_TEST: Final = """
from dibs import Dibs

app = Dibs()

@app.task
def double(number: int) -> int:
    return 2 * number

def dibs_app_fixture():
    return app

import pytest
dibs_app = pytest.fixture(dibs_app_fixture)

async def test_a_job_runs(rehearsal):
    ticket = await double.enqueue(21)
    await rehearsal.run_due()
    assert 42 == await ticket.result()
"""
#: The program traced.py of howto/observability.md, with one job that runs. Without an SDK there are no spans.
TRACED: Final = """
import asyncio
from dibs import Dibs
from dibs.telemetry.tracing import trace_app

app = Dibs("memory:")
trace_app(app)

@app.task
async def pay(order: int) -> str:
    return f"paid {order}"

async def main():
    async with app:
        ticket = await pay.enqueue(7)
        await app.work(until="empty", handle_signals=False)
        print(await ticket.result(wait=30))

asyncio.run(main())
"""
LOOP: Final = """
import asyncio
from dibs import Dibs

app = Dibs()

@app.task(queue="loop")
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__

if __name__ == "__main__":
    with app.sync:
        print(loop.sync.enqueue().result(wait=30))
"""
SPARK: Final = """
from pyspark.sql import functions as f
from dibs.spark import enqueue, read, session

if __name__ == "__main__":
    spark = session()
    rows = [("ada", "de"), ("bob", "fr"), ("eve", "de")]
    users = spark.createDataFrame(rows, "name string, country string")
    mails = users.select(
        f.concat(f.lit("welcome-"), "name").alias("id"),
        f.struct(f.col("name").alias("to")).alias("data"),
        f.struct("country").alias("attributes"),
    )
    report = enqueue(mails, "mail", url="file:./jobs")
    print(report.rows, report.statuses, report.rejected)
    print(read(spark, "jobs", url="file:./jobs").count(), "rows")
    spark.stop()
"""
#: Seconds in which a server must give its first answer, also on a busy machine.
START: Final = 60
STORAGE: Final = {"DIBS_URL": "file:./jobs"}


@frozen
class Place:
    """An environment with the wheel, and an empty folder for its programs."""

    folder: Path

    @property
    def work(self) -> Path:
        path = self.folder / "work"
        path.mkdir(exist_ok=True)
        return path

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    def environ(self, added: dict[str, str]) -> dict[str, str]:
        """Return the variables of a program: no source of dibs on the path, and no settings of dibs."""
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DIBS_"))
        }
        path = f"{self.folder / 'env' / 'bin'}{os.pathsep}{clean['PATH']}"
        return clean | {"PATH": path, "NO_COLOR": "1"} | added

    def command(self, words: tuple[str, ...]) -> list[str]:
        return [str(self.folder / "env" / "bin" / words[0]), *words[1:]]

    def run(self, *words: str, stdin: str = "", **environ: str) -> str:
        """Run a program of the environment, and return its output. Fail with the output if it fails."""
        done = subprocess.run(
            self.command(words),
            cwd=self.work,
            env=self.environ(environ),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)[:200]} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    @contextmanager
    def running(self, *words: str, **environ: str) -> Iterator[None]:
        """Run a program during a `with` block, then send it SIGTERM. Fail if its exit code is not 0."""
        process = subprocess.Popen(self.command(words), cwd=self.work, env=self.environ(environ))
        try:
            yield
        finally:
            process.terminate()
            code = process.wait(START)
        if code:
            raise SystemExit(f"{' '.join(words)} ended with {code}")

    def import_modules(self, *names: str) -> None:
        """Import modules, and require that they come from the wheel."""
        found = self.run("python", "-c", f"import dibs, {', '.join(names)}; print(dibs.__file__)").strip()
        if not Path(found).is_relative_to(self.folder):
            raise SystemExit(f"dibs was imported from {found}, and not from the wheel")

    def run_page(self, name: str) -> None:
        """Run the blocks of a page of the docs, and compare what they print with the page."""
        reader = self.folder / "reader"
        for file in (*READERS, f"docs/{name}"):
            target = reader / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / file, target)
        print(self.run("python", "-c", RUN_PAGES, name, PYTHONPATH=str(reader)).strip())

    def write(self, name: str, text: str) -> str:
        (self.work / name).write_text(text, "utf-8")
        return name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str) -> str:
    """Return what a server answers, as soon as it listens. Raises OSError after START seconds."""
    end = time.monotonic() + START
    while True:
        try:
            with urlopen(url, timeout=START) as reply:
                return str(reply.read().decode())
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def require(text: str, expected: str) -> None:
    if expected not in text:
        raise SystemExit(f"{expected!r} is not in:\n{text[-4000:]}")
    print(expected)


def try_base(place: Place) -> None:
    place.import_modules("dibs.testing", "dibs.flow", "dibs.worker", "dibs.django", "dibs.cli")
    print(place.run("dibs", "--version").strip())
    (place.folder / "files").mkdir()
    for number in range(50):
        (place.folder / "files" / f"{number}.txt").write_text(str(number), "utf-8")
    place.run("dibs", "demo", "--processes", "2", str(place.folder / "files"))
    print("the demo has checked every result")
    place.run_page("tutorial/ten-minutes.md")
    print(place.run("python", "plain.py").strip())
    print(place.run("dibs", "counts", **STORAGE).strip().splitlines()[0])


def try_conformance(place: Place) -> None:
    place.import_modules("dibs_conformance")
    print(place.run("dibs", "certify", "memory:", "--budget", "10").strip().splitlines()[-1])


def try_pytest(place: Place) -> None:
    """Run the kit as tests, and a test of users with the fixture `rehearsal`."""
    kit = place.run("pytest", "-q", "--dibs-storage", "memory:", "--dibs-level", "L0", "--dibs-budget", "10")
    users = place.run("pytest", "-q", "-o", "asyncio_mode=auto", place.write("test_users.py", USERS_TEST))
    print(kit.strip().splitlines()[-1], "|", users.strip().splitlines()[-1])


def try_web(place: Place) -> None:
    place.import_modules("dibs.web")
    port = free_port()
    place.run("dibs", "enqueue", "mail", '{"to": "ada"}', **STORAGE)
    with place.running("dibs", "web", "--port", str(port), **STORAGE):
        require(fetch(f"http://127.0.0.1:{port}/"), "mail")


def try_metrics(place: Place) -> None:
    port = free_port()
    place.run("dibs", "enqueue", "mail", '{"to": "ada"}', **STORAGE)
    with place.running("dibs", "metrics", "--port", str(port), **STORAGE):
        require(fetch(f"http://127.0.0.1:{port}/metrics"), 'dibs_jobs{queue="mail",state="waiting"} 1.0')


def try_otel(place: Place) -> None:
    place.import_modules("dibs.telemetry.tracing")
    require(place.run("python", place.write("traced.py", TRACED)), "paid 7")


def try_uvloop(place: Place) -> None:
    place.write("loops.py", LOOP)
    with place.running("dibs", "worker", "loops:app", "--processes", "1", **STORAGE):
        require(place.run("python", "loops.py", **STORAGE), "uvloop")


def try_mcp(place: Place) -> None:
    """Send the first request of an assistant; the end of its input ends the server."""
    place.run("dibs", "enqueue", "letters", '{"to": "ada"}', **STORAGE)
    client = {"name": "release", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    require(
        place.run("dibs", "mcp", stdin=json.dumps(request) + "\n", **STORAGE), '"serverInfo":{"name":"dibs"'
    )
    place.run_page("howto/assistant.md")


def try_crypto(place: Place) -> None:
    key = place.run("python", "-c", "from dibs import EncryptedSerde; print(EncryptedSerde.new_key())")
    print("a key of", len(key.strip()), "characters")
    place.run_page("howto/encrypt.md")


def try_history(place: Place) -> None:
    place.import_modules("dibs.spark.history.duckdb_engine")
    place.run("dibs", "enqueue", "mail", '{"to": "ada"}', **STORAGE)
    place.run("dibs", "spark", "history", "--url", "file:./jobs", "--warehouse", "./history")
    place.run("dibs", "spark", "report", "--warehouse", "./history", "--out", "page.html")
    require((place.work / "page.html").read_text("utf-8"), "mail")


def try_spark(place: Place) -> None:
    place.import_modules("dibs.spark", "dibs.spark.source", "pyspark_dibs")
    output = place.run("python", place.write("mails.py", SPARK))
    require(output, "3 {'queued': 3} 0")
    require(output, "3 rows")


Use = Callable[[Place], None]
