"""`dibs workers`: list the holders of active jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

import rich_click as click
from attrs import define, field

from dibs.cli import json_output, options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode
from dibs.cli.progress import progress_bar
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import format_age, print_in_format
from dibs.model.job import ActiveRun
from dibs.storage.protocol import Storage

#: Number of ids that one call of the storage reads.
BATCH_SIZE: Final = 1000
COLUMNS: Final = ("worker", "#active", "#handed off", "=latest claim", "=longest run", "queues")


@define
class Holder:
    """The active jobs of one holder. Times are in ms since the epoch."""

    name: str
    #: Time of the latest and of the earliest claim of its active jobs.
    latest: int
    earliest: int
    #: Number of jobs under a lease of the holder.
    active: int = 0
    #: Number of jobs that the holder has handed off, which end with `dibs finish`.
    handed_off: int = 0
    queues: set[str] = field(factory=set)

    def add(self, queue: str, run: ActiveRun) -> None:
        self.queues.add(queue)
        self.latest, self.earliest = max(self.latest, run.claimed_at), min(self.earliest, run.claimed_at)
        if run.lease is None:
            self.handed_off += 1
        else:
            self.active += 1


@click.command("workers")
@options.queues
@options.url
@options.output
def command(queues: tuple[str, ...], *, url: str | None, output: Format) -> ExitCode:
    """List the workers that hold jobs, with the number of their active jobs and the age of their claims.

    The name of a worker is its --name, or host:process id. The storage knows workers only by the jobs that
    they hold: an idle worker is not listed, and a dead one is listed until its lease expires. The health port
    of a worker (`dibs worker --health`) shows whether it is alive. Exit code 1 if a queue does not exist.

    Example:
        dibs workers --url file:./jobs
    """
    return asyncio.run(_print_workers(queues, url, output))


async def _print_workers(queues: Sequence[str], url: str | None, output: Format) -> ExitCode:
    async with connect(url) as storage:
        names, code = await select_queues(storage, queues)
        found = await _read_holders(storage, names)
    print_in_format(
        output,
        {"workers": [_holder_fields(holder) for holder in found]},
        COLUMNS,
        [_holder_row(holder, output) for holder in found],
        optional=("#handed off",),
        empty="no worker holds a job",
    )
    return code


async def _read_holders(storage: Storage, queues: Sequence[str]) -> list[Holder]:
    counts = await storage.counts(queues)
    busy = {name: found.active for name, found in counts.items() if found.active}
    holders: dict[str, Holder] = {}
    done = 0
    with progress_bar("active jobs read", sum(busy.values())) as advance:
        for queue in busy:
            async for run in _read_runs(storage, queue):
                holder = holders.setdefault(run.holder, Holder(run.holder, run.claimed_at, run.claimed_at))
                holder.add(queue, run)
                done += 1
                advance(done)
    return sorted(holders.values(), key=lambda holder: holder.name)


async def _read_runs(storage: Storage, queue: str) -> AsyncIterator[ActiveRun]:
    after: str | None = None
    while True:
        page = await storage.list(queue, "active", after=after, limit=BATCH_SIZE)
        for _, slot in page.items:
            if slot.current is not None and slot.current.run is not None:
                yield slot.current.run
        if (after := page.after) is None:
            return


def _holder_fields(holder: Holder) -> dict[str, object]:
    return {
        "holder": holder.name,
        "active": holder.active,
        "handed_off": holder.handed_off,
        "latest_claim": json_output.format_time(holder.latest),
        "earliest_claim": json_output.format_time(holder.earliest),
        "queues": sorted(holder.queues),
    }


def _holder_row(holder: Holder, output: Format) -> tuple[object, ...]:
    if output == "lines":
        times = [json_output.format_time(moment) for moment in (holder.latest, holder.earliest)]
    else:
        now = time.time() * 1000
        times = [format_age(now - moment) for moment in (holder.latest, holder.earliest)]
    return holder.name, holder.active, holder.handed_off, *times, ", ".join(sorted(holder.queues))
