"""The rule about listings and exports that are read while other clients work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from attrs import define, field, frozen

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.rules.order import waiting_periods
from dibs_conformance.history.rules.rule import HistoryRule, Violation, ended
from dibs_conformance.steps import RecordedStep


@frozen
class Period:
    """The time from `since` to `until`, in which an id was certainly in a state."""

    id: str
    state: str
    since: float
    until: float
    #: The claim that ended the period of a waiting job, or that began the run.
    claim: RecordedStep


@define
class Reading:
    """A listing or an export by one client, from its first page to its last, read as a whole or in parts."""

    #: The `split` that returned the cursors of the parts, if there was one, and then the pages.
    steps: list[RecordedStep] = field(factory=list)
    ids: Counter[str] = field(factory=Counter)

    @property
    def began(self) -> int:
        return self.steps[0].began

    @property
    def ended(self) -> int:
        return ended(self.steps[-1])


class ReadingRule(HistoryRule):
    name = "R28"
    title = "a reading shows what was there"
    section = "3, list"
    sentence = (
        "An id that was in the state, or existed, during a whole listing, export, or split export is in it "
        "once."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, pages in history.pages.items():
            by_state = periods_by_state(history, queue)
            for state in ("waiting", "active", ""):
                readings = [r for r in readings_of(pages) if r.steps[-1].how == state]
                yield from self._check_readings(queue, readings, by_state[state])

    def _check_readings(
        self, queue: str, readings: list[Reading], periods: list[Period]
    ) -> Iterator[Violation]:
        """Sweep over the readings in the order they began."""
        coming = iter(sorted(periods, key=lambda period: period.since))
        following = next(coming, None)
        open_periods: list[Period] = []
        for reading in sorted(readings, key=lambda reading: reading.began):
            while following is not None and following.since < reading.began:
                open_periods.append(following)
                following = next(coming, None)
            open_periods = [period for period in open_periods if period.until > reading.began]
            for period in open_periods:
                if period.until > reading.ended:
                    self.met += 1
                    times = reading.ids[period.id]
                    if times != 1:
                        why = f"the id appears {times} times in a reading"
                        yield self.violation((queue, period.id), why, period.claim, *reading.steps)


def periods_by_state(history: RecordedHistory, queue: str) -> dict[str, list[Period]]:
    """Return the periods for each state. Those of the empty state are for exports: the id existed."""
    found: dict[str, list[Period]] = defaultdict(list)
    for id_steps in history.by_queue.get(queue, ()):
        for job in waiting_periods(id_steps, history.first_unanswered_claim(queue)):
            found["waiting"].append(Period(job.claim.id, "waiting", job.since, job.claim.began, job.claim))
        for run in id_steps.runs:
            period = Period(run.claim.id, "active", ended(run.claim), run.earliest_close(), run.claim)
            if not run.handed_off:
                found["active"].append(period)
    found[""] = [*found["waiting"], *found["active"]]
    return found


def readings_of(pages: Iterable[RecordedStep]) -> Iterator[Reading]:
    """Yield the complete readings: pages of one client that follow each other, from no cursor to none."""
    by_client: dict[str, list[RecordedStep]] = defaultdict(list)
    for page in pages:
        by_client[page.client].append(page)
    for steps in by_client.values():
        reading = Reading()
        for step in sorted(steps, key=lambda step: step.began):
            if step.op == "split":
                reading = Reading([step])
                continue
            if step.after is None and [one.op for one in reading.steps] != ["split"]:
                reading = Reading()
            if step.ended is None or not follows(reading, step):
                reading = Reading()
                continue
            reading.steps.append(step)
            reading.ids.update(step.ids)
            if cursor_behind(step) is None:
                yield reading
                reading = Reading()


def follows(reading: Reading, page: RecordedStep) -> bool:
    """Return whether a page continues a reading."""
    if not reading.steps or reading.steps[-1].op == "split":
        return page.after is None
    last = reading.steps[-1]
    return (last.op, last.how, cursor_behind(last)) == (page.op, page.how, page.after)


def cursor_behind(page: RecordedStep) -> str | None:
    """Return the cursor at which the next page of the reading begins, or None after the last page."""
    return page.upto if page.next is None else page.next


RULES = (ReadingRule,)
