"""Bugs in the log of memory and file: events of settings and of cancels, and a log trimmed by its size."""

from __future__ import annotations

from typing import Any

from dibs.model import events
from dibs.model.job import ActiveRun, Job, Slot
from dibs.model.requests import Settings, SettingsPatch
from dibs.storage.indexed import by_id, whole_queue
from dibs.storage.indexed.event_log import Entry, EventLog
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.planting import Patch, breaks


@breaks("Events: a configure that changes nothing adds no event")
def a_configure_without_a_change_is_logged(patch: Patch) -> None:
    original = whole_queue.configure

    def mutant(index: Index, queue: str, patch: SettingsPatch) -> Settings:
        before = index.queue(queue).settings
        after = original(index, queue, patch)
        if after == before and after.log_level == "all":
            index.log_event(index.queue(queue), events.note_event("configured", "", index.now))
        return after

    patch.setattr(whole_queue, "configure", mutant)


@breaks("Events: a cancel of a run that was asked to end before adds no event")
def a_repeated_cancel_of_a_run_is_logged(patch: Patch) -> None:
    original: Any = vars(by_id)["ask_to_end"]

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
        original(index, queue, slot, job, run)
        if run.cancel_requested and queue.settings.log_level == "all":
            index.log_event(queue, events.note_event("cancel_requested", job.id, index.now, job))

    patch.setattr(by_id, "ask_to_end", mutant)


@breaks("events: a page says fell_off if the log was trimmed after the offset")
def a_log_trimmed_by_size_says_no_fell_off(patch: Patch) -> None:
    original = EventLog.trim

    def mutant(self: EventLog, through: int) -> list[Entry]:
        before = self.trimmed
        removed = original(self, through)
        left = [*self]
        if removed and left and removed[-1].at == left[-1].at:
            self.trimmed = before
        return removed

    patch.setattr(EventLog, "trim", mutant)
