"""Bugs of the output of runs. The contract's authors named most of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dibs.model import events, transitions
from dibs.model.job import EMPTY, ActiveRun
from dibs.storage.file import commits
from dibs.storage.indexed import by_id, output, reading, settling, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.output import NOT_CUT, Output, ReportedChunks
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants import commit_log
from tests.kit.mutants.by_contract import law
from tests.kit.mutants.planting import Patch, changed

FENCED, READ = "output is fenced", "a reader misses no chunk"
KEPT, BOUNDED = "output goes with its job", "output is bounded, and in no log"


def report_after(patch: Patch, change: Any) -> None:
    """Patch `report` to call `change(index, queue, id, chunks, answer)` after it."""
    original = settling.report

    def mutant(index: Index, queue: str, id: str, *rest: Any, **named: Any) -> Any:
        answer = original(index, queue, id, *rest, **named)
        change(index, index.find_queue(queue), id, named["chunks"], answer)
        return answer

    patch.setattr(settling, "report", mutant)


def append_to(index: Index, queue: QueueIndex, id: str, chunks: Any) -> None:
    event = events.LogEvent(kind="output", id=id, at=index.now)
    report = output.reported(index.next_number(), event, chunks)
    queue.put_output(id, output.append(queue.outputs.get(id), report, 1024 * 1024))


# -- fenced --------------------------------------------------------------------------------------------


def appends_late(patch: Patch, state: str) -> None:
    """Patch `report` to append the chunks of a lost report to an id in a state."""

    def change(index: Index, queue: QueueIndex, id: str, chunks: Any, answer: str) -> None:
        slot = queue.slots.get(id, EMPTY)
        job = slot.current
        found = "ended" if job is None else "waiting" if job.run is None else "active"
        if answer == "lost" and chunks and slot is not EMPTY and found == state:
            append_to(index, queue, id, chunks)

    report_after(patch, change)


@law(FENCED)
def a_late_holder_appends_output(patch: Patch) -> None:
    appends_late(patch, "active")


@law(FENCED)
def a_reaped_run_appends_output(patch: Patch) -> None:
    appends_late(patch, "waiting")


@law(FENCED)
def a_settled_run_appends_output(patch: Patch) -> None:
    appends_late(patch, "ended")


@law(FENCED)
def a_handed_off_run_appends_no_output(patch: Patch) -> None:
    original = output.append

    def mutant(known: Output | None, report: ReportedChunks, most: int) -> Output | None:
        return original(known, report, most) if report.event.holder else known

    def change(event: events.LogEvent, job: Any, run: ActiveRun, *_: Any) -> events.LogEvent:
        return event if run.lease else replace(event, holder="")

    changed(patch, events, "output_event", change)
    patch.setattr(output, "append", mutant)


# -- readers -------------------------------------------------------------------------------------------


@law(READ)
def two_reports_of_a_run_swap(patch: Patch) -> None:
    def change(after: Output, *_: Any) -> Output:
        if len(after.reports) < 2 or after.reports[-2].event.fence != after.reports[-1].event.fence:
            return after
        *rest, one, other = after.reports
        swapped = (replace(one, chunks=other.chunks), replace(other, chunks=one.chunks))
        return replace(after, reports=(*rest, *swapped))

    changed(patch, output, "append", change)


@law(READ)
def a_trim_of_output_is_not_told(patch: Patch) -> None:
    changed(patch, reading, "page", lambda page, *_: replace(page, fell_off=False))


@law(READ)
def a_removed_chunk_is_told_for_ever(patch: Patch) -> None:
    changed(patch, output, "without_outcome", lambda after, known: after and replace(after, cut=known.cut))


@law(READ)
def a_trim_removes_the_newest_chunk(patch: Patch) -> None:
    def change(after: Output, known: Output, reports: Any, excess: int) -> Output:
        newest = replace(reports[-1], chunks=reports[-1].chunks[:-1])
        return replace(after, reports=(*after.reports[:-1], newest)) if newest.chunks else after

    changed(patch, output, "_trim", change)


@law(READ)
def offsets_of_output_begin_again(patch: Patch) -> None:
    original = output.append

    def mutant(known: Output | None, report: ReportedChunks, most: int) -> Output:
        number = known.reports[-1].number + 1 if known else 1
        return original(known, replace(report, number=number), most)

    patch.setattr(output, "append", mutant)


@law(READ)
def a_page_ends_a_report(patch: Patch) -> None:
    """A page that is full leaves out the other chunks of its last report."""
    original = output.page

    def mutant(known: Output | None, after: str | None, limit: int, **words: Any) -> Any:
        found = original(known, after, limit, **words)
        return replace(found, offset=f"{found.offset[:17]}ffffff") if found.events else found

    patch.setattr(reading, "page", mutant)


@law(READ)
def a_reader_at_the_end_gets_the_last_chunk_again(patch: Patch) -> None:
    changed(patch, output, "_end", lambda offset, *_: offset and f"{offset[:17]}000000")


# -- the output of a job -------------------------------------------------------------------------------


@law(KEPT)
def a_failed_job_comes_back_without_output(patch: Patch) -> None:
    original = by_id._retry_failed

    def mutant(index: Index, queue: QueueIndex, id: str, delay: int) -> Any:
        status = original(index, queue, id, delay)
        if status == "queued" and id in queue.outputs:
            queue.put_output(id, None)
        return status

    patch.setattr(by_id, "_retry_failed", mutant)


@law(KEPT)
def the_output_of_a_job_that_came_back_stays_the_outcomes(patch: Patch) -> None:
    original = QueueIndex.put_output

    def mutant(self: QueueIndex, id: str, after: Output | None) -> None:
        known = self.outputs.get(id)
        if known and after and known.begin and not after.begin:
            after = replace(after, begin=known.begin)
        original(self, id, after)

    patch.setattr(QueueIndex, "put_output", mutant)


@law(KEPT)
def an_end_removes_its_own_output(patch: Patch) -> None:
    changed(patch, output, "after_end", lambda *_: None)


@law(KEPT)
def an_end_leaves_older_output(patch: Patch) -> None:
    def mutant(known: Output) -> Output:
        return replace(known, begin=known.reports[-1].number + 1)

    patch.setattr(output, "after_end", mutant)


@law(KEPT)
def a_promoted_job_has_the_output_before_it(patch: Patch) -> None:
    changed(patch, output, "after_end", lambda after, known: after and replace(after, begin=known.begin))


@law(KEPT)
def a_forget_leaves_output(patch: Patch) -> None:
    original = by_id._forget

    def mutant(index: Index, queue: QueueIndex, id: str) -> bool:
        known = queue.outputs.get(id)
        existed = original(index, queue, id)
        if known is not None:
            queue.put_output(id, replace(known, begin=0))
        return existed

    patch.setattr(by_id, "_forget", mutant)


@law(KEPT)
def an_import_leaves_expired_output(patch: Patch) -> None:
    original = whole_queue._import_record

    def mutant(index: Index, queue: QueueIndex, id: str, slot: Any) -> Any:
        known = queue.outputs.get(id)
        status = original(index, queue, id, slot)
        if status == "imported" and known is not None:
            queue.put_output(id, replace(known, begin=0))
        return status

    patch.setattr(whole_queue, "_import_record", mutant)


@law(KEPT)
def expired_output_is_shown(patch: Patch) -> None:
    original = output.page

    def mutant(known: Output | None, after: str | None, limit: int, **_: Any) -> Any:
        return original(known, after, limit, with_outcome=True)

    patch.setattr(reading, "page", mutant)


@law(KEPT)
def a_live_job_hides_the_output_of_the_outcome(patch: Patch) -> None:
    original = output.page

    def mutant(known: Output | None, after: str | None, limit: int, *, with_outcome: bool) -> Any:
        alone = known is None or known.reports[-1].number < known.begin
        return original(known, after, limit, with_outcome=with_outcome and alone)

    patch.setattr(reading, "page", mutant)


def loses_output(patch: Patch, name: str) -> None:
    """Patch a transition so that its job loses its output."""
    original = QueueIndex.put
    made: list[Any] = []

    def note(after: Any, *_: Any) -> Any:
        made.append(after.current)
        return after

    changed(patch, transitions, name, note)

    def mutant(self: QueueIndex, id: str, after: Any) -> None:
        original(self, id, after)
        if made and after.current is made[-1] and id in self.outputs:
            self.put_output(id, None)

    patch.setattr(QueueIndex, "put", mutant)


@law(KEPT)
def a_retry_loses_output(patch: Patch) -> None:
    loses_output(patch, "retry")


@law(KEPT)
def a_release_loses_output(patch: Patch) -> None:
    loses_output(patch, "release")


@law(KEPT)
def an_update_loses_output(patch: Patch) -> None:
    loses_output(patch, "update")


@law(KEPT)
def a_hand_off_loses_output(patch: Patch) -> None:
    loses_output(patch, "hand_off")


# -- bounded, and in no log ----------------------------------------------------------------------------


@law(BOUNDED)
def an_id_keeps_all_output(patch: Patch) -> None:
    original = output.append
    patch.setattr(output, "append", lambda known, report, _: original(known, report, 2**60))


@law(BOUNDED)
def a_chunk_counts_only_its_bytes(patch: Patch) -> None:
    patch.setattr(output, "CHUNK_OVERHEAD", 0)


@law(BOUNDED)
def a_trim_removes_whole_reports(patch: Patch) -> None:
    def change(after: Output, *_: Any) -> Output:
        first = after.reports[0]
        if not first.removed or len(after.reports) == 1:
            return after
        cut = (first.number, first.removed + len(first.chunks) - 1)
        return replace(after, reports=after.reports[1:], cut=cut)

    changed(patch, output, "_trim", change)


@law(BOUNDED)
def a_report_of_output_is_logged(patch: Patch) -> None:
    def change(index: Index, queue: QueueIndex, id: str, chunks: Any, answer: str) -> None:
        if answer == "reported" and chunks and queue.settings.log_level == "all":
            index.log_event(queue, events.LogEvent(kind="output", id=id, at=index.now))

    report_after(patch, change)


@law(BOUNDED)
def a_report_of_output_removes_the_progress(patch: Patch) -> None:
    def change(index: Index, queue: QueueIndex, id: str, chunks: Any, answer: str) -> None:
        job = queue.slots.get(id, EMPTY).current
        if answer == "reported" and chunks and job is not None and job.run is not None:
            run = replace(job.run, progress=None)
            queue.put(id, replace(queue.slots[id], current=replace(job, run=run)))

    report_after(patch, change)


# -- in files ------------------------------------------------------------------------------------------


@commit_log.law("output goes with its job: also after a restart")
def a_replay_loses_output(patch: Patch) -> None:
    commit_log.replayed(patch, outputs=[])


@commit_log.law("output is bounded: in each process")
def a_replay_keeps_removed_chunks(patch: Patch) -> None:
    def change(after: Output | None, before: Output | None, image: Any) -> Output | None:
        return after and replace(after, reports=(*(before.reports if before else ()), *image.added))

    changed(patch, commits, "_changed_output", change)


@commit_log.law("a reader is told of removed chunks: also after a restart")
def a_replay_loses_the_cut(patch: Patch) -> None:
    changed(patch, commits, "_changed_output", lambda after, *_: after and replace(after, cut=NOT_CUT))


@commit_log.law("output goes with its job: also after a checkpoint")
def a_checkpoint_leaves_out_output(patch: Patch) -> None:
    commit_log.often(patch)
    original = commits._snapshot_queue

    def mutant(index: Index, queue: QueueIndex) -> Any:
        known, queue.outputs = queue.outputs, {}
        yield from list(original(index, queue))
        queue.outputs = known

    patch.setattr(commits, "_snapshot_queue", mutant)
