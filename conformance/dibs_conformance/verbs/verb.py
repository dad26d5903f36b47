"""The description of a verb: everything that the engines of the kit know about it.

A verb is an operation of the storage protocol, such as `claim`. Its module in this package has

- a `Verb`, which the concurrent tests, the crash tests, the recorder of histories and the tests of bad input
  read;
- the model step: what the oracle does for a call;
- the `apply` of its parts: the model step, and the comparison of an answer with it;
- a class `...Calls` with the call in lockstep, if the general one (verbs/__init__.py) does not fit;
- a class `...Rules` with the random calls of L0, unless the lockstep call itself is the rule.

`dibs_conformance.verbs` lists all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import field, frozen

from dibs_conformance.lockstep import LockstepCore
from dibs_conformance.oracle.matching import match
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import OracleWorld
from dibs_conformance.verbs.actions import ClientAction, ClientCall, ClientState, read_action, read_actions

#: Stands for every id: the ids that the call changed are unknown.
ANY_ID = "*"

#: Builds the arguments of a call from an action, the queue and the client state.
ArgumentBuilder = Callable[[ClientAction, str, ClientState], dict[str, Any]]
#: The fields of recorded steps that are known so far.
Fields = dict[str, Any]
StepFields = Sequence[Fields]


@frozen(eq=False)
class CallPart:
    """An atomic part of a call: one item of a batch, one id of a reading, or the whole call."""

    call: ClientCall
    #: The name of the verb that the part performs, for messages.
    operation: str
    #: An item of a batch, or an id of a reading; for other verbs, all arguments of the call.
    request: Any
    #: The answer to this item, or None if the call has no answer.
    answer: Any
    apply: ApplyPart
    #: True for a reading whose answer has no numbers. If it explains the world now, no other moment need be
    #: tried.
    is_pure: bool = False
    #: Position within the call. Items of a batch take effect in list order, those of a reading in any order.
    index: int = 0
    #: Times in ms at which the part may have taken effect: the `now` of its call, or a later `now` of an
    #: overlapping call.
    times: tuple[int, ...] = ()
    #: Ids that overlapping calls touch. A claim or a reap may skip those ids.
    concurrent_ids: frozenset[str] = frozenset()
    #: True if a `configure` overlaps the call. The call may then obey the former or the new settings.
    settings_change: bool = False

    @property
    def name(self) -> str:
        return f"{self.call.client}: {self.operation}"

    @property
    def invoked(self) -> float:
        return self.call.invoked

    @property
    def returned(self) -> float:
        return self.call.returned

    @property
    def answered(self) -> bool:
        return self.call.completion == "answered"

    @property
    def unanswered(self) -> bool:
        return self.call.completion == "unknown"

    def follows(self, other: object) -> bool:
        """Return whether this part is a later item of the same call."""
        return isinstance(other, CallPart) and other.call is self.call and other.index < self.index

    def may_skip(self, id: str) -> bool:
        return id in self.concurrent_ids or ANY_ID in self.concurrent_ids


#: Applies a part at a time in ms to a possible world. Raises Mismatch for another answer than the oracle's.
ApplyPart = Callable[[OracleWorld, CallPart, int], None]


@frozen(kw_only=True)
class Race:
    """Two verbs of two clients that must overlap. Without actions, each client makes a random call."""

    first: str
    second: str
    #: The section of the contract that states the results of such an overlap.
    section: str
    setup: tuple[ClientAction, ...]
    first_action: ClientAction | None = None
    second_actions: tuple[ClientAction, ...] = ()
    #: The actions of both clients in the next round. If empty, the actions of that round are random.
    after: tuple[ClientAction, ...] = ()

    @property
    def name(self) -> str:
        return " beside ".join(sorted((self.first, self.second)))


RACE = re.compile(r"(?P<first>\w+) beside (?P<second>\w+)(?: \((?P<section>.*?)\))?(?:: ?(?P<rest>.*))?")


def read_races(text: str) -> tuple[Race, ...]:
    """Return the races of a text, one a line: the two verbs, the section, the setup and the actions.

    For example, "settle beside reap (3, Leases): runs / settle late / reap late; claim / claim": the setup,
    the action of the first client, those of the second, and those of both in the next round.
    """
    return tuple(read_race(line.strip()) for line in text.strip().splitlines())


def read_race(line: str) -> Race:
    found = RACE.fullmatch(line)
    assert found is not None, f"{line!r} is no race"  # noqa: S101 - a mistake in the module of a verb
    parts = [part.strip() for part in (found["rest"] or "").split("/")]
    setup, first, second, after = [*parts, "", "", ""][:4]
    return Race(
        first=found["first"],
        second=found["second"],
        section=found["section"] or "3",
        setup=read_actions(setup or "runs under a short lease"),
        first_action=read_action(first) if first else None,
        second_actions=read_actions(second) if second else (),
        after=read_actions(after) if after else (),
    )


@frozen
class Scene:
    """The actions that prepare a situation, and the action that a fault disturbs."""

    setup: tuple[ClientAction, ...]
    action: ClientAction


def read_scenes(text: str) -> dict[str, Scene]:
    """Return the scenes of a text by name. A line is "name: setup / action"."""
    lines = (line.strip().partition(": ") for line in text.strip().splitlines())
    parts = {name: rest.split(" / ") for name, _, rest in lines}
    return {name: Scene(read_actions(setup), read_action(action)) for name, (setup, action) in parts.items()}


class CallEncoding(NamedTuple):
    """The conversion of the calls of one verb to the steps of a recorded history."""

    #: Converts the arguments of a call to steps without an answer.
    request: Callable[..., StepFields]
    #: Adds an answer to these steps.
    reply: Callable[[StepFields, Any], StepFields]


@frozen(kw_only=True)
class Verb:
    """What the engines know about one verb, or about one operation of several calls, such as `serve`."""

    name: str
    #: The sections of the contract that define its answers and effects.
    section: str = ""
    #: Relative frequency among the random calls of concurrent clients. 0: only races and scenes make it.
    weight: int = 0
    arguments: ArgumentBuilder = lambda *_: {}
    #: The argument that holds the items, for a verb that applies them one after the other.
    batch: str = ""
    #: Yields the parts of a call, if they are not the items of the batch or the whole call.
    split: Callable[[ClientCall], Iterator[CallPart]] | None = None
    #: Applies a part. None for a verb that the search for an order leaves out.
    apply: ApplyPart | None = None
    #: True if the verb changes no id.
    reads: bool = False
    #: Yields the ids that a call may have changed, beside those in its arguments.
    touches: Callable[[ClientCall], Iterator[str]] = lambda _: iter(())
    takes_queues: bool = False
    takes_now: bool = True
    #: Makes the call in place of the verb, for an operation of several calls.
    call: Callable[..., Coroutine[Any, Any, Any]] | None = None
    #: Adds the runs, revisions, leases and offsets in an answer to those that clients received.
    remember: Callable[[ClientState, ClientCall], None] = lambda *_: None
    #: The races of L1 with this verb as the first one.
    races: tuple[Race, ...] = ()
    #: The scenes of L3 and L4 whose action is this verb, by name.
    scenes: Mapping[str, Scene] = field(factory=dict)
    #: None for a verb that a recorded history leaves out.
    encoding: CallEncoding | None = None
    #: Valid arguments for the tests of bad input (sequential/bad_calls.py), if others have other ones.
    valid: Mapping[str, Any] = field(factory=dict)

    def parts(self, call: ClientCall) -> Iterator[CallPart]:
        """Yield the atomic parts of a call, in order. A reading without an answer has no parts."""
        answered = call.completion == "answered"
        if self.apply is None or (self.reads and not answered):
            return
        if self.split is not None:
            yield from self.split(call)
        elif not self.batch:
            yield CallPart(call, self.name, call.args, call.answer, self.apply)
        else:
            yield from batch_parts(call, self, call.answer)


def batch_parts(call: ClientCall, verb: Verb, answers: Any) -> Iterator[CallPart]:
    """Yield a part for each item of the batch of a call, with its answer."""
    assert verb.apply is not None  # noqa: S101 - verbs with batches are ordered
    for index, item in enumerate(call.args[verb.batch]):
        answer = answers[index] if call.completion == "answered" else None
        yield CallPart(call, verb.name, item, answer, verb.apply, index=index)


def compare_call(world: LockstepCore, verb: Verb, queue: str, args: Mapping[str, Any], answer: Any) -> None:
    """Apply an answered call in lockstep. Raises Mismatch for another answer than the oracle's."""
    if verb.batch and len(answer) != len(args[verb.batch]):
        raise Mismatch(f"{verb.name} answered {len(answer)} results; expected {len(args[verb.batch])}")
    call = ClientCall(
        client="", operation=verb.name, queue=queue, args=args, now=world.now, invoked=0,
        completion="answered", answer=answer,
    )  # fmt: skip
    for part in verb.parts(call):
        part.apply(world, part, world.now)


