"""The banners at the top of the page: the findings, grouped, with the first few open and the rest folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, TypeVar

from dibs.spark.report.figures.findings import Outage, PoisonId
from dibs.spark.report.figures.summary import HistoryReport, TrimmedPeriod
from dibs.spark.report.page.charts import format_ms

#: Name of a range of time -> its label.
LABELS: Final = {"hour": "last hour", "day": "last day", "week": "last week", "all": "all"}

#: Banners that are shown; the others are folded.
MAX_OPEN: Final = 3
#: Outages or ids that a banner lists. The JSON has all.
MAX_LISTED: Final = 20
#: Names of queues in a sentence.
MAX_NAMED: Final = 6

FindingT = TypeVar("FindingT")


def render_banners(report: HistoryReport) -> str:
    """Return the banners of a report; the first MAX_OPEN are shown, the others are in one fold."""
    banners = [*_alarms(report), *_notes(report)]
    folded = banners[MAX_OPEN:]
    if not folded:
        return "".join(banners)
    noun = "finding" if len(folded) == 1 else "findings"
    return (
        f'{"".join(banners[:MAX_OPEN])}<details class="more"><summary>{len(folded)} more {noun}</summary>'
        f"{''.join(folded)}</details>"
    )


def clip(name: str, tag: str = "span") -> str:
    """Return a name that the style sheet clips to the width that it has; its title is the whole name."""
    return f'<{tag} class="clip" title="{escape(name)}">{escape(name)}</{tag}>'


def format_minute(at: int) -> str:
    """Return a time (ms since the epoch) as its minute in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def format_second(at: int) -> str:
    """Return a time (ms since the epoch) as its second in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _alarms(report: HistoryReport) -> Iterable[str]:
    for outages in _groups(report.outages, lambda outage: outage.queues):
        yield _banner(_describe_outages(outages), [_period(outage) for outage in outages])
    for poisons in _groups(report.poisons, lambda poison: poison.queue):
        yield _banner(_describe_poison_ids(poisons), [_describe_poison_id(poison) for poison in poisons])


def _notes(report: HistoryReport) -> Iterable[str]:
    if not report.queues:
        yield _banner("No job has ended yet.", kind="note")
    if report.gaps:
        names = _name_queues(sorted({gap.queue for gap in report.gaps}))
        yield _banner(
            f"{names}: {_describe_loss(report.gaps)} trimmed from the log before an increment read them. The "
            "log does not count trimmed events. Run increments more often, or keep the log longer (log_age, "
            "log_bytes).",
            [_describe_gap(gap) for gap in report.gaps],
            kind="note",
            is_folded=True,
        )
    if differing := [queue for queue in report.queues if not queue.little.agree]:
        details = [
            f"{clip(queue.queue, 'b')}: counted by the minute {queue.little.active:.4f} were active on "
            f"average, counted by the run {queue.little.expected:.4f}."
            for queue in differing
        ]
        names = _name_queues([queue.queue for queue in differing])
        yield _banner(
            f"{names}: a part of the history is missing, as two counts of the active runs differ.",
            details,
            kind="note",
            is_folded=True,
        )


def _describe_loss(gaps: Sequence[TrimmedPeriod]) -> str:
    """Return the estimated number of lost attempts, with the length of their periods."""
    closed = [gap for gap in gaps if gap.begin is not None and gap.end is not None]
    lost = sum(gap.estimated_attempts or 0 for gap in closed)
    if not lost:
        return "an unknown number of events was"
    length = format_ms(sum((gap.end or 0) - (gap.begin or 0) for gap in closed))
    return f"the events of about {lost:,} attempts in {length} (by the rate of the hours around) were"


def _describe_gap(gap: TrimmedPeriod) -> str:
    begin = f"after {format_second(gap.begin)}" if gap.begin is not None else "since the begin"
    until = f"before {format_second(gap.end)}" if gap.end is not None else "up to the newest event"
    length = f" ({format_ms(gap.end - gap.begin)})" if gap.begin is not None and gap.end is not None else ""
    lost = "" if gap.estimated_attempts is None else f", about {gap.estimated_attempts:,} attempts"
    return f"{clip(gap.queue, 'b')}: no event is known {begin} and {until}{length}{lost}."


def _banner(text: str, details: Sequence[str] = (), *, kind: str = "", is_folded: bool = False) -> str:
    """Return a banner. Details are folded below it; a single one is part of `text` unless `is_folded`."""
    fold = ""
    if len(details) > 1 or is_folded:
        left = len(details) - MAX_LISTED
        more = f"<li>{left:,} more are in the JSON.</li>" if left > 0 else ""
        items = "".join(f"<li>{detail}</li>" for detail in details[:MAX_LISTED])
        fold = f"<details><summary>Show each</summary><ul>{items}{more}</ul></details>"
    return f'<div class="finding {kind}">{text}{fold}</div>'


def _groups(findings: Iterable[FindingT], key: Callable[[FindingT], Hashable]) -> Iterable[list[FindingT]]:
    """Return the findings with equal keys together, in the order of the first ones."""
    groups: dict[Hashable, list[FindingT]] = {}
    for finding in findings:
        groups.setdefault(key(finding), []).append(finding)
    return groups.values()


def _name_queues(queues: Sequence[str]) -> str:
    named = ", ".join(clip(queue, "b") for queue in queues[:MAX_NAMED])
    left = len(queues) - MAX_NAMED
    return named if left <= 0 else f"{named} and {left:,} more queues"


def _period(outage: Outage) -> str:
    lost = f", and {outage.stalled:,} runs stalled" if outage.stalled else ""
    return (
        f"from {format_minute(outage.begin)} to {format_minute(outage.end)[-5:]} "
        f"({format_ms(outage.end - outage.begin)}); {outage.due:,} jobs were due at the end{lost}"
    )


def _describe_outages(outages: Sequence[Outage]) -> str:
    names = _name_queues(outages[0].queues)
    causes = "Possible causes: no worker, a paused queue, an unreachable storage."
    if len(outages) == 1:
        return f"No job of {names} was claimed {_period(outages[0])}. {causes}"
    total = format_ms(sum(outage.end - outage.begin for outage in outages))
    return (
        f"No job of {names} was claimed in {len(outages)} periods, {total} in all. The longest was "
        f"{_period(outages[0])}. {causes}"
    )


def _describe_poison_ids(poisons: Sequence[PoisonId]) -> str:
    if len(poisons) == 1:
        return _describe_poison_id(poisons[0])
    errors = Counter[str]()
    for poison in poisons:
        if poison.error_type:
            errors[poison.error_type] += sum(poison.bad.values())
    error = f", mostly with {clip(errors.most_common(1)[0][0])}" if errors else ""
    bad = sum(sum(poison.bad.values()) for poison in poisons)
    return (
        f"{len(poisons)} ids of {clip(poisons[0].queue, 'b')} fail nearly every time: "
        f"{bad:,} of {sum(poison.attempts for poison in poisons):,} attempts{error}. They cause "
        f"{sum(poison.share for poison in poisons):.0%} of all failures of the queue."
    )


def _describe_poison_id(poison: PoisonId) -> str:
    ends = ", ".join(f"{count:,} {end.replace('_', ' ')}" for end, count in poison.bad.items())
    error = f", mostly with {clip(poison.error_type)}" if poison.error_type else ""
    return (
        f"The id {clip(poison.id, 'b')} of {clip(poison.queue, 'b')} fails nearly every time: "
        f"of {poison.attempts:,} attempts {ends}{error}. It causes {poison.share:.0%} of all failures of "
        "the queue."
    )


def render_labels() -> str:
    """Return labels that choose a range of the radio buttons."""
    return "".join(f'<label for="range-{name}">{label}</label>' for name, label in LABELS.items())
