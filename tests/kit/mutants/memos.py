"""Bugs of memos. The contract's authors named each of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dibs.model import fold, rules, transitions
from dibs.model.job import EMPTY, Job, JobData, NewJob, Slot, Successor
from dibs.model.requests import Update
from dibs.storage.indexed import reading, settling
from dibs.storage.indexed.index import Index
from tests.kit.mutants.by_contract import law
from tests.kit.mutants.planting import Patch, changed

FENCED, KEPT, OF_DATA = "a memo is fenced", "a memo is kept", "a memo belongs to its data"


def with_memo(job: Job, memo: bytes | None) -> Job:
    return replace(job, data=replace(job.data, memo=memo))


def without_memo(after: Slot) -> Slot:
    return after if after.current is None else replace(after, current=with_memo(after.current, None))


# -- fenced --------------------------------------------------------------------------------------------


def writes_late_memos(patch: Patch, *, running: bool) -> None:
    """Patch `report` so that it answers `lost`, and stores the memo while the id is active, or waits."""
    original = settling.report

    def mutant(
        index: Index, queue: str, id: str, fence: int, progress: Any, memo: bytes | None, **named: Any
    ) -> Any:
        answer = original(index, queue, id, fence, progress, memo, **named)
        source = index.find_queue(queue)
        job = source.slots.get(id, EMPTY).current
        if answer == "lost" and memo and job is not None and (job.run is not None) == running:
            source.put(id, replace(source.slots[id], current=with_memo(job, memo)))
        return answer

    patch.setattr(settling, "report", mutant)


@law(FENCED)
def a_late_holder_stores_a_memo(patch: Patch) -> None:
    writes_late_memos(patch, running=True)


@law(FENCED)
def a_reaped_run_stores_a_memo(patch: Patch) -> None:
    writes_late_memos(patch, running=False)


# -- kept ----------------------------------------------------------------------------------------------


@law(KEPT)
def a_retry_drops_the_memo(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Job, cause: str, *_: Any) -> Slot:
        return after if cause == "stall" else without_memo(after)

    changed(patch, transitions, "retry", change)


@law(KEPT)
def a_stall_drops_the_memo(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Job, cause: str, *_: Any) -> Slot:
        return without_memo(after) if cause == "stall" else after

    changed(patch, transitions, "retry", change)


@law(KEPT)
def a_release_drops_the_memo(patch: Patch) -> None:
    changed(patch, transitions, "release", lambda after, *_: without_memo(after))


@law(KEPT)
def an_export_leaves_out_memos(patch: Patch) -> None:
    def change(page: Any, *_: Any) -> Any:
        return replace(page, records=tuple(replace(one, slot=without_memo(one.slot)) for one in page.records))

    changed(patch, reading, "export", change)


@law(KEPT)
def an_import_drops_the_memo(patch: Patch) -> None:
    changed(patch, rules, "imported_slot", lambda after, *_: without_memo(after))


@law(KEPT)
def a_failure_drops_the_memo(patch: Patch) -> None:
    changed(patch, transitions, "_kept_data", lambda data, *_: replace(data, memo=None))


@law(KEPT)
def a_failed_job_comes_back_without_its_memo(patch: Patch) -> None:
    changed(patch, transitions, "retry_failed", lambda after, *_: without_memo(after))


# -- of its data ---------------------------------------------------------------------------------------


@law(OF_DATA)
def an_update_in_place_leaves_the_memo(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Job, *_: Any) -> Slot:
        assert after.current is not None
        return replace(after, current=with_memo(after.current, job.data.memo))

    changed(patch, transitions, "update", change)


@law(OF_DATA)
def a_fold_leaves_the_memo(patch: Patch) -> None:
    changed(patch, fold, "job_after_return", lambda after, job, _: with_memo(after, job.data.memo))


@law(OF_DATA)
def a_successor_inherits_the_memo(patch: Patch) -> None:
    original = transitions.block

    def mutant(slot: Slot, new: NewJob, rule: Update, now: int, number: int) -> Slot:
        after = original(slot, new, rule, now, number)
        if slot.current is None or not isinstance(after.successor, Successor):
            return after
        data = replace(after.successor.data, memo=slot.current.data.memo)
        return replace(after, successor=replace(after.successor, data=data))

    patch.setattr(transitions, "block", mutant)


@law(OF_DATA)
def a_completed_outcome_keeps_the_memo(patch: Patch) -> None:
    def mutant(data: JobData, kind: str) -> JobData:
        return data

    patch.setattr(transitions, "_kept_data", mutant)
