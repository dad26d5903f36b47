"""Run a job of four hours on Celery, RQ and dibs: `python -m benchmarks.four_hours [--hour SECONDS]`.

Each system has two workers on one Redis. At hour 2.5 a deploy replaces them: two new workers start, the old
ones get SIGTERM, and SIGKILL ten seconds later. An hour lasts `--hour` seconds (30), and so does the
visibility timeout of Celery. RQ looks for abandoned jobs every second, not every ten minutes.
The lease of dibs stays at its 15 seconds, half of such an hour.

All systems run beside each other. A row of the table has the runs of the job, the most of them at one time,
and the hours at which a run was done. Below it each run is a line with a letter for each quarter of an hour:
`=` for work, `*` for work beside another run of the job, `!` for the end of the job.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import define, field, frozen
from rich.console import Console
from rich.progress import Progress

from benchmarks.peers.environments import tree_pids
from dibs_conformance.servers import start_redis

PROGRAMS: Final = Path(__file__).parent / "programs"
ENVIRONMENT: Final = Path(".bench-peers") / "four_hours"
#: kombu imports packaging, which its requirements do not name.
PACKAGES: Final = ("celery[redis]==5.7.0", "packaging", "rq==3.0.0")
#: Hours of the deploy, and of the last look.
DEPLOY: Final = 2.5
END: Final = 10.0
#: Seconds between SIGTERM and SIGKILL.
GRACE: Final = 10


@frozen
class System:
    """A system with its settings: the program that enqueues, and the command of a worker."""

    name: str
    program: str
    mode: str
    worker: tuple[str, ...]
    is_dibs: bool = False


CELERY: Final = ("celery", "-A", "celery_app", "worker", "-c", "1", "-l", "ERROR", "-n", "{name}@%h")
#: RQ looks for abandoned jobs when a wait for a job ends, after the worker TTL less 15 s. The defaults are 7
#: minutes, ten minutes between two looks, and 30 s between two heartbeats; here all are a second.
RQ_TIMES: Final = ("--worker-ttl", "16", "--maintenance-interval", "1", "--job-monitoring-interval", "1")
RQ: Final = ("rq", "worker", "-q", "-u", "{url}", "-n", "{name}", *RQ_TIMES)
DIBS: Final = ("dibs", "worker", "dibs_app:app", "--processes", "1", "--grace", "1")
SYSTEMS: Final = (
    System("Celery, as installed", "celery_app.py", "early", CELERY),
    System("Celery, acks_late", "celery_app.py", "late", CELERY),
    System("RQ, as installed", "rq_app.py", "plain", RQ),
    System("RQ, Retry(max=3)", "rq_app.py", "retry", RQ),
    System("dibs", "dibs_app.py", "plain", DIBS, is_dibs=True),
    System("dibs, with steps", "dibs_app.py", "steps", DIBS, is_dibs=True),
)


@frozen
class Run:
    """A run of the job, in hours since the enqueue: its start, its last sign of work, its end if it came."""

    start: float
    last: float
    end: float | None


@define
class Trial:
    """A system at work: its workers, and the journal that its job writes."""

    system: System
    url: str
    hour: float
    folder: Path
    begun: float = 0.0
    #: The workers that were not stopped.
    workers: list[subprocess.Popen[bytes]] = field(factory=list)
    started: int = 0

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def enqueue(self) -> None:
        self.begun = time.time()
        subprocess.run([*self._python(), PROGRAMS / self.system.program], env=self._variables(), check=True)

    def start_workers(self) -> None:
        for _ in range(2):
            self.started += 1
            values = {"name": f"w{self.started}", "url": self.url}
            program, *words = [word.format(**values) for word in self.system.worker]
            place = Path(self._python()[0]).parent / program
            self.workers.append(
                subprocess.Popen(
                    [place, *words],
                    env=self._variables(),
                    cwd=PROGRAMS,
                    stdout=subprocess.DEVNULL,
                    stderr=(self.folder / f"worker-{self.started}").open("wb"),
                )
            )

    def stop(self, workers: Sequence[subprocess.Popen[bytes]], sign: signal.Signals) -> None:
        """Send a signal to the workers; SIGKILL to all their processes, as the end of a container does."""
        for worker in workers:
            for pid in tree_pids(worker.pid) if sign == signal.SIGKILL else [worker.pid]:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    continue

    def runs(self) -> list[Run]:
        """Return the runs of the job in the order of their starts."""
        signs: dict[str, list[tuple[float, str]]] = {}
        for line in self.journal.read_text("utf-8").splitlines() if self.journal.exists() else ():
            at, run, what = line.split(" ", 2)
            signs.setdefault(run, []).append(((float(at) - self.begun) / self.hour, what))
        found = [
            Run(seen[0][0], seen[-1][0], next((at for at, what in seen if what == "end"), None))
            for seen in signs.values()
        ]
        return sorted(found, key=lambda run: run.start)

    def _python(self) -> list[str]:
        return [sys.executable if self.system.is_dibs else str(ENVIRONMENT.absolute() / "bin" / "python")]

    def _variables(self) -> dict[str, str]:
        mine = {
            "URL": self.url,
            "MODE": self.system.mode,
            "HOUR": str(self.hour),
            "JOURNAL": str(self.journal),
        }
        return {**os.environ, **mine, "PYTHONPATH": str(PROGRAMS)}


def most_at_once(runs: Sequence[Run]) -> int:
    return max((sum(other.start <= run.start < other.last for other in runs) for run in runs), default=0)


def picture(runs: Sequence[Run]) -> list[str]:
    """Return a line for each run, with a letter for each quarter of an hour."""
    return [
        "".join(
            _letter(run, [other for other in runs if other is not run], n / 4) for n in range(int(END * 4))
        )
        for run in runs
    ]


def _letter(run: Run, others: Sequence[Run], at: float) -> str:
    middle = at + 0.125
    if run.end is not None and at <= run.end < at + 0.25:
        return "!"
    if not run.start <= middle < run.last:
        return "."
    return "*" if any(other.start <= middle < other.last for other in others) else "="


def report(trials: Sequence[Trial]) -> str:
    """Return the table and the pictures as Markdown."""
    lines = ["| | runs | most at once | done at hour |", "| --- | --- | --- | --- |"]
    for trial in trials:
        runs = trial.runs()
        ends = [f"{run.end:.1f}" for run in runs if run.end is not None]
        done = ", ".join(sorted(ends)) or "never"
        lines.append(f"| {trial.system.name} | {len(runs)} | {most_at_once(runs)} | {done} |")
    for trial in trials:
        lines += ["", f"    {trial.system.name}", *(f"    {line}" for line in picture(trial.runs()))]
    return "\n".join(lines)


def install() -> None:
    # pip writes the commands last, so an environment whose installation was interrupted is made again.
    if not all((ENVIRONMENT / "bin" / command).exists() for command in ("celery", "rq")):
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([ENVIRONMENT / "bin" / "pip", "install", "-q", *PACKAGES], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hour", type=float, default=30.0, metavar="SECONDS", help="length of an hour")
    options = parser.parse_args()
    install()
    server = start_redis(databases=str(len(SYSTEMS)))
    try:
        with tempfile.TemporaryDirectory() as folder:
            trials = [
                Trial(
                    system,
                    f"{server.url.rpartition('/')[0]}/{number}",
                    options.hour,
                    Path(folder) / str(number),
                )
                for number, system in enumerate(SYSTEMS)
            ]
            try:
                play(trials, options.hour)
                print(report(trials))
            finally:
                for trial in trials:
                    trial.stop(trial.workers, signal.SIGKILL)
    finally:
        server.stop()


def play(trials: Sequence[Trial], hour: float) -> None:
    """Start the workers, enqueue the jobs, deploy in the middle, and wait until the last hour."""
    for trial in trials:
        trial.folder.mkdir()
        trial.start_workers()
    time.sleep(GRACE)
    for trial in trials:
        trial.enqueue()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("hours", total=END)
        begun, deployed = trials[0].begun, False
        while (now := (time.time() - begun) / hour) < END:
            progress.update(task, completed=now)
            time.sleep(0.2)
            if now >= DEPLOY and not deployed:
                deployed = True
                deploy(trials)


def deploy(trials: Sequence[Trial]) -> None:
    """Start new workers, and stop the old ones."""
    old = [(trial, list(trial.workers)) for trial in trials]
    for trial, workers in old:
        trial.start_workers()
        trial.stop(workers, signal.SIGTERM)
    time.sleep(GRACE)
    for trial, workers in old:
        trial.stop(workers, signal.SIGKILL)
        trial.workers = [worker for worker in trial.workers if worker not in workers]


if __name__ == "__main__":
    main()
