"""Laws of what was accepted: it is kept, it runs as last told, and a waiter reads how it ended."""

from __future__ import annotations

from msgspec import UNSET

from dibs.model.job import FAIL_SUFFIX, Origin, Slot
from dibs.model.requests import Complete, Fail
from dibs.model.results import EnqueueResult
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import History, Seen, Story, accepted
from dibs_conformance.laws.running import claimed


class Kept(Law):
    name = "accepted is kept"
    section = "4.1"
    sentence = "Every accepted enqueue that was neither ended nor dropped is pending."

    def after(self, seen: Seen, history: History) -> None:
        for id, slot in seen.slots.items():
            for revision in history.story(seen.queue, id).live:
                self.hold(pending(slot, revision), "{!r}: the enqueue {} is gone; {}", id, revision, slot)


class BlockedRuns(Law):
    name = "blocked is not dropped"
    section = "4.4"
    sentence = "What was enqueued during a run is in the next run that is claimed."

    def after(self, seen: Seen, history: History) -> None:
        for job in claimed(seen):
            story = history.story(seen.queue, job.id)
            if story.updates:
                missed = [r for r in story.live if not job.first <= r <= job.revision]
                self.hold(not missed, "{!r} runs {}..{} without {}", job.id, job.first, job.revision, missed)


class LastUpdateWins(Law):
    name = "the last update wins"
    section = "3, the fold law"
    sentence = "A run carries, byte for byte, the payload of the newest update that replaces."

    def after(self, seen: Seen, history: History) -> None:
        for job in claimed(seen):
            expected = history.story(seen.queue, job.id).front
            if expected is not None:
                self.hold(
                    job.data.payload == expected,
                    "{!r} carries {!r}, not {!r}",
                    job.id,
                    job.data.payload,
                    expected,
                )


class Told(Law):
    name = "a waiter is told its own end"
    section = "1, Done"
    sentence = "What ended is never pending again, and reads no outcome but that of the run it was in."

    def after(self, seen: Seen, history: History) -> None:
        for id, slot in seen.slots.items():
            story = history.story(seen.queue, id)
            for revision, end in story.ended.items():
                self._one(id, slot, revision, end)
            self._latest_drop(id, slot, story)

    def _one(self, id: str, slot: Slot, revision: int, end: tuple[str, int]) -> None:
        self.hold(not pending(slot, revision), "{!r}: {} ended {} and is pending again", id, revision, end[0])
        outcome = slot.outcome
        if outcome is not None and outcome.first <= revision <= outcome.revision:
            own = (outcome.kind, outcome.fence) == end
            self.hold(
                own,
                "{!r}: {} ended as {}, and reads {} of {}",
                id,
                revision,
                end,
                outcome.kind,
                outcome.fence,
            )

    def _latest_drop(self, id: str, slot: Slot, story: Story) -> None:
        """While the run it was dropped beside is there, or its outcome, the latest drop is told."""
        run = slot.current.run if slot.current else None
        there = (run.fence if run else 0, slot.outcome.fence if slot.outcome else 0)
        if story.dropped and story.dropped_beside in there:
            latest = max(story.dropped)
            told = any(first <= latest <= last for first, last in slot.dropped)
            self.hold(told, "{!r}: {} was dropped by a cancel, and is not told as cancelled", id, latest)


class RevisionsGrow(Law):
    name = "revisions grow"
    section = "3, revision"
    sentence = "An enqueue's revision is above that of every call of its queue that returned before."

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, int] = {}

    def begin(self) -> None:
        self.newest = {}

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb != "enqueue":
            return
        fresh = [answer.revision for answer in seen.answer if accepted(answer)]
        newest = self.newest.get(seen.queue, 0)
        for revision in fresh:
            self.hold(revision > newest, "revision {} is not above {}", revision, newest)
        self.newest[seen.queue] = max([newest, *fresh])


