"""Bugs in keys and limits, in the code that memory and file share.

The text that added keys to the contract named the bugs that `named` registers, before the kit could find
them. The others were added with the histories of the kit.
"""
# ruff: noqa: ARG005 - a mutant has the arguments of the original and uses fewer of them

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dibs.model import transitions
from dibs.model.job import Job, JobData, Slot
from dibs.model.requests import Settings
from dibs.storage.indexed import claiming, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.key_lines import KeyLine, KeyLines
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.planting import Patch, Plant, breaks, changed


def named(law: str, examples: int = 300) -> Callable[[Plant], Plant]:
    """Register a bug that the text of the contract's change named."""
    return breaks(law, examples, by_contract=True)


def is_leased(job: Job | None) -> bool:
    return job is not None and job.run is not None and job.run.lease is not None


def moved(patch: Patch, change: Callable[[KeyLines, Job | None, Job | None], bool | None]) -> None:
    """Patch the move of a job between lines: a result of `change` replaces the move."""
    original = KeyLines.move

    def mutant(self: KeyLines, before: Job | None, after: Job | None) -> bool:
        result = change(self, before, after)
        return original(self, before, after) if result is None else result

    patch.setattr(KeyLines, "move", mutant)


def unwoken(patch: Patch, applies: Callable[[Job | None, Job | None], bool]) -> None:
    """Patch the move of a job: some moves change no token, whatever they make possible."""
    original = KeyLines.move

    def mutant(self: KeyLines, before: Job | None, after: Job | None) -> bool:
        return original(self, before, after) and not applies(before, after)

    patch.setattr(KeyLines, "move", mutant)


# -- per_key -----------------------------------------------------------------------------------------


@named("per_key is exact")
def a_key_has_one_run_more(patch: Patch) -> None:
    def mutant(self: KeyLines, key: str, line: KeyLine) -> bool:
        return self._settings.per_key is not None and line.runs > self._settings.per_key

    patch.setattr(KeyLines, "_is_full", mutant)


@named("per_key is exact: a comeback makes room at once")
def the_room_of_a_comeback_is_never_freed(patch: Patch) -> None:
    original = KeyLines._leave

    def mutant(self: KeyLines, key: str, job: Job) -> bool:
        freed = original(self, key, job)
        slot = self._slots.get(job.id)
        if is_leased(job) and slot is not None and slot.current is not None and key in self.by_key:
            self.by_key[key].runs += 1
        return freed

    patch.setattr(KeyLines, "_leave", mutant)


@named("per_key is exact: a handed-off run does not count")
def a_handed_off_run_counts(patch: Patch) -> None:
    original = KeyLines.move

    def leased(job: Job | None) -> Job | None:
        if job is None or job.run is None:
            return job
        return replace(job, run=replace(job.run, lease=job.run.lease or "handed off"))

    patch.setattr(KeyLines, "move", lambda self, before, after: original(self, leased(before), leased(after)))


@named("per_key is exact: a successor is counted with its key when it is claimed")
def a_run_counts_under_the_key_of_its_successor(patch: Patch) -> None:
    original = QueueIndex.put

    def mutant(self: QueueIndex, id: str, after: Slot) -> None:
        before = self.slots.get(id)
        original(self, id, after)
        first = before is not None and before.successor is None and after.successor is not None
        if first and after.current is not None and after.successor is not None:
            self.key_lines.move(after.current, replace(after.current, data=after.successor.data))

    patch.setattr(QueueIndex, "put", mutant)


@breaks("per_key is exact: configure to less stops nobody, and nothing more starts until there is room")
def a_lower_per_key_is_ignored(patch: Patch) -> None:
    original = KeyLines.apply_settings

    def mutant(self: KeyLines, settings: Settings) -> None:
        before = self._settings.per_key
        if before is not None and settings.per_key is not None:
            settings = replace(settings, per_key=max(before, settings.per_key))
        original(self, settings)

    patch.setattr(KeyLines, "apply_settings", mutant)


@breaks("per_key is exact: the runs that count are those that exist")
def a_promotion_takes_room(patch: Patch) -> None:
    original = QueueIndex.put

    def mutant(self: QueueIndex, id: str, after: Slot) -> None:
        before = self.slots.get(id)
        original(self, id, after)
        promoted = before is not None and before.successor is not None and after.successor is None
        if promoted and after.current is not None and after.current.data.key is not None:
            self.key_lines.by_key[after.current.data.key].runs += 1

    patch.setattr(QueueIndex, "put", mutant)


# -- the admitted are taken --------------------------------------------------------------------------


