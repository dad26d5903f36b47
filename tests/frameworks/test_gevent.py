"""Blocking calls in programs that gevent or eventlet has patched, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ALL_SCHEMES
from tests.storage_urls import unexpected_lines

PROJECT = Path(__file__).parents[2]

PATCH = "from gevent import monkey; monkey.patch_all()\n"
IMPORT = """
import asyncio, os, signal, sys, threading
import gevent
from dibs import ConfigurationError, Dibs, WaitTimeout

app = Dibs(os.environ["DIBS_URL"])
queue = app.sync.queue("q")
"""
PATCHED_FIRST = PATCH + IMPORT
PATCHED_LATER = IMPORT + PATCH
#: The threads are patched after dibs has started its own.
PATCHED_AFTER_USE = IMPORT + "queue.counts()\n" + PATCH

VERBS = """
print([queue.enqueue(n, id=str(n)).verdict for n in range(3)])
print([status.id for status in queue.list("waiting")], queue.counts().waiting)

def settle():
    with queue.receive(wait=30) as claims:
        for claim in claims:
            claim.complete(claim.data * 2)
            if claim.data == 3:
                return

worker = gevent.spawn(settle)
print(queue.enqueue_and_wait(3, wait=30))
worker.join()
with queue.events(after='') as events:
    print([next(events).kind for _ in range(3)])
app.sync.close()
"""

#: 1,000 greenlets call at once, and 200 of them wait for a result; a ticker shows that the others go on.
CROWD = """
ticks, stored = 0, []

def tick():
    global ticks
    while True:
        gevent.sleep(0.01)
        ticks += 1

def wait_in_vain():
    try:
        queue.enqueue("never done").result(wait=1)
    except WaitTimeout:
        stored.append("timeout")

ticker = gevent.spawn(tick)
callers = [gevent.spawn(lambda: stored.append(queue.enqueue(1).verdict)) for _ in range(800)]
gevent.joinall(callers + [gevent.spawn(wait_in_vain) for _ in range(200)], raise_error=True)
ticker.kill()
print(stored.count("queued"), stored.count("timeout"), queue.counts().waiting, ticks > 20)
app.sync.close()
"""

#: Django's ORM and asgiref refuse to work where they see a running loop.
BESIDE_ASYNCIO = """
async def enqueue():
    await asyncio.sleep(0)
    return (await app.queue("q").enqueue(2)).verdict

def sees_a_loop():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

queue.enqueue(1)
print(sees_a_loop(), asyncio.run(enqueue()), queue.enqueue(3).verdict)
thread = threading.Thread(target=lambda: print(queue.enqueue(4).verdict))
thread.start(), thread.join()
print(gevent.get_hub().threadpool.apply(lambda: queue.enqueue(5).verdict))
app.sync.close()
"""

INTERRUPTED = """
gevent.get_hub().NOT_ERROR += (KeyboardInterrupt,)  # the hub prints all other errors
ticket = queue.enqueue("never done")
# The hub sends the signal, so it arrives while this greenlet waits.
gevent.spawn_later(0.3, os.kill, os.getpid(), signal.SIGINT)
try:
    ticket.result(wait=60)
except KeyboardInterrupt:
    print("interrupted")
ticket = queue.enqueue("never done")
with gevent.Timeout(0.3, False):
    ticket.result(wait=60)
    print("not reached")
print(queue.counts().waiting)
app.sync.close()
"""

FORKED = """
print(queue.enqueue(1).verdict, flush=True)
child = os.fork()
if child == 0:
    queue.enqueue(2)
    print("child", queue.counts().waiting, flush=True)
    app.sync.close()
    os._exit(0)
os.waitpid(child, 0)
queue.enqueue(3)
print("parent", queue.counts().waiting)
app.sync.close()
"""

#: Functions of atexit, one registered before dibs was imported; the app stays open.
EXIT = """
import atexit
print(queue.enqueue(1).verdict)
atexit.register(lambda: print("at exit", queue.enqueue(2).verdict))
with gevent.Timeout(0.1, False):
    queue.enqueue(3).result(wait=60)
"""
EARLY_EXIT = """
import atexit

def late():
    try:
        queue.enqueue(4)
    except NotRunning as error:
        print("close the app before" in str(error))

