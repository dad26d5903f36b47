"""The law of readers of a log: once a reader has received an offset, no event appears at or before it.

A call and its events may become visible at different moments, so the search for an order (linearize.py)
leaves readings of the log out. This module compares the events that each reader got with the log at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.values import law_report
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs.actions import ClientCall, Round
from dibs_conformance.verbs.events import read_events

LAW = "nothing appears behind a reader"
SENTENCE = "Once a reader has received an offset, no event ever appears at or before it."


def reads_of_log(rounds: Iterable[Round]) -> list[ClientCall]:
    """Return the answered calls that read the log."""
    calls = (call for round_ in rounds for call in round_.calls)
    return [call for call in calls if call.operation == "events" and call.completion == "answered"]


def late_event(rounds: Sequence[Round]) -> str:
    """Return a sentence about an event that a reader missed, or "" if no reader missed one.

    The log of the last snapshot must have, between the offset that a reader started from and the offset that
    it got, exactly the events that it got.
    """
    last = rounds[-1].snapshot
    if last is None or last.events is None:
        return ""
    log = dict(zip(last.offsets, last.events, strict=True))
    for call in reads_of_log(rounds):
        after, until = call.args["after"], call.answer.offset
        got = dict(call.answer.events)
        expected = {at: event for at, event in log.items() if (after is None or at > after) and at <= until}
        missed = [at for at in expected if at not in got]
        if missed:
            event = log[missed[0]]
            return (
                f"{call.client} read the log up to the offset {until}; then the event {event.kind} of "
                f"{event.id!r} appeared at the offset {missed[0]}, which is not behind it"
            )
        if got != expected:
            return f"{call.client} read events up to the offset {until} that the log no longer has"
    return ""


# -- a transaction that commits late -----------------------------------------------------------------
#
# An entry may get its place in the log when it is written, and become visible when its transaction commits. A
# reader must not get an offset behind that place in between.

QUEUE = "late-commit"


def try_late_commit(plan: LevelPlan) -> Findings:
    """Read the log before and after a transaction commits, if the kit has a connection for one."""
    runner = LoopRunner()
    try:
        why = runner.run(missed_event(plan.locations))
    finally:
        runner.close()
    if why is None:
        return Findings()
    failures = (LawFailure(law=LAW, why=why),) if why else ()
    law = law_report(LAW, "3, Events", SENTENCE, 1, broken=bool(failures))
    return Findings(histories=1, laws=(law,), failures=failures)


async def missed_event(locations: Locations) -> str | None:
    """Return a sentence about an event that a reader missed, or "". None without a connection to try it."""
    location = locations.new()
    async with locations.open(location, "system") as storage:
        join = getattr(storage, "in_transaction", None)
        connecting = None if join is None else locations.connect(location)
        if join is None or connecting is None:
            return None
        await storage.configure(QUEUE, SettingsPatch(log_level="all"))
        async with connecting as connection:
            await join(connection).enqueue(QUEUE, request("early"))
            await storage.enqueue(QUEUE, request("late"))
            before = await read_events(storage, QUEUE)
            await connection.commit()
            after = await read_events(storage, QUEUE, after=before.offset)
        whole = await read_events(storage, QUEUE)
    got = {at for at, _ in (*before.events, *after.events)}
    missed = [event.id for at, event in whole.events if at not in got]
    return f"a reader missed the event of {missed[0]!r}, whose transaction committed late" if missed else ""


def request(id: str) -> list[EnqueueRequest]:
    return [EnqueueRequest(job=NewJob(id=id))]
