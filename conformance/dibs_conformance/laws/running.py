"""Laws of claims and ends: who runs, when, in which order, and how often it may end."""

from __future__ import annotations

from msgspec import UNSET

from dibs.model.job import Job
from dibs.model.requests import Release, RetryLater
from dibs.model.results import ClaimResult
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import History, Seen, kind_of


class OneActive(Law):
    name = "one active run"
    section = "4.2"
    sentence = "No id is handed out while an earlier run of it is open."

    def before(self, seen: Seen, history: History) -> None:
        for job in claimed(seen):
            story = history.story(seen.queue, job.id)
            if story.newest_fence:
                self.hold(
                    story.open is None, "{!r} was claimed while fence {} runs", job.id, story.newest_fence
                )
        ids = [job.id for job in claimed(seen)]
        if len(ids) > 1:
            self.hold(len(ids) == len(set(ids)), "one claim handed out an id twice: {}", ids)


class FencesGrow(Law):
    name = "fences grow"
    section = "3, fence"
    sentence = "A fence is at least now in µs and above every earlier one of its id, also after forget."

    def before(self, seen: Seen, history: History) -> None:
        for job in claimed(seen):
            newest, fence = history.story(seen.queue, job.id).newest_fence, fence_of(job)
            self.hold(fence >= seen.answer.now * 1000, "fence {} is below now, {} ms", fence, seen.answer.now)
            self.hold(fence > newest, "fence {} of {!r} is not above {}", fence, job.id, newest)


class InOrder(Law):
    name = "in order"
    section = "2"
    sentence = "A claim hands out by priority descending, run_at ascending, seq ascending."

    def before(self, seen: Seen, history: History) -> None:
        places = [(-job.data.priority, job.run_at, job.seq) for job in claimed(seen)]
        if len(places) > 1:
            self.hold(places == sorted(places), "claimed in the order {}", places)


class NotEarly(Law):
    name = "not early"
    section = "2"
    sentence = "Nothing is claimed before its run_at."

    def before(self, seen: Seen, history: History) -> None:
        for job in claimed(seen):
            self.hold(
                job.run_at <= seen.answer.now, "{!r} ran {} ms early", job.id, job.run_at - seen.answer.now
            )


class Paused(Law):
    name = "paused takes nothing"
    section = "3, claim"
    sentence = "A claim in a paused queue takes nothing."

    def __init__(self) -> None:
        super().__init__()
        self.paused: dict[str, bool] = {}

    def begin(self) -> None:
        self.paused = {}

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb == "configure" and seen.args["patch"].paused is not UNSET:
            self.paused[seen.queue] = seen.args["patch"].paused
        elif seen.verb == "claim" and self.paused.get(seen.queue):
            self.hold(not seen.answer.jobs, "a paused queue handed out jobs")


class MaxActive(Law):
    name = "max_active is exact"
    section = "3, claim"
    sentence = "No claim brings more than max_active jobs of a queue under leases."

    def __init__(self) -> None:
        super().__init__()
        self.most: dict[str, int | None] = {}

    def begin(self) -> None:
        self.most = {}

    def after(self, seen: Seen, history: History) -> None:
        if seen.verb == "configure" and seen.args["patch"].max_active is not UNSET:
            self.most[seen.queue] = seen.args["patch"].max_active
        most = self.most.get(seen.queue)
        if seen.verb == "claim" and most is not None and (seen.answer.jobs or most == 0):
            held = [run for run in history.opened(seen.queue) if run.lease is not None]
            kept = len(held) <= most or not seen.answer.jobs
            self.hold(kept, "{} active under leases, max_active is {}", len(held), most)


class EndsOnce(Law):
    name = "ends once"
    section = "4.3"
    sentence = "Once a fence has ended one way, only the same end is answered done, and nothing returns."

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[tuple[str, str, int], str] = {}

    def begin(self) -> None:
        self.ends = {}

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb != "settle":
            return
        for settlement, answer in zip(seen.args["settlements"], seen.answer, strict=True):
            key = (seen.queue, settlement.id, settlement.fence)
            kind = kind_of(settlement.action)
            if key in self.ends:
                again = answer.status == "done" and kind == self.ends[key]
                ended = answer.status == "cancelled" and kind is None and self.ends[key] == "cancelled"
                lost = answer.status == "lost"
                self.hold(
                    again or ended or lost,
                    "{} answered {} after {}",
                    settlement,
                    answer.status,
                    self.ends[key],
                )
            elif answer.status == "done" and kind is not None:
                self.ends[key] = kind
            elif answer.status == "cancelled":
                self.ends[key] = "cancelled"


class StaleIsLost(Law):
    name = "a late holder is refused"
    section = "4.2"
    sentence = "A fence older than the newest of its id ends nothing that runs."

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb != "settle":
            return
        for settlement, answer in zip(seen.args["settlements"], seen.answer, strict=True):
            story = history.story(seen.queue, settlement.id)
            if settlement.fence < story.newest_fence:
                returned = answer.status in ("returned", "handed_off", "refused")
                self.hold(
                    not returned, "{} answered {}, newest {}", settlement, answer.status, story.newest_fence
                )


class NeverComesBack(Law):
    name = "asked to cancel, never back"
    section = "3, settle"
    sentence = "A run whose cancellation was requested ends; it does not return and is not handed off."

    def before(self, seen: Seen, history: History) -> None:
        if seen.verb == "settle":
            first = {
                s.id: (s, a) for s, a in reversed([*zip(seen.args["settlements"], seen.answer, strict=True)])
            }
            for settlement, answer in first.values():
                run = history.story(seen.queue, settlement.id).open
                asked = run is not None and run.cancel_requested and run.fence == settlement.fence
                if asked and isinstance(settlement.action, RetryLater | Release):
                    self.hold(answer.status == "cancelled", "{} answered {}", settlement, answer.status)
        elif seen.verb == "reap":
            for one in seen.answer:
                run = history.story(seen.queue, one.id).open
                if run is not None and run.cancel_requested:
                    self.hold(one.kind == "cancelled", "reap brought {!r} back as {}", one.id, one.kind)


def claimed(seen: Seen) -> tuple[Job, ...]:
    answer = seen.answer
    return answer.jobs if isinstance(answer, ClaimResult) else ()


def fence_of(job: Job) -> int:
    return job.run.fence if job.run is not None else 0
