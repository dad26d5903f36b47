"""Draw where a worker's CPU goes: `python -m benchmarks.flame [--into FOLDER] [--jobs N]`.

One worker process drains jobs that do nothing, in memory and on a Redis of its own, while py-spy looks at
it 500 times a second. What waits is not drawn: on Redis the time of the server is not in the picture.
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

#: Looks a second.
RATE: Final = 500
#: The program that is raced against the peers: the same jobs, the same settings.
PROGRAM: Final = Path(__file__).parent / "peers/programs/ours.py"


def spy() -> str:
    """Return where py-spy is. Raises FileNotFoundError."""
    found = shutil.which("py-spy", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise FileNotFoundError("py-spy is not here: pip install 'dibs[bench]'")
    return found


def draw(url: str, jobs: int, picture: Path, title: str) -> None:
    """Drain so many jobs at an empty place, and write what its process does meanwhile as an SVG.

    Raises CalledProcessError where py-spy may not look at another process (it says how that is allowed).
    """
    environment = {**os.environ, "PEER_URL": url}
    if url != "memory:":
        subprocess.run(_program("put", jobs), env=environment, check=True, stdout=subprocess.DEVNULL)
    words = [spy(), "record", "--function", "--rate", str(RATE), "--output", str(picture), "--pid"]
    with subprocess.Popen(
        _program("drain", jobs), env=environment, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout
        # In memory it enqueues its jobs first, which is not what is drawn.
        _wait_for(worker.stdout, "ready")
        words.append(str(worker.pid))
        subprocess.run(words, check=True, capture_output=True)
    # py-spy's own title is its command line.
    picture.write_text(picture.read_text().replace(" ".join(words), title))


def _program(verb: str, jobs: int) -> list[str]:
    return [sys.executable, str(PROGRAM), verb, str(jobs)]


def _wait_for(lines: Iterable[str], word: str) -> None:
    for line in lines:
        if line.strip() == word:
            return
    raise ChildProcessError(f"the worker ended before it was {word}")


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame", description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("docs/images"), help="the folder of the pictures")
    parser.add_argument("--jobs", type=int, default=300_000)
    words = parser.parse_args()
    words.into.mkdir(parents=True, exist_ok=True)
    draw("memory:", words.jobs, words.into / "worker-memory.svg", "a worker's CPU, in memory")
    with start_redis() as redis:
        draw(redis.url, words.jobs, words.into / "worker-redis.svg", "a worker's CPU, on Redis")


if __name__ == "__main__":
    main()
