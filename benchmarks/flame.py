"""Draw flame graphs of a worker's CPU time: `python -m benchmarks.flame [--into FOLDER] [--jobs N]`.

One worker process runs jobs with an empty handler, in memory and on a private Redis, while py-spy samples its
stack 500 times a second. Waiting is not sampled, so the picture does not include the time of the Redis
server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dibs_conformance.servers import start_redis

#: Samples a second.
RATE: Final = 500
PROGRAM: Final = Path(__file__).parent / "flame_worker.py"


def find_py_spy() -> str:
    """Return the path of py-spy. Raises FileNotFoundError."""
    found = shutil.which("py-spy", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise FileNotFoundError("py-spy is not installed: pip install 'dibs[bench]'")
    return found


def draw(url: str, jobs: int, picture: Path, title: str) -> None:
    """Sample a worker while it runs `jobs` jobs on an empty storage, and write the flame graph as an SVG.

    Raises CalledProcessError if py-spy has no permission; its stderr says how to grant it.
    """
    command = [find_py_spy(), "record", "--function", "--rate", str(RATE), "--output", str(picture), "--pid"]
    worker_command = [sys.executable, str(PROGRAM), url, str(jobs)]
    with subprocess.Popen(worker_command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        # The worker enqueues the jobs before it prints "ready"; that is not sampled.
        _wait_for(worker.stdout, "ready")
        command.append(str(worker.pid))
        subprocess.run(command, check=True, capture_output=True)
    # py-spy uses its command line as the title.
    picture.write_text(picture.read_text().replace(" ".join(command), title))


def _wait_for(lines: Iterable[str], word: str) -> None:
    for line in lines:
        if line.strip() == word:
            return
    raise ChildProcessError(f"the worker ended before it printed {word!r}")


def main() -> None:
    """Draw both flame graphs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame", description=__doc__)
    parser.add_argument(
        "--into", type=Path, default=Path("docs/images"), help="folder of the pictures (default: docs/images)"
    )
    parser.add_argument("--jobs", type=int, default=300_000, help="jobs of each run (default: 300,000)")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    draw("memory:", options.jobs, options.into / "worker-memory.svg", "a worker's CPU, in memory")
    with start_redis() as redis:
        draw(redis.url, options.jobs, options.into / "worker-redis.svg", "a worker's CPU, on Redis")


if __name__ == "__main__":
    main()
