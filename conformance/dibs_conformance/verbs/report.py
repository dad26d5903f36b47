"""The verb `report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from dibs.model.events import LogEvent
from dibs.model.results import ReportStatus
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase, has_runs
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.ids import IdRecord, OracleChunk
from dibs_conformance.oracle.queue import OracleWorld
from dibs_conformance.steps import digest
from dibs_conformance.verbs.actions import ClientAction, ClientState
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    StepFields,
    Verb,
    check_answer,
    read_races,
    read_scenes,
    with_status,
)

#: What a chunk counts beside its bytes, and the most that an id keeps, in bytes.
OVERHEAD, MOST_OUTPUT = 64, 1024 * 1024
#: The progress and the memo of a report.
REPORTS: tuple[tuple[bytes | None, bytes | None], ...] = (
    (b"0.5", None),
    (None, b"m1"),
    (b"0.5", b"m2"),
    (None, b""),
)

#: The output of a report. A storage that keeps none refuses it.
OUTPUTS: tuple[tuple[bytes, ...], ...] = ((), (b"1",), (b"2", b"3"))


def build_arguments(action: ClientAction, _: str, state: ClientState) -> dict[str, Any]:
    id, fence = state.run(action)
    progress, memo = REPORTS[(action.limit + action.flag + action.nth_newest) % len(REPORTS)]
    output = OUTPUTS[(action.limit + action.nth_newest) % len(OUTPUTS)]
    return {"id": id, "fence": fence, "progress": progress, "memo": memo, "output": output}


def step(
    oracle: Oracle,
    queue: str,
    id: str,
    fence: int,
    progress: bytes | None,
    memo: bytes | None = None,
    *,
    output: Sequence[bytes] = (),
) -> ReportStatus:
    """Store progress, a memo and output of the active run with this fence. An empty memo removes the memo."""
    record = oracle.queue(queue).record(id)
    job = record.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    if progress is not None:
        job = replace(job, run=replace(job.run, progress=progress))
    if memo is not None:
        job = replace(job, data=replace(job.data, memo=memo or None))
    record.current = job
    add_output(oracle, record, output)
    return "reported"


def add_output(oracle: Oracle, record: IdRecord, output: Sequence[bytes]) -> None:
    """Append chunks to the output of an id, and mark the oldest ones that exceed the bound as removed."""
    job, now = record.current, oracle.now
    assert job is not None  # noqa: S101 - the caller found an active run
    assert job.run is not None  # noqa: S101
    for chunk in output:
        event = LogEvent(
            kind="output",
            id=job.id,
            at=now,
            attempt=job.attempts,
            fence=job.run.fence,
            holder=job.run.holder,
            first=job.first,
            revision=job.revision,
            result=chunk,
        )
        record.output.append(OracleChunk(oracle.numbers.draw(), event))
    kept = [chunk for chunk in record.visible_output(now) if not chunk.removed]
    while sum(len(chunk.event.result or b"") + OVERHEAD for chunk in kept) > MOST_OUTPUT:
        kept.pop(0).removed = True


def apply(world: OracleWorld, part: CallPart, _: int) -> None:
    queue, id, request = part.call.queue, part.request["id"], part.request
    fence = world.numbering.expected("fence", (queue, id), request["fence"])
    reported, output = (request["progress"], request["memo"]), request.get("output", ())
    expected = step(world.oracle, queue, id, fence, *reported, output=output)
    check_answer(world, part, id, expected)


class ReportRules(MachineBase):
    @precondition(has_runs)
    @rule(
        pick=some.picks,
        reported=st.sampled_from(some.REPORTS),
        output=st.sampled_from(some.OUTPUTS),
        alone=st.booleans(),
    )
    def report(
        self,
        pick: int,
        reported: tuple[bytes | None, bytes | None],
        output: Sequence[bytes],
        *,
        alone: bool,
    ) -> None:
        """Report progress and a memo; also output, or output alone, if the storage keeps it."""
        if not self.session.output:
            output = ()
        values = (None, None) if output and alone else reported
        self.lockstep.report(*self.issued_run(pick), *values, output=output)


def recorded_request(
    queue: str, id: str, fence: int, *reported: bytes | None, memo: bytes | None = None, **_: Any
) -> StepFields:
    memo = reported[1] if len(reported) > 1 else memo
    stored = "" if memo is None else digest(memo or None)
    return [{"op": "report", "queue": queue, "id": id, "fence": fence, "memo": stored}]


VERB = Verb(
    name="report",
    section="3, amend, report, retry_failed, forget",
    weight=1,
    arguments=build_arguments,
    apply=apply,
    races=read_races("""
        report beside settle (1, Queues, ids and their parts): / report one / settle retry; claim
        report beside reap (3, Leases): / / reap late; claim
    """),
    scenes=read_scenes("""
        report: runs / report
        report a memo: runs / report one
    """),
    encoding=CallEncoding(recorded_request, lambda requested, answer: with_status(requested, [answer])),
    valid={"id": "held"},
)
