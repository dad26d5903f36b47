"""Bugs in the turns and shares of keys, in the code that memory and file share.

The contract's authors named most of them, before the kit could find them.
"""
# ruff: noqa: ARG005 - a mutant has the arguments of the original and uses fewer of them

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dibs.model import rules
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.requests import Release, Settings, SettingsPatch
from dibs.storage.file import commits
from dibs.storage.indexed import claiming, settling, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.key_lines import KeyLine, KeyLines
from dibs.storage.indexed.orders import Due
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants import commit_log
from tests.kit.mutants.by_contract import law
from tests.kit.mutants.planting import Patch, breaks, changed

EXACT, ROUND = "turns are exact", "no key waits longer than a round"
TAKEN, PAUSED = "the admitted are taken, in turn", "a share of 0 starts no run"


def counted(patch: Patch, count: Callable[[QueueIndex, str], None]) -> None:
    """Patch how a start counts in the turn of its key."""
    patch.setattr(QueueIndex, "_count_start", count)


def to_back(queue: QueueIndex, key: str) -> None:
    queue.put_turn(key, (queue._draw(), 0))


def put_after(patch: Patch, change: Callable[[QueueIndex, Job | None, Job | None], None]) -> None:
    """Patch the puts of a fair queue: `change` follows with the current job before and after."""
    original = QueueIndex.put

    def mutant(self: QueueIndex, id: str, after: Slot) -> None:
        before = self.slots.get(id, EMPTY).current
        original(self, id, after)
        if self.settings.fair:
            change(self, before, after.current)
            self.key_lines.update_all_heads()

    patch.setattr(QueueIndex, "put", mutant)


# -- turns are exact -----------------------------------------------------------------------------------


@law(EXACT)
def a_turn_lasts_a_claim(patch: Patch) -> None:
    original = claiming._claim_due_jobs

    def mutant(index: Index, queue: QueueIndex, *rest: Any) -> list[Job]:
        with patch.context() as inside:
            inside.setattr(QueueIndex, "_count_start", lambda self, key: None)
            jobs = original(index, queue, *rest)
        for key in dict.fromkeys(queue.key_lines.key_of(job) or "" for job in jobs):
            if key in queue.turns:
                queue._count_start(key)
        queue.key_lines.update_all_heads()
        return jobs

    patch.setattr(claiming, "_claim_due_jobs", mutant)


@law(EXACT)
def each_priority_has_a_place_of_its_own(patch: Patch) -> None:
    original = KeyLines._update_head
    places: dict[tuple[int, str, int], int] = {}

    def mutant(self: KeyLines, key: str) -> bool:
        line, turn = self.by_key.get(key), self._turns.get(key)
        first = None if line is None else self._first_due(key, line)
        if turn is None or first is None:
            return original(self, key)
        place = places.setdefault((id(self), key, first[0]), turn[0])
        self._turns[key] = place, turn[1]
        changed = original(self, key)
        self._turns[key] = turn
        return changed

    def count(self: QueueIndex, key: str) -> None:
        line = self.key_lines.by_key[key]
        first = self.key_lines._first_due(key, line)
        if first is not None:
            places[id(self.key_lines), key, first[0]] = self._draw()
        to_back(self, key)

    patch.setattr(KeyLines, "_update_head", mutant)
    counted(patch, count)


@law(EXACT)
def jobs_without_a_key_take_no_turn(patch: Patch) -> None:
    def count(self: QueueIndex, key: str) -> None:
        if key:
            original(self, key)

    original = QueueIndex._count_start
    counted(patch, count)


@law(EXACT)
def jobs_without_a_key_come_first(patch: Patch) -> None:
    original = QueueIndex.put_turn
    patch.setattr(
        QueueIndex,
        "put_turn",
        lambda self, key, turn: original(self, key, turn and (turn[0] * bool(key), turn[1])),
    )


@law(EXACT)
def shares_have_no_weight(patch: Patch) -> None:
    counted(patch, to_back)


@law(EXACT)
def a_share_is_one_start_more(patch: Patch) -> None:
    def count(self: QueueIndex, key: str) -> None:
        place, starts = self.turns[key]
        is_over = starts >= self.settings.shares.get(key, 1)
        self.put_turn(key, (self._draw(), 0) if is_over else (place, starts + 1))

    counted(patch, count)


@law(EXACT)
def a_run_that_is_released_gives_its_turn_back(patch: Patch) -> None:
    original = settling._release

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: Release) -> None:
        original(index, queue, slot, job, action)
        key = queue.key_lines.key_of(job)
        if queue.settings.fair and key is not None and key in queue.turns:
            queue.put_turn(key, (0, 0))
            queue.key_lines.update_all_heads()

    patch.setattr(settling, "_release", mutant)


@law(EXACT)
def a_start_counts_when_its_run_ends(patch: Patch) -> None:
    counted(patch, lambda self, key: None)

    def change(queue: QueueIndex, before: Job | None, after: Job | None) -> None:
        if before is not None and before.run is not None and (after is None or after.run is None):
            key = queue.key_lines.key_of(before)
            if key is not None and key in queue.turns:
                to_back(queue, key)

    put_after(patch, change)