def check_answer(world: OracleWorld, part: CallPart, id: str, expected: Any) -> None:
    """Raise Mismatch if the part has an answer that differs from the oracle's."""
    if part.answered:
        match(world.numbering, (part.call.queue, id), expected, part.answer)


def ids_in_arguments(call: ClientCall) -> Iterator[str]:
    """Yield the ids that the arguments of a call name."""
    args = call.args
    yield from args.get("ids", ())
    yield from (request.job.id for request in args.get("requests", ()))
    yield from (record.id for record in args.get("records", ()))
    for settlement in args.get("settlements", ()):
        yield settlement.id
        yield from (then.job.id for then in getattr(settlement.action, "then", ()))
    if "id" in args:
        yield args["id"]
        yield from (then.job.id for then in getattr(args.get("end"), "then", ()))


def apply_to_id(step: Callable[..., Sequence[Any]]) -> ApplyPart:
    """Return the `apply` of a verb on a list of ids. `step` is its model step, with the same arguments."""

    def apply(world: OracleWorld, part: CallPart, now: int) -> None:
        named = {name: value for name, value in part.call.args.items() if name != "ids"}
        [expected] = step(world.oracle, part.call.queue, [part.request], now, **named)
        check_answer(world, part, part.request, expected)

    return apply


# -- steps of histories ------------------------------------------------------------------------------


def with_status(requested: StepFields, answer: Sequence[str]) -> StepFields:
    """Return the steps with the status of each item."""
    return [{**one, "status": status} for one, status in zip(requested, answer, strict=True)]


def answered(status: str) -> Callable[[StepFields, Any], StepFields]:
    """Return a `reply` that gives each step this status."""
    return lambda requested, _: [{**one, "status": status} for one in requested]


def step_of_each_id(op: str) -> Callable[..., StepFields]:
    """Return a `request` with a step for each id."""

    def request(queue: str, ids: Sequence[str], *, running: bool = False, **_: Any) -> StepFields:
        return [{"op": op, "queue": queue, "id": id, "running": running} for id in ids]

    return request


def by_ids(action: ClientAction, _: str, __: ClientState) -> dict[str, Any]:
    """Return the argument `ids` of an action, each id once."""
    return {"ids": list(dict.fromkeys(action.ids))}
