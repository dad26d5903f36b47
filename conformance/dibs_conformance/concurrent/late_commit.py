"""A reader of the log beside a transaction of the caller that commits late.

An entry may get its place in the log when it is written, and become visible when its transaction commits. A
reader must not get an offset behind that place in between.
"""

from __future__ import annotations

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs_conformance.concurrent.log_readers import LAW, SENTENCE
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.findings import law_report
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs.events import read_events

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
    law = law_report(LAW, "3, events", SENTENCE, 1, broken=bool(failures))
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