@breaks(EXACT + ": a key with waiting jobs is in the ring")
def a_scheduled_job_gives_its_key_no_place(patch: Patch) -> None:
    def change(queue: QueueIndex, before: Job | None, after: Job | None) -> None:
        if before is None and after is not None and after.run is None and after.run_at > queue.now:
            key = queue.key_lines.key_of(after)
            if key is not None and queue.key_lines.by_key[key].waiting == 1:
                queue.put_turn(key, (queue._draw() + 10**12, 0))

    put_after(patch, change)


# -- no key waits longer than a round --------------------------------------------------------------------


@law(ROUND)
def a_new_key_goes_first(patch: Patch) -> None:
    original = QueueIndex._move_turns

    def mutant(self: QueueIndex, before: Job | None, after: Job | None) -> None:
        known = set(self.turns)
        original(self, before, after)
        for key in set(self.turns) - known:
            self.put_turn(key, (-self._draw(), 0))

    patch.setattr(QueueIndex, "_move_turns", mutant)


@law(ROUND)
def a_closed_key_loses_its_place(patch: Patch) -> None:
    original = claiming._claim_due_jobs

    def mutant(index: Index, queue: QueueIndex, *rest: Any) -> list[Job]:
        jobs = original(index, queue, *rest)
        for key in list(queue.key_lines._closed):
            if key in queue.turns:
                to_back(queue, key)
        return jobs

    patch.setattr(claiming, "_claim_due_jobs", mutant)


@law(ROUND)
def a_key_without_a_due_job_loses_its_place(patch: Patch) -> None:
    original = claiming._claim_due_jobs

    def mutant(index: Index, queue: QueueIndex, *rest: Any) -> list[Job]:
        jobs, lines = original(index, queue, *rest), queue.key_lines
        for key in list(queue.turns):
            if lines._first_due(key, lines.by_key[key]) is None:
                to_back(queue, key)
        return jobs

    patch.setattr(claiming, "_claim_due_jobs", mutant)


@law(ROUND)
def a_key_that_left_keeps_its_place(patch: Patch) -> None:
    original = QueueIndex.put_turn
    gone: dict[tuple[int, str], Any] = {}

    def mutant(self: QueueIndex, key: str, turn: Any) -> None:
        if turn is None and self.settings.fair and key in self.turns:
            gone[id(self), key] = self.turns[key]
        elif turn is not None and key not in self.turns:
            turn = gone.pop((id(self), key), turn)
        original(self, key, turn)

    patch.setattr(QueueIndex, "put_turn", mutant)


@law(ROUND)
def a_key_goes_to_the_back_with_each_of_its_jobs(patch: Patch) -> None:
    def change(queue: QueueIndex, before: Job | None, after: Job | None) -> None:
        key = None if after is None or after.run is not None else queue.key_lines.key_of(after)
        if key is not None and before is None:
            to_back(queue, key)

    put_after(patch, change)


@law(ROUND)
def a_higher_priority_takes_the_turns_of_others(patch: Patch) -> None:
    def count(self: QueueIndex, key: str) -> None:
        original(self, key)
        for other, (place, starts) in list(self.turns.items()):
            if other != key and starts:
                self.put_turn(other, (place, 0))

    original = QueueIndex._count_start
    counted(patch, count)


# -- the admitted are taken --------------------------------------------------------------------------------


@law(TAKEN)
def a_raised_share_frees_no_job(patch: Patch) -> None:
    original = KeyLines.apply_settings

    def mutant(self: KeyLines, settings: Settings) -> None:
        before = self._settings
        if before.shares != settings.shares and replace(before, shares=settings.shares) == settings:
            self._settings = settings
        else:
            original(self, settings)

    patch.setattr(KeyLines, "apply_settings", mutant)


@law(TAKEN)
def an_older_ring_orders_the_keys_again(patch: Patch) -> None:
    original = QueueIndex.change_turns
    before_off: dict[int, list[str]] = {}

    def mutant(self: QueueIndex, before: Settings, after: Settings) -> None:
        if before.fair and not after.fair:
            before_off[id(self)] = sorted(self.turns, key=lambda key: self.turns[key])
        original(self, before, after)
        for place, key in enumerate(before_off.get(id(self), ()) if after.fair and not before.fair else ()):
            if key in self.turns:
                self.put_turn(key, (place, 0))
        self.key_lines.update_all_heads()

    patch.setattr(QueueIndex, "change_turns", mutant)


@law(TAKEN + ": a changed share lets the turn begin anew")
def a_changed_share_goes_on_with_its_turn(patch: Patch) -> None:
    patch.setattr(rules, "changed_shares", lambda before, after: [])


@law(TAKEN + ": a changed share keeps the place of its key")
def a_changed_share_moves_its_key_to_the_back(patch: Patch) -> None:
    def change(_: None, queue: QueueIndex, before: Settings, after: Settings) -> None:
        for key in rules.changed_shares(before, after) if before.fair and after.fair else ():
            if key in queue.turns:
                to_back(queue, key)
        queue.key_lines.update_all_heads()

    changed(patch, QueueIndex, "change_turns", change)


