"""The checks of queues: unserved and paused ones, failure handlers, and outcomes that are kept for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dibs.doctor.facts import Facts
from dibs.model.findings import Finding, Rule
from dibs.model.job import FAIL_SUFFIX

#: Outcomes of one kind that a queue may keep for ever before it is a finding.
MANY_OUTCOMES: Final = 10_000

NOT_SERVED: Final = Rule(
    "queue-not-served",
    "error",
    "These jobs wait until a worker with a handler for the queue starts.",
    "Start a worker that serves the queue (`dibs worker MODULE:APP`), or correct the name of the queue in "
    "the program that enqueues; `dibs workers` lists the queues that are served.",
)
PAUSED: Final = Rule(
    "queue-paused",
    "warning",
    "No worker claims these jobs, also not those that are due.",
    "`dibs resume QUEUE`, or `dibs configure QUEUE --max-active NUMBER`, once the reason is gone.",
)
HANDLER_MISSING: Final = Rule(
    "failure-handler-missing",
    "warning",
    "Jobs of the queue that fail get a fail job, and no worker runs it.",
    "Start workers with the application that declares @task.on_failure, or pause the queue QUEUE!fail.",
)
HANDLER_FAILED: Final = Rule(
    "failure-handler-failed",
    "warning",
    "The failure handler itself has failed for these jobs. Their outcomes are kept for ever.",
    "`dibs failures QUEUE!fail` shows the errors; mend the handler, then `dibs retry QUEUE!fail --all`.",
)
KEPT_FOR_EVER: Final = Rule(
    "outcomes-kept",
    "warning",
    "The storage grows with each job that ends.",
    "Set a retention: `dibs configure QUEUE --retention completed=1h`, or retention= of the task.",
)
RULES: Final = (NOT_SERVED, PAUSED, HANDLER_MISSING, HANDLER_FAILED, KEPT_FOR_EVER)


def check_queues(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about single queues."""
    yield from _unserved(facts)
    yield from _paused(facts)
    yield from _failure_handlers(facts)
    yield from _kept_outcomes(facts)


def _unserved(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        due = counts.waiting - counts.scheduled
        # A program that calls `receive` keeps no record, but it holds jobs.
        is_served = name in facts.served or counts.active > counts.handed_off or not facts.knows_all_served
        if due > 0 and not settings.paused and not is_served:
            live = f"{len(facts.workers)} live workers" if len(facts.workers) != 1 else "the only live worker"
            yield NOT_SERVED.finding(f"{due:,} due jobs wait, and none of {live} serves them", name)


def _paused(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        reason = "paused" if settings.paused else "closed by max_active 0" if settings.max_active == 0 else ""
        if reason and counts.waiting:
            yield PAUSED.finding(f"the queue is {reason}, and {counts.waiting:,} jobs wait", name)


def _failure_handlers(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        if name.endswith(FAIL_SUFFIX) and counts.failed:
            yield HANDLER_FAILED.finding(f"{counts.failed:,} fail jobs have failed", name)
        is_handled = name + FAIL_SUFFIX in facts.served or not facts.knows_all_served
        if settings.fail_handler and name in facts.served and not is_handled:
            yield HANDLER_MISSING.finding("workers serve the queue and not its fail queue", name)


def _kept_outcomes(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        for kind in ("completed", "failed", "cancelled"):
            number: int = getattr(counts, kind)
            if getattr(settings.retention, kind) is None and number >= MANY_OUTCOMES:
                yield KEPT_FOR_EVER.finding(f"{number:,} {kind} outcomes are kept for ever", name)
