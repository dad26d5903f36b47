"""The verb `counts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import convert

from dibs.model.results import Counts
from dibs_conformance.lockstep import LockstepCore
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import STATES, OracleWorld
from dibs_conformance.verbs.actions import ClientCall
from dibs_conformance.verbs.verb import CallEncoding, CallPart, StepFields, Verb, read_races


def step(oracle: Oracle, queue: str) -> Counts:
    sizes: dict[str, int] = {state: len(oracle.list(queue, state)) for state in STATES}
    return convert({**sizes, "retrying": _count_retrying(oracle, queue)}, Counts)


def _count_retrying(oracle: Oracle, queue: str) -> int:
    jobs = (record.current for record in oracle.queue(queue).ids.values())
    return sum(
        job is not None and job.run is None and job.retries + job.stalls + job.timeouts > 0 for job in jobs
    )


def split(call: ClientCall) -> Iterator[CallPart]:
    """Yield a part for each number."""
    counts: Counts = call.answer[call.queue]
    for name in counts.__struct_fields__:
        if name != "approximate":
            yield CallPart(call, "counts", name, getattr(counts, name), apply, is_pure=True)


def apply(world: OracleWorld, part: CallPart, _: int) -> None:
    expected = getattr(step(world.oracle, part.call.queue), part.request)
    if part.answer != expected:
        raise Mismatch(f"counts answered {part.answer} {part.request}; expected {expected}")


class CountsCalls(LockstepCore):
    """`counts`, called in lockstep."""

    def counts(self, queues: Sequence[str]) -> None:
        args = {"queues": queues}
        answers = self.call("counts", args, self.storage.counts(queues, now=self.now))
        for queue in queues:
            self.compare(queue, "", step(self.oracle, queue), answers[queue])


def recorded_reply(requested: StepFields, answer: Mapping[str, Counts]) -> StepFields:
    return [{**one, "status": "counted", "counts": numbers_of(answer[one["queue"]])} for one in requested]


def numbers_of(counts: Counts) -> dict[str, int]:
    return {name: int(getattr(counts, name)) for name in counts.__struct_fields__}


VERB = Verb(
    name="counts",
    section="3, Queues as a whole",
    weight=1,
    arguments=lambda _, __, ___: {},
    split=split,
    apply=apply,
    reads=True,
    takes_queues=True,
    races=read_races("counts beside claim (3, Queues as a whole): both wait"),
    encoding=CallEncoding(
        lambda queues, **_: [{"op": "counts", "queue": queue} for queue in queues], recorded_reply
    ),
)