@law("configure merges shares by key")
def a_configure_replaces_all_shares(patch: Patch) -> None:
    def change(after: Settings, before: Settings, patch: SettingsPatch) -> Settings:
        if not isinstance(patch.shares, dict):
            return after
        return replace(after, shares={key: share for key, share in patch.shares.items() if share is not None})

    changed(patch, rules, "changed_settings", change)


@law(TAKEN + ": fair gives places in the order of the first jobs")
def keys_of_a_queue_that_becomes_fair_are_in_any_order(patch: Patch) -> None:
    changed(patch, KeyLines, "keys_in_order", lambda keys, lines: sorted(keys))


@law(TAKEN + ": no limit by key holds the jobs without a key")
def jobs_without_a_key_are_held_to_per_key(patch: Patch) -> None:
    original = KeyLines._is_full

    def mutant(self: KeyLines, key: str, line: KeyLine) -> bool:
        per_key = self._settings.per_key
        return original(self, key, line) or (per_key is not None and line.runs >= per_key)

    patch.setattr(KeyLines, "_is_full", mutant)


# -- a share of 0 --------------------------------------------------------------------------------------------


@law(PAUSED)
def a_paused_key_starts_a_run(patch: Patch) -> None:
    patch.setattr(KeyLines, "_is_full", without_shares(KeyLines._is_full))


def without_shares(original: Callable[[KeyLines, str, KeyLine], bool]) -> Any:
    def mutant(self: KeyLines, key: str, line: KeyLine) -> bool:
        before, self._settings = self._settings, replace(self._settings, shares={})
        full = original(self, key, line)
        self._settings = before
        return full

    return mutant


@law(PAUSED)
def a_key_is_paused_only_in_a_fair_queue(patch: Patch) -> None:
    original, unpaused = KeyLines._is_full, without_shares(KeyLines._is_full)

    def mutant(self: KeyLines, key: str, line: KeyLine) -> Any:
        return original(self, key, line) if self._settings.fair else unpaused(self, key, line)

    patch.setattr(KeyLines, "_is_full", mutant)


@law(PAUSED)
def a_key_with_a_due_head_starts_one_more_run(patch: Patch) -> None:
    def mutant(self: KeyLines, key: str, entry: Due) -> bool:
        line = self.by_key.get(key)
        return line is not None and line.head == entry

    patch.setattr(KeyLines, "is_head", mutant)


@law(PAUSED + ", and stops none")
def a_paused_key_stops_its_runs(patch: Patch) -> None:
    original = whole_queue.configure

    def mutant(index: Index, queue: str, changes: SettingsPatch) -> Settings:
        after, source = original(index, queue, changes), index.queue(queue)
        for slot in list(source.slots.values()):
            job = slot.current
            if job is not None and job.run is not None and after.shares.get(job.data.key or "") == 0:
                settling._release(index, source, slot, job, Release())
        return after

    patch.setattr(whole_queue, "configure", mutant)


@law(PAUSED + ", and holds no other key back")
def a_paused_key_holds_the_line(patch: Patch) -> None:
    original = QueueIndex.pop_due

    def mutant(self: QueueIndex) -> Slot | None:
        paused = [key for key, share in self.settings.shares.items() if share == 0]
        return None if any(key in self.key_lines._closed for key in paused) else original(self)

    patch.setattr(QueueIndex, "pop_due", mutant)


@law("room wakes: also a raised share")
def a_raised_share_wakes_nobody(patch: Patch) -> None:
    original = QueueIndex._apply_settings

    def mutant(self: QueueIndex, settings: Settings) -> None:
        version, before = self.work_version, self.settings
        original(self, settings)
        if before.shares != settings.shares and replace(before, shares=settings.shares) == settings:
            self.work_version = version

    patch.setattr(QueueIndex, "_apply_settings", mutant)


# -- in files ------------------------------------------------------------------------------------------------


@commit_log.law(EXACT + ": workers share one ring")
def each_process_keeps_a_ring_of_its_own(patch: Patch) -> None:
    original = commits._apply_queue

    def mutant(queue: QueueIndex, image: commits.QueueImage) -> None:
        with patch.context() as inside:
            inside.setattr(QueueIndex, "restore", QueueIndex.put)
            original(queue, replace(image, turns=[]))

    patch.setattr(commits, "_apply_queue", mutant)


@commit_log.law(EXACT + ": also after a restart")
def a_replay_loses_turns(patch: Patch) -> None:
    commit_log.replayed(patch, turns=[])


@commit_log.law(EXACT + ": also after a restart")
def a_checkpoint_loses_turns(patch: Patch) -> None:
    original = commits._snapshot_queue

    def mutant(index: Index, queue: QueueIndex) -> Any:
        turns, queue.turns = queue.turns, {}
        frames = list(original(index, queue))
        queue.turns = turns
        return frames

    commit_log.often(patch)
    patch.setattr(commits, "_snapshot_queue", mutant)
