"""Programs that use blocking handles at exit, after a fork, and from threads after the main thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage_urls import unexpected_lines

OPENED = """
import atexit, os, sys, threading
from dibs import Dibs, DibsError

app = Dibs(os.environ["DIBS_URL"])
queue = app.sync.queue("q")
"""

LAST_WORDS = """
class Late:
    def __del__(self):
        try:
            queue.enqueue(3)
        except DibsError as error:
            print(type(error).__name__, "close the app before" in str(error))

late = Late()
atexit.register(lambda: print("at exit", queue.enqueue(2).verdict))
print(queue.enqueue(1).verdict)
"""

#: The main thread has ended, and Python waits for the other threads.
AFTER_MAIN = """
def work():
    threading.main_thread().join()
    print(queue.enqueue_many(range(3))[2].verdict, queue.counts().waiting)
    app.sync.close()

queue.counts()
threading.Thread(target=work).start()
"""

FORKED = """
print(queue.enqueue(1).verdict, flush=True)
child = os.fork()
if child == 0:
    print("child", queue.enqueue(2).verdict, queue.counts().waiting)
    app.sync.close()
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print("parent", queue.enqueue(3).verdict, queue.counts().waiting)
"""

#: Program -> its source, and the lines that it prints.
PROGRAMS = {
    "last words": (LAST_WORDS, ["queued", "at exit queued", "NotRunning True"]),
    "threads that go on": (AFTER_MAIN, ["queued 3"]),
    "a fork": (FORKED, ["queued", "child queued 2", "parent queued 3"]),
}


@pytest.mark.parametrize(("program", "printed"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_with_all_it_said_done(any_url: str, program: str, printed: list[str]) -> None:
    if program is FORKED and (any_url.startswith("memory") or not hasattr(os, "fork")):
        pytest.skip("there is nothing to share with a fork: test_storage_handle.py covers the error")
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", OPENED + program],
        env={**os.environ, "DIBS_URL": any_url},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (printed, []) == (done.stdout.splitlines(), unexpected_lines(done.stderr))
    assert 0 == done.returncode