class RequestKeys(Law):
    name = "a request_key acts once"
    section = "3, enqueue"
    sentence = "Within its time a key changes nothing and answers what the first one got."

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[tuple[str, str], tuple[EnqueueResult, int]] = {}
        self.age: dict[str, int] = {}

    def begin(self) -> None:
        self.first, self.age = {}, {}

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb == "configure" and seen.args["patch"].request_key_age is not UNSET:
            self.age[seen.queue] = seen.args["patch"].request_key_age
        if seen.verb != "enqueue":
            return
        for request, answer in zip(seen.args["requests"], seen.answer, strict=True):
            if request.request_key is not None:
                self._one((seen.queue, request.request_key), answer, seen.now)

    def _one(self, key: tuple[str, str], answer: EnqueueResult, now: int) -> None:
        first, ends = self.first.get(key, (answer, 0))
        if now >= ends:
            self.first[key] = (answer, now + self.age.get(key[0], 3_600_000))
            return
        same = [
            getattr(first, name) == getattr(answer, name) for name in ("status", "found", "first", "revision")
        ]
        self.hold(answer.repeated and all(same), "key {!r} got {}, then {}", key[1], first, answer)


class FailJobs(Law):
    name = "a failure is handled once"
    section = "3, the fail job"
    sentence = "Each handled failure makes one fail job, with the payload byte for byte and its origin."

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[tuple[str, str, int], bytes] = {}
        self.jobs: dict[tuple[str, str, int], str] = {}

    def begin(self) -> None:
        self.failed, self.jobs = {}, {}

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb != "settle" or seen.queue.endswith(FAIL_SUFFIX):
            return
        for settlement, answer in zip(seen.args["settlements"], seen.answer, strict=True):
            run, how = history.story(seen.queue, settlement.id).open, settlement.action
            handled = isinstance(how, Fail) and how.handled and answer.status == "done"
            if handled and run is not None and run.fence == settlement.fence:
                self.failed[seen.queue, settlement.id, run.fence] = run.job.data.payload

    def after(self, seen: Seen, history: History) -> None:
        for job in claimed(seen):
            if seen.queue.endswith(FAIL_SUFFIX):
                self._one(job.id, job.origin, job.data.payload)

    def _one(self, id: str, origin: Origin | None, payload: bytes) -> None:
        self.hold(origin is not None, "the fail job {!r} has no origin", id)
        key = (origin.queue, origin.id, origin.fence) if origin else ("", "", 0)
        if key in self.failed:
            self.hold(payload == self.failed[key], "the fail job of {} carries {!r}", key, payload)
            self.hold(
                self.jobs.setdefault(key, id) == id,
                "{} has the fail jobs {!r}, {!r}",
                key,
                self.jobs[key],
                id,
            )


class Results(Law):
    name = "results come back"
    section = "4.3"
    sentence = "The outcome of a completed run is, byte for byte, the result that was acknowledged."

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[tuple[str, str, int], bytes | None] = {}

    def begin(self) -> None:
        self.results = {}

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb == "settle":
            for settlement, answer in zip(seen.args["settlements"], seen.answer, strict=True):
                if isinstance(settlement.action, Complete) and answer.status == "done":
                    key = (seen.queue, settlement.id, settlement.fence)
                    self.results.setdefault(key, settlement.action.result)
        elif seen.verb == "finish" and seen.answer == "done" and isinstance(seen.args["end"], Complete):
            run = history.story(seen.queue, seen.args["id"]).open
            if run is not None and run.covers(seen.args["revision"]):
                self.results[seen.queue, run.job.id, run.fence] = seen.args["end"].result

    def after(self, seen: Seen, history: History) -> None:
        for id, slot in seen.slots.items():
            outcome = slot.outcome
            if outcome is not None and (key := (seen.queue, id, outcome.fence)) in self.results:
                self.hold(
                    outcome.result == self.results[key], "{!r} kept the result {!r}", id, outcome.result
                )


def pending(slot: Slot, revision: int) -> bool:
    """The contract's definition: in the range of current or successor, and in no dropped range."""
    live = [job for job in (slot.current, slot.successor) if job is not None]
    covered = any(job.first <= revision <= job.revision for job in live)
    return covered and not any(first <= revision <= last for first, last in slot.dropped)
