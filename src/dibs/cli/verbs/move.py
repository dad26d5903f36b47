"""`dibs move`: every queue of one place goes to another, by export, import_ and forget."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import msgspec
import rich_click as click
from msgspec import Struct
from msgspec.structs import asdict

from dibs.cli import options
from dibs.cli.output import Code, say, table, warn, write_json
from dibs.cli.place import opened, run
from dibs.errors import Refused
from dibs.model.job import JobData, NewJob, Slot
from dibs.model.requests import EnqueueRequest, Reject, Settings, SettingsPatch
from dibs.model.results import ExportRecord
from dibs.storage.protocol import Storage

#: Ids that travel in one step.
STEP: Final = 100
#: How often a move that waits for active jobs looks again, s.
PAUSE: Final = 0.2
#: Where the place that is moved to remembers, while a move is under way, which queues were paused before.
NOTES: Final = "dibs.move"
#: The year 2200: a note is a job that never falls due.
NEVER: Final = 7_258_118_400_000

#: Told how many ids of a queue are on their way or there.
Progress = Callable[[str, int], None]


class Moved(Struct, frozen=True):
    """What became of one queue: ids that are there now, and ids that stay where they were."""

    moved: int = 0
    left: int = 0


@click.command("move")
@click.option("--from", "source", metavar="URL", required=True, help="The place to empty.")
@click.option("--to", "target", metavar="URL", required=True, help="The place to fill.")
@click.option("--wait", is_flag=True, help="Wait until no job is active, rather than refuse.")
@options.json
def command(source: str, target: str, *, wait: bool, json: bool) -> Code:
    """Move every queue to another place: jobs in their order, successors, counts, outcomes and settings.

    Both places are named, so there is no --url. Queues are paused on both sides until all of it is there.
    Killed at any moment, the same command goes on where it stopped. Logs and request keys stay behind.

    Example: dibs move --from file:./jobs --to postgresql://localhost/jobs
    """
    done = run(_move(source, target, wait=wait, json=json))
    if json:
        write_json({"queues": {name: asdict(moved) for name, moved in done.items()}})
    elif done:
        table(["queue", "#moved", "#left"], [(name, each.moved, each.left) for name, each in done.items()])
    else:
        say("there are no queues here")
    if any(each.left for each in done.values()):
        warn("some ids are in both places, as different jobs: they stay where they were")
        return Code.REFUSED
    return Code.DONE


async def _move(source_url: str, target_url: str, *, wait: bool, json: bool) -> dict[str, Moved]:
    async with opened(source_url) as source, opened(target_url, new=True) as target:
        if source.url == target.url:
            raise Refused(f"{source.url} is both places", field="to")
        names = [info.name for info in await source.queues() if info.name != NOTES]
        with bar(shown=not json and sys.stderr.isatty()) as progress:
            return await move(source, target, names, wait=wait, progress=progress)


async def move(
    source: Storage, target: Storage, queues: Sequence[str], *, wait: bool, progress: Progress
) -> dict[str, Moved]:
    """Move queues whole, so that a death in between loses and doubles nothing.

    Both sides stand still until everything is there. An id is imported before it is forgotten; found on both
    sides after a death, it is known by the first of its revisions, which no other job has.
    """
    settings = {name: await hold(source, target, name) for name in queues}
    await quiet(source, queues, wait=wait)
    moved = {name: await move_queue(source, target, name, progress) for name in queues}
    for name, were in settings.items():
        await let_go(source, target, name, were)
    return moved


async def hold(source: Storage, target: Storage, queue: str) -> Settings:
    """Pause a queue on both sides, and note at the target how it was; a note from before counts."""
    settings = (await source.export(queue, limit=1)).settings
    job = NewJob(id=queue, data=JobData(payload=msgspec.json.encode(settings)), run_at=NEVER)
    await target.enqueue(NOTES, [EnqueueRequest(job=job, on_conflict=Reject())])
    (note,) = await target.get(NOTES, [queue])
    assert note.current is not None, "a note waits until the year 2200"  # noqa: S101
    await source.configure(queue, SettingsPatch(paused=True))
    await target.configure(queue, SettingsPatch(paused=True))
    return msgspec.json.decode(note.current.data.payload, type=Settings)


async def let_go(source: Storage, target: Storage, queue: str, settings: Settings) -> None:
    """Set the queue as it was on both sides; the note goes last."""
    await target.configure(queue, SettingsPatch(**asdict(settings)))
    await source.configure(queue, SettingsPatch(paused=settings.paused))
    await target.forget(NOTES, [queue])


async def quiet(source: Storage, queues: Sequence[str], *, wait: bool) -> None:
    """Return once no job is active under a lease. Raises Refused unless it may wait."""
    while busy := await active(source, queues):
        if not wait:
            shown = ", ".join(f"{name}: {count}" for name, count in busy.items())
            raise Refused(
                f"jobs are active ({shown}) and nothing was moved: --wait waits for them, "
                "`dibs resume` lets the queues go on"
            )
        for name in busy:
            # Those whose holder died will not end by themselves.
            await source.reap(name, STEP)
        await asyncio.sleep(PAUSE)


async def active(source: Storage, queues: Sequence[str]) -> dict[str, int]:
    counts = await source.counts(queues)
    under_lease = {name: found.active - found.handed_off for name, found in counts.items()}
    return {name: count for name, count in under_lease.items() if count > 0}


async def move_queue(source: Storage, target: Storage, queue: str, progress: Progress) -> Moved:
    """Move what a queue holds, page by page."""
    moved = left = 0
    after: str | None = None
    while True:
        page = await source.export(queue, after=after, limit=STEP)
        there = await take(source, target, queue, page.records)
        moved += there
        left += len(page.records) - there
        progress(queue, moved)
        if page.after is None:
            return Moved(moved, left)
        after = page.after


async def take(source: Storage, target: Storage, queue: str, records: Sequence[ExportRecord]) -> int:
    """Import some ids and forget them where they came from; return how many are at the target now."""
    if not records:
        return 0
    statuses = await target.import_(queue, records)
    ids = [record.id for record in records]
    there = dict(zip(ids, await target.get(queue, ids), strict=True))
    mine = [
        record
        for record, status in zip(records, statuses, strict=True)
        if status == "imported" or is_same(there[record.id], record.slot)
    ]
    gone = await unchanged(source, target, queue, mine)
    await source.forget(queue, gone)
    return len(gone)


def is_same(there: Slot, here: Slot) -> bool:
    """Tell whether what is at the target came from here: the same first revision, unless it is another job's.

    Two places can draw one number in the same millisecond; then what the job carries tells them apart. An
    update at the target changes what it carries, but draws a revision of its own.
    """
    mine, its = here.current or here.outcome, there.current or there.outcome
    if mine is None or its is None or mine.first != its.first:
        return False
    return mine.data == its.data or mine.revision != its.revision


async def unchanged(source: Storage, target: Storage, queue: str, records: Sequence[ExportRecord]) -> list[str]:
    """Return the ids that are still as they were exported; the others go from the target again.

    Somebody enqueued into the queue that is being moved: the next move takes what there is then.
    """
    ids = [record.id for record in records]
    now = await source.get(queue, ids)
    same = [
        record.id
        for record, slot in zip(records, now, strict=True)
        if latest_of(slot) == latest_of(record.slot)
    ]
    changed = sorted(set(ids) - set(same))
    if changed:
        warn(f"{queue}: {len(changed)} ids were changed while they moved and stay; move again")
        await target.forget(queue, changed)
    return same


def latest_of(slot: Slot) -> list[int]:
    """Return what tells one moment of an id from another; an outcome may expire under way."""
    return [part.revision for part in (slot.current, slot.successor) if part is not None]


def bar(*, shown: bool) -> AbstractContextManager[Progress]:
    """Return a progress bar on stderr, or one that says nothing."""
    if not shown:
        return nullcontext(lambda _queue, _count: None)
    return Bar()


class Bar:
    """A line for each queue."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - as in output.py: rich is slow to import
        from rich.progress import Progress as Lines  # noqa: PLC0415
        from rich.progress import TextColumn  # noqa: PLC0415

        self._lines = Lines(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.completed} moved"),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        self._lines.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._lines.stop()

    def _tell(self, queue: str, count: int) -> None:
        if queue not in self._tasks:
            self._tasks[queue] = self._lines.add_task(ascii(queue)[1:-1], total=None)
        self._lines.update(self._tasks[queue], completed=count)