atexit.register(late)
from dibs import NotRunning
"""

VERB_LINES = [
    "['queued', 'queued', 'queued']",
    "['0', '1', '2'] 3",
    "6",
    "['completed', 'completed', 'completed']",
]
#: Program -> its source, and the lines that it prints.
PROGRAMS = {
    "verbs": (PATCHED_FIRST + VERBS, VERB_LINES),
    "patched after the import": (PATCHED_LATER + VERBS, VERB_LINES),
    "patched after the first call": (PATCHED_AFTER_USE + VERBS, VERB_LINES),
    "crowd": (PATCHED_FIRST + CROWD, ["800 200 1000 True"]),
    "beside asyncio": (PATCHED_FIRST + BESIDE_ASYNCIO, ["False queued queued", "queued", "queued"]),
    "interrupted": (PATCHED_FIRST + INTERRUPTED, ["interrupted", "2"]),
    "exit": (EARLY_EXIT + PATCHED_FIRST + EXIT, ["queued", "at exit queued", "True"]),
    "forked": (PATCHED_FIRST + FORKED, ["queued", "child 2", "parent 3"]),
}


def run_program(source: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", source],
        env={**os.environ, "DIBS_URL": url},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


#: The programs that run by default on each storage. The marker `chaos` runs the other programs there, too.
BY_DEFAULT = {
    "memory": ("verbs",),
    "file": tuple(PROGRAMS),
    "redis": ("verbs", "crowd"),
    "postgresql": ("verbs", "crowd", "forked"),
}


def program_on(scheme: str, name: str) -> Any:
    marks = () if name in BY_DEFAULT[scheme] else pytest.mark.chaos
    return pytest.param(scheme, *PROGRAMS[name], id=f"{scheme}-{name}", marks=marks)


@pytest.mark.parametrize(
    ("any_url", "source", "printed"),
    [
        program_on(scheme, name)
        for scheme in ALL_SCHEMES
        for name in PROGRAMS
        if (scheme, name) != ("memory", "forked")  # a fork cannot reach the jobs
    ],
    indirect=["any_url"],
)
def test_greenlets_make_blocking_calls(any_url: str, source: str, printed: list[str]) -> None:
    done = run_program(source, any_url)

    assert (printed, [], 0) == (done.stdout.splitlines(), unexpected_lines(done.stderr), done.returncode), (
        done.stdout + done.stderr
    )


#: With dnspython, httpcore2 and trio installed, `import eventlet` fails unless its DNS is off.
EVENTLET = """
import os
os.environ["EVENTLET_NO_GREENDNS"] = "yes"
import eventlet
eventlet.monkey_patch()
from dibs import ConfigurationError, Dibs

app = Dibs(os.environ["DIBS_URL"])
for _ in range(2):
    try:
        app.sync.queue("q").enqueue(1)
    except ConfigurationError as error:
        print(error)
"""


def test_eventlet_is_refused_at_each_call_with_the_way_out(tmp_path: Path) -> None:
    done = run_program(EVENTLET, f"file:{tmp_path}/jobs")

    assert [True, True] == ["use gevent or threads" in line for line in done.stdout.splitlines()], done.stderr
    assert (0, "") == (done.returncode, done.stderr)
    assert not (tmp_path / "jobs").exists()


WORKER = """
from dibs import Dibs

app = Dibs()

@app.task(timeout=30)
def double(n: int) -> int:
    return n * 2

if __name__ == "__main__":
    app.sync.work(until="empty")
"""


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("gevent", "dibs worker"),
        ("gevent", "app.sync.work"),
        pytest.param("gevent", "dibs worker --processes 0", marks=pytest.mark.chaos),
        ("eventlet", "dibs worker"),
        pytest.param("eventlet", "dibs worker --processes 0", marks=pytest.mark.chaos),
        pytest.param("eventlet", "app.sync.work", marks=pytest.mark.chaos),
    ],
)
def test_a_worker_in_a_patched_process_is_refused(command: str, library: str, tmp_path: Path) -> None:
    patch = PATCH if library == "gevent" else EVENTLET.partition("from dibs")[0]
    (tmp_path / "shop.py").write_text(patch + WORKER, "utf-8")
    arguments = ["-m", *command.split(), "shop:app"] if command.startswith("dibs") else ["shop.py"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env={**os.environ, "DIBS_URL": "file:jobs"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert f"{library} has patched the threads of this process" in done.stderr
    assert done.returncode != 0
