"""The command `python -m dibs_conformance.simulate`: one seed, or many; a failing seed is made small."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Final

import msgspec
import rich_click as click
from msgspec.structs import replace

from dibs_conformance.simulation.faults import KINDS
from dibs_conformance.simulation.minimizer import minimize
from dibs_conformance.simulation.simulation import Options, Result, simulate

#: The variable with the options of a child, as JSON; the child prints its result as JSON.
CHILD: Final = "DIBS_SIMULATION"
DEFAULTS: Final = Options()


@click.command(name="simulate")
@click.option("--seed", type=int, default=DEFAULTS.seed, show_default=True, help="The first seed.")
@click.option(
    "--seeds", type=int, default=1, show_default=True, help="The number of seeds; 0: until --minutes."
)
@click.option(
    "--hours", type=float, default=DEFAULTS.hours, show_default=True, help="Simulated hours of each seed."
)
@click.option(
    "--workers", type=int, default=DEFAULTS.workers, show_default=True, help="Machines that run a worker."
)
@click.option(
    "--producers", type=int, default=DEFAULTS.producers, show_default=True, help="Machines that enqueue."
)
@click.option(
    "--pause", type=float, default=DEFAULTS.pause, show_default=True, help="Mean seconds between two actions."
)
@click.option("--minutes", type=float, default=None, help="Begin no seed after this time.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Seeds that run at the same time.")
@click.option(
    "--without",
    "without_kinds",
    multiple=True,
    type=click.Choice(KINDS),
    help="A kind of fault to leave out.",
)
@click.option("--options", "given", default="", help="The options as JSON, as a failure prints them.")
@click.option(
    "--minimize/--no-minimize",
    "make_small",
    default=True,
    show_default=True,
    help="Make a failing seed small.",
)
def main(
    *,
    seed: int,
    seeds: int,
    hours: float,
    workers: int,
    producers: int,
    pause: float,
    minutes: float | None,
    jobs: int,
    without_kinds: Sequence[str],
    given: str,
    make_small: bool,
) -> None:
    """Simulate clients, workers and a storage under faults. The exit code is 1 if a promise was broken.

    Clients, supervisors and workers of dibs run unchanged in one process, with virtual time and a simulated
    network. The same seed and version give the same history bit for bit.
    """
    first = Options(
        seed=seed, hours=hours, workers=workers, producers=producers, pause=pause,
        without_kinds=frozenset(without_kinds),
    )  # fmt: skip
    if given:
        first = msgspec.json.decode(given, type=Options)
    numbers = range(first.seed, first.seed + seeds) if seeds else count(first.seed)
    deadline = None if minutes is None else monotonic() + 60 * minutes
    all_options = (replace(first, seed=number) for number in numbers)
    results = run_all(all_options, jobs, deadline, show_hours=seeds == 1)
    total = Totals()
    for result in results:
        total.add(result)
        print_result(result)
        if result.clause:
            report_failure(result, make_small=make_small)
    total.print()
    sys.exit(bool(total.failures))


def run_all(
    options: Iterator[Options], jobs: int, deadline: float | None, *, show_hours: bool
) -> Iterator[Result]:
    """Yield the results of the simulations, each in a process of its own, in their order."""

    def run_unless_late(one: Options) -> Result | None:
        late = deadline is not None and monotonic() > deadline
        return None if late else run_child(one, click.echo if show_hours else None)

    with ThreadPoolExecutor(jobs) as pool:
        pending = [
            pool.submit(run_unless_late, one) for _, one in zip(range(2 * jobs), options, strict=False)
        ]
        while pending:
            result = pending.pop(0).result()
            if result is None:
                return
            if (following := next(options, None)) is not None:
                pending.append(pool.submit(run_unless_late, following))
            yield result


def run_child(options: Options, on_hour: Callable[[str], None] | None = None) -> Result:
    """Run a simulation in a new process. The seed also gives the order of its sets of text."""
    environment = os.environ | {
        CHILD: msgspec.json.encode(options).decode(),
        "PYTHONHASHSEED": str(options.seed % 2**32),
    }
    command = [sys.executable, "-m", "dibs_conformance.simulate"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None  # noqa: S101 - it is a pipe
        last = ""
        for line in child.stdout:
            if last and on_hour is not None:
                on_hour(last)
            last = line.rstrip("\n")
    if child.returncode:
        raise click.ClickException(
            f"the simulation of seed {options.seed} ended with {child.returncode}: {last}"
        )
    return msgspec.json.decode(last, type=Result)


def run_as_child() -> None:
    """Run the simulation that the parent asks for, and exit; return if no parent asks."""
    given = os.environ.pop(CHILD, None)
    if given is None:
        return
    result = simulate(msgspec.json.decode(given, type=Options), lambda line: print(line, flush=True))  # noqa: T201 - to the parent
    print(msgspec.json.encode(result).decode(), flush=True)  # noqa: T201
    os._exit(0)  # the objects of dead processes complain when an interpreter removes them


class Totals:
    """The sums over all seeds."""

    def __init__(self) -> None:
        self.seeds = self.failures = self.jobs = self.faults = self.events = 0
        self.hours = self.cpu = 0.0

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.failures += bool(result.clause)
        self.jobs += result.counts.get("enqueued", 0)
        self.faults += result.injected
        self.events += result.events
        self.hours += result.simulated / 3600
        self.cpu += result.cpu

    def print(self) -> None:
        click.echo(
            f"{self.seeds} seeds, {self.hours:,.1f} simulated hours, {self.events:,} events, "
            f"{self.jobs:,} jobs, {self.faults:,} faults, {self.cpu:,.0f} CPU seconds: {self.failures} broken"
        )


def print_result(result: Result) -> None:
    state = f"BROKEN {result.clause}" if result.clause else "kept"
    click.echo(
        f"seed {result.options.seed}: {state}  {result.simulated / 3600:.2f} h, "
        f"{result.counts.get('enqueued', 0):,} jobs, {result.injected:,} faults, {result.cpu:.1f} s CPU, "
        f"digest {result.digest}"
    )


def report_failure(result: Result, *, make_small: bool) -> None:
    """Print a broken promise with the latest faults, and the smallest options that break it."""
    click.echo(f"  {result.what}")
    small = result
    if make_small:
        with suppress(KeyboardInterrupt):
            small = minimize(result, run_child, lambda text: click.echo(f"  smaller: {text}"))
        click.echo(f"  {small.clause}: {small.what}")
    for line in small.latest:
        click.echo(f"    {line}")
    options = msgspec.json.encode(small.options).decode()
    click.echo(f"  again: python -m dibs_conformance.simulate --options '{options}' --no-minimize")
