"""`dibs move`: move all queues from one storage to another.

Each step exports some ids from the source, imports them into the target, and then forgets them in the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import rich_click as click
from attrs import asdict, frozen
from msgspec import UNSET, structs

from dibs.cli import options
from dibs.cli.output import ExitCode, print_json, print_lines, print_warning
from dibs.cli.progress import Advance, progress_bar
from dibs.cli.storage_access import connect
from dibs.cli.tables import print_table
from dibs.errors import Refused
from dibs.maintenance.reap import reap
from dibs.model.job import JobData, NewJob, Slot
from dibs.model.requests import EnqueueRequest, Reject, Settings, SettingsPatch
from dibs.model.results import ExportRecord
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.protocol import Storage

#: Most ids that one step moves.
BATCH_SIZE: Final = 100
#: Time between two checks for active jobs with --wait, s.
POLL_INTERVAL: Final = 0.2
#: Queue of the target that holds the original settings of each queue while a move is in progress.
NOTES_QUEUE: Final = "dibs.move"
#: The queues that are not moved. Workers of the target write records of their own.
HIDDEN_QUEUES: Final = (NOTES_QUEUE, WORKERS_QUEUE)
#: A time in the year 2200, ms since the epoch. Each note is a waiting job that is due then, so never runs.
NEVER: Final = 7_258_118_400_000


@frozen
class MoveCounts:
    """The number of ids of one queue that were moved, and of those that stay."""

    #: Number of ids that this call moved to the target.
    moved: int = 0
    #: Number of ids that stay in the source, because the target has another job with this id.
    left: int = 0


@click.command("move")
@click.option("--from", "source", metavar="URL", required=True, help="Storage to move from.")
@click.option("--to", "target", metavar="URL", required=True, help="Storage to move to.")
@click.option("--wait", is_flag=True, help="Wait until no job is active. Default: stop with an error.")
@options.json
async def command(source: str, target: str, *, wait: bool, json: bool) -> ExitCode:
    """Move all queues to another storage: jobs in their order, successors, counts, outcomes and settings.

    The command uses --from and --to in place of --url. It pauses the queues in both storages until everything
    is moved. If it is killed, repeat it: it continues where it stopped. Logs and request keys are not moved.

    Example:
        dibs move --from file:./jobs --to postgresql://localhost/jobs
    """
    async with connect(source) as old, connect(target, create=True) as new:
        if old.url == new.url:
            raise Refused(f"--from and --to are both {old.url}: name two storages", field="to")
        names = [info.name for info in await old.queues() if info.name not in HIDDEN_QUEUES]
        with progress_bar("ids moved", None) as advance:
            done = await move(old, new, names, wait=wait, advance=advance)
    if json:
        print_json({"queues": {name: asdict(moved) for name, moved in done.items()}})
    elif done:
        print_table(
            ["queue", "#moved", "#left"], [(name, each.moved, each.left) for name, each in done.items()]
        )
    else:
        print_lines("the source has no queues")
    if any(each.left for each in done.values()):
        print_warning("some ids exist in both storages as different jobs: they stay in the source")
        return ExitCode.REFUSED
    return ExitCode.DONE


async def move(
    source: Storage, target: Storage, queues: Sequence[str], *, wait: bool, advance: Advance
) -> dict[str, MoveCounts]:
    """Move queues completely. A process that dies in between loses no job and duplicates none.

    The queues are paused in both storages until everything is moved. An id is imported into the target before
    it is forgotten in the source. After a crash both storages may have the same job. Then both copies have
    the same first revision, the number of the job's first enqueue, which no other job has.
    """
    await refuse_limits(source, target, queues)
    settings = {name: await pause_queue(source, target, name) for name in queues}
    await wait_until_idle(source, queues, wait=wait)
    moved: dict[str, MoveCounts] = {}
    for name in queues:
        before = sum(each.moved for each in moved.values())
        moved[name] = await move_queue(source, target, name, advance, before)
    for name, original in settings.items():
        await restore_settings(source, target, name, original)
    return moved


async def refuse_limits(source: Storage, target: Storage, queues: Sequence[str]) -> None:
    """Raise Refused, before the move changes a queue, for a setting that the target could not obey."""
    able, settings = target.capabilities, {info.name: info.settings for info in await source.queues()}
    moved = {name: settings[name] for name in queues if name in settings}
    fair = [name for name, one in moved.items() if (one.fair or one.shares) and not able.fair]
    if fair:
        raise Refused(
            f"queues have turns of keys ({', '.join(fair)}), and {target.url} does not have the capability "
            "`fair`, so no job was moved: choose another target, or remove the turns with "
            "`dibs configure QUEUE --fair no --share KEY=none`",
            field="to",
        )
    limited = [name for name, one in moved.items() if one.has_limits and not able.limits]
    if limited:
        raise Refused(
            f"queues have limits by key or rate ({', '.join(limited)}), and {target.url} does not have the "
            "capability `limits`, so no job was moved: choose another target, or remove the limits with "
            "`dibs configure QUEUE --per-key none --rate none --key-rate none`",
            field="to",
        )


async def pause_queue(source: Storage, target: Storage, queue: str) -> Settings:
    """Pause a queue in both storages, and return its original settings.

    A note in the target keeps the original settings, in case this process dies. If an interrupted move left
    a note, return the settings of that note: the queue is paused already.
    """
    settings = (await source.export(queue, limit=1)).settings
    job = NewJob(id=queue, data=JobData(payload=msgspec.json.encode(settings)), run_at=NEVER)
    await target.enqueue(NOTES_QUEUE, [EnqueueRequest(job=job, on_conflict=Reject())])
    (note,) = await target.get(NOTES_QUEUE, [queue])
    assert note.current is not None, "bug in dibs: the note of a move is not a waiting job"  # noqa: S101
    await source.configure(queue, SettingsPatch(paused=True))
    await target.configure(queue, SettingsPatch(paused=True))
    return msgspec.json.decode(note.current.data.payload, type=Settings)


async def restore_settings(source: Storage, target: Storage, queue: str, settings: Settings) -> None:
    """Give the queue its original settings in both storages, then remove the note.

    `fail_handler` is only ever set to true: a worker of the target may have set it already.
    """
    patch = SettingsPatch(**structs.asdict(settings))
    await target.configure(
        queue, patch if settings.fail_handler else structs.replace(patch, fail_handler=UNSET)
    )
    await source.configure(queue, SettingsPatch(paused=settings.paused))
    await target.forget(NOTES_QUEUE, [queue])


async def wait_until_idle(source: Storage, queues: Sequence[str], *, wait: bool) -> None:
    """Wait until no worker holds a job of the queues. Return jobs of dead workers to their queues first.

    With `wait` false, raise Refused at once if a worker holds a job. Handed-off jobs have no worker.
    """
    while True:
        # Jobs under expired leases count as active until they are reaped.
        for name in queues:
            await reap(source, name)
        busy = await active_counts(source, queues)
        if not busy:
            return
        if not wait:
            shown = ", ".join(f"{name}: {count}" for name, count in busy.items())
            raise Refused(
                f"jobs are active ({shown}) and no job was moved: use --wait to wait for them, "
                "or `dibs resume` to continue without a move"
            )
        await asyncio.sleep(POLL_INTERVAL)


async def active_counts(source: Storage, queues: Sequence[str]) -> dict[str, int]:
    """Return the number of jobs that workers hold, for each queue with such jobs."""
    counts = await source.counts(queues)
    under_lease = {name: found.active - found.handed_off for name, found in counts.items()}
    return {name: count for name, count in under_lease.items() if count > 0}


async def move_queue(
    source: Storage, target: Storage, queue: str, advance: Advance, before: int = 0
) -> MoveCounts:
    """Move the ids of a queue, one page at a time; call `advance` after each page.

    `before` is the number of ids that were moved of other queues.
    """
    moved = left = 0
    after: str | None = None
    while True:
        page = await source.export(queue, after=after, limit=BATCH_SIZE)
        count = await move_records(source, target, queue, page.records)
        moved += count
        left += len(page.records) - count
        advance(before + moved)
        if page.after is None:
            return MoveCounts(moved, left)
        after = page.after


async def move_records(source: Storage, target: Storage, queue: str, records: Sequence[ExportRecord]) -> int:
    """Import ids into the target and forget them in the source; return how many were moved."""
    if not records:
        return 0
    statuses = await target.import_(queue, records)
    ids = [record.id for record in records]
    in_target = dict(zip(ids, await target.get(queue, ids), strict=True))
    imported = [
        record
        for record, status in zip(records, statuses, strict=True)
        if status == "imported" or is_same_job(in_target[record.id], record.slot)
    ]
    unchanged = await revert_changed(source, target, queue, imported)
    await source.forget(queue, unchanged)
    return len(unchanged)


def is_same_job(target: Slot, source: Slot) -> bool:
    """Return whether the slot in the target was imported from the source: both have the same first revision.

    A revision is the number of an enqueue. Two storages may give different jobs the same revision in the same
    millisecond, so compare the data of the jobs, too. Data may differ after an update in the target, but an
    update also has a new revision.
    """
    ours, theirs = source.current or source.outcome, target.current or target.outcome
    if ours is None or theirs is None or ours.first != theirs.first:
        return False
    return ours.data == theirs.data or ours.revision != theirs.revision


async def revert_changed(
    source: Storage, target: Storage, queue: str, records: Sequence[ExportRecord]
) -> list[str]:
    """Return the ids that did not change since their export, and remove the changed ones from the target.

    An id changes if a program enqueues it during the move. The next move takes its new state.
    """
    ids = [record.id for record in records]
    now = await source.get(queue, ids)
    same = [
        record.id
        for record, slot in zip(records, now, strict=True)
        if revisions_of(slot) == revisions_of(record.slot)
    ]
    changed = sorted(set(ids) - set(same))
    if changed:
        print_warning(f"{queue}: {len(changed)} ids changed during the move and were not moved: move again")
        await target.forget(queue, changed)
    return same


def revisions_of(slot: Slot) -> list[int]:
    """Return the revisions of the jobs in a slot. Every enqueue of the id changes one of them.

    The outcome is left out, because it may expire between two reads.
    """
    return [part.revision for part in (slot.current, slot.successor) if part is not None]
