"""How fast a fleet is, and how soon it recovers: `python -m benchmarks.fleet [file|URL] [--kills 20]`.

Prints JSON lines. Recovery is the time from SIGKILL of whoever runs a job until the job is running again:
what a process held is settled by its supervisor, what a supervisor held is found by another after its lease.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dibs import Dibs
from dibs.model.retry import Immediate
from dibs.worker import WorkReport, run

app = Dibs()
#: A lease short enough to measure; recovery from a supervisor's death is counted beyond it.
LEASE = 2.0
JOBS = 5000


@app.task(queue="noop")
async def noop() -> None: ...


@app.task(queue="noop_sync")
def noop_sync() -> None: ...


@app.task(queue="ten_ms", size=1)
async def ten_ms() -> None:
    await asyncio.sleep(0.01)


@app.task(queue="ten_ms_sync", size=1)
def ten_ms_sync() -> None:
    time.sleep(0.01)


@app.task(queue="victim", timeout=None, max_stalls=None, backoff=Immediate())
async def victim(file: str) -> None:
    """Say who and when, and stay."""
    text = f"{os.getpid()} {time.monotonic()}\n"
    with Path(file).open("a") as out:  # noqa: ASYNC230 - one line
        out.write(text)
    await asyncio.Event().wait()


def cpu() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


async def throughput(queue: str, processes: int) -> dict[str, object]:
    async with Dibs() as place:
        await place.queue(queue).enqueue_many([{"args": [], "kwargs": {}}] * JOBS)
    before, begun = cpu(), time.monotonic()
    report: WorkReport = await run(
        app, queues=[queue], processes=processes, until="empty", reference="benchmarks.fleet:app"
    )
    seconds = time.monotonic() - begun
    assert report.total("completed") == JOBS
    return {
        "scenario": queue, "processes": processes, "jobs_per_second": round(JOBS / seconds),
        "cpu_us_per_job": round((cpu() - before) / JOBS * 1e6),
    }  # fmt: skip


def seen(file: Path, number: int) -> tuple[int, float]:
    """Wait for the n-th line."""
    while True:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) > number:
            pid, _, at = lines[number].partition(" ")
            return int(pid), float(at)
        time.sleep(0.001)


SUPERVISOR = f"""
import asyncio
from benchmarks.fleet import app
from dibs.worker import run
if __name__ == "__main__":
    asyncio.run(run(app, queues=["victim"], processes=2, lease={LEASE}, heartbeat=0.5, grace=0))
"""


def supervisor(script: Path, url: str | None) -> subprocess.Popen[bytes]:
    script.write_text(SUPERVISOR)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), **({"DIBS_URL": url} if url else {})}
    return subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)


def recovery(folder: Path, kills: int, whom: str) -> dict[str, object]:
    """Each kill meets a new crew: one that is killed again and again replaces processes more slowly."""
    took = [one_kill(folder, f"{whom}-{number}", whom) for number in range(kills)]
    return {
        "scenario": f"recovery after SIGKILL of a {whom}", "lease": LEASE, "of": kills,
        "p50_s": round(statistics.median(took), 3), "max_s": round(max(took), 3),
    }  # fmt: skip


def one_kill(folder: Path, name: str, whom: str) -> float:
    url = f"{os.environ['DIBS_URL']}_{name}" if os.environ["DIBS_URL"].startswith("file:") else None
    file, script = folder / name, folder / "supervisor.py"
    with Dibs(url).sync as place:
        place.queue("victim").enqueue({"args": [str(file)], "kwargs": {}}, id=name)
    crew = [supervisor(script, url) for _ in range(2)]
    pid, _ = seen(file, 0)
    killed = time.monotonic()
    os.kill(pid if whom == "process" else parent_of(pid), signal.SIGKILL)
    again = seen(file, 1)[1]
    for each in crew:
        each.kill()
        each.wait()
    return again - killed


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("place", nargs="?", default="file")
    words.add_argument("--kills", type=int, default=20)
    words.add_argument("--only", choices=["throughput", "recovery"])
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DIBS_URL"] = f"file:{folder}/jobs" if given.place == "file" else given.place
        if given.only != "recovery":
            for queue in ("noop", "noop_sync", "ten_ms", "ten_ms_sync"):
                for processes in (1, 2):
                    print(json.dumps(asyncio.run(throughput(queue, processes))), flush=True)
        if given.only != "throughput":
            for whom in ("process", "supervisor"):
                os.environ["DIBS_URL"] = (
                    f"file:{folder}/{whom}_jobs" if given.place == "file" else given.place
                )
                print(json.dumps(recovery(Path(folder), given.kills, whom)), flush=True)


if __name__ == "__main__":
    main()