@named("the admitted are taken, in order")
def a_full_key_stops_the_line(patch: Patch) -> None:
    original = QueueIndex.pop_due

    def mutant(self: QueueIndex) -> Slot | None:
        lines = self.key_lines
        closed = [lines._first_due(key, lines.by_key[key]) for key in lines._closed]
        first, heads = self.due.first(), [entry for entry in closed if entry is not None]
        return None if heads and (first is None or min(heads) < first) else original(self)

    patch.setattr(QueueIndex, "pop_due", mutant)


@named("the admitted are taken, in order: also when a limit was lifted")
def a_limit_that_was_lifted_frees_nobody(patch: Patch) -> None:
    original = KeyLines.apply_settings

    def mutant(self: KeyLines, settings: Settings) -> None:
        if settings.per_key is None and settings.key_rate is None:
            self._settings = settings
        else:
            original(self, settings)

    patch.setattr(KeyLines, "apply_settings", mutant)


@named("the admitted are taken, in order: a job that was passed over keeps its place")
def a_job_that_was_passed_over_loses_its_seq(patch: Patch) -> None:
    original = claiming._claim_due_jobs

    def mutant(index: Index, queue: QueueIndex, *rest: Any) -> list[Job]:
        jobs, lines = original(index, queue, *rest), queue.key_lines
        for key in list(lines._closed):
            entry = lines._first_due(key, lines.by_key[key])
            slot = None if entry is None else queue.slots[entry[4]]
            if slot is not None and slot.current is not None:
                queue.put(
                    slot.current.id, replace(slot, current=replace(slot.current, seq=index.next_number()))
                )
        return jobs

    patch.setattr(claiming, "_claim_due_jobs", mutant)


@breaks("the admitted are taken, in order: a job that was passed over charges nothing")
def a_job_that_was_passed_over_charges_the_queue(patch: Patch) -> None:
    def charge(jobs: list[Job], index: Index, queue: QueueIndex, *rest: Any) -> list[Job]:
        if queue.key_lines._closed and queue.settings.rate is not None:
            queue.charge_start(None)
        return jobs

    changed(patch, claiming, "_claim_due_jobs", charge)


@breaks("the admitted are taken, in order: a configure that changes a rate lets its clocks begin again")
def a_changed_rate_keeps_its_clocks(patch: Patch) -> None:
    patch.setattr(whole_queue, "_reset_clocks", lambda queue, before, after: None)


@breaks("the admitted are taken, in order: the key is replaced with the data")
def an_update_keeps_the_key(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Job, *_: Any) -> Slot:
        assert after.current is not None
        data = replace(after.current.data, key=job.data.key)
        return replace(after, current=replace(after.current, data=data))

    changed(patch, transitions, "update", change)


@breaks("the key is replaced with the data: also at a comeback")
def a_comeback_keeps_the_key_of_its_run(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, back: Job) -> Slot:
        assert after.current is not None
        data = replace(after.current.data, key=back.data.key)
        return replace(after, current=replace(after.current, data=data))

    changed(patch, transitions, "_back_to_waiting", change)


@breaks("amend cannot change the key")
def an_amend_forgets_the_key(patch: Patch) -> None:
    def change(after: Slot, *_: Any) -> Slot:
        if after.current is None or after.current.run is not None:
            return after
        data = replace(after.current.data, key=None)
        return replace(after, current=replace(after.current, data=data))

    changed(patch, transitions, "amend", change)


@breaks("a failed outcome that keeps its payload keeps the key")
def a_retried_job_has_no_key(patch: Patch) -> None:
    def change(after: Slot, *_: Any) -> Slot:
        assert after.current is not None
        data: JobData = replace(after.current.data, key=None)
        return replace(after, current=replace(after.current, data=data))

    changed(patch, transitions, "retry_failed", change)


# -- wake-ups ----------------------------------------------------------------------------------------


@named("room wakes: also after an end")
def an_end_that_makes_room_wakes_nobody(patch: Patch) -> None:
    unwoken(patch, lambda before, after: is_leased(before) and after is None)


@named("room wakes: also after a hand-off")
def a_hand_off_that_makes_room_wakes_nobody(patch: Patch) -> None:
    unwoken(patch, lambda before, after: is_leased(before) and after is not None and not is_leased(after))


@named("room wakes: also after a reap")
def a_reap_that_makes_room_wakes_nobody(patch: Patch) -> None:
    unwoken(patch, lambda before, after: is_leased(before) and after is not None and after.stalls > 0)


@named("room wakes")
def a_configure_wakes_nobody(patch: Patch) -> None:
    original = QueueIndex._apply_settings

    def mutant(self: QueueIndex, settings: Settings) -> None:
        version = self.work_version
        original(self, settings)
        self.work_version = version

    patch.setattr(QueueIndex, "_apply_settings", mutant)
