"""Fixed histories as text: each line has some calls, which run in lockstep with the oracle.

A history begins with a sentence, and tags in brackets: how it runs once more. Its steps are indented and
separated by `;`:

    A claim passes over a job of a full key. [restarts]
        grant; set per_key=1; enqueue a:k b:k c; runs = claim
        each $end = complete | retry delay=5: $end runs; claim; wait 5

`a:k!1@5` is a job with the id `a`, the key `k`, the priority 1 and a delay of 5 ms, and `j{0-3}` stands for
j00 to j03. The name of an action settles runs: those of an id, of a name that a claim got, or `last`, those
of the newest claim. `settle` begins a settlement of several actions, separated by commas, as are the requests
of one enqueue. `exchange` is a settle_and_claim. A value is a number, `none`, `yes`, `no`, `hour`, `2day`,
`now+5` or a text; `NOTATIONS` has the fields that are written in another way. `each` repeats its steps with
each word, or with each part between bars, and `times` a number of times. The steps of a loop may also stand
on lines of their own, indented further.

`output a` reads the output of `a` to its end, with the reader of this id, or with another `reader`; a number
is the size of its pages.

An export is read in pages or in parts. `copy_and_compare` imports it at an empty location, and compares the
copy with the oracle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

from attrs import define, field, frozen
from msgspec import Struct, structs

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    Reject,
    Release,
    RetryLater,
    Settings,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
    Update,
)
from dibs.model.results import ClaimResult, ExportRecord
from dibs.storage.protocol import Storage
from dibs_conformance.lockstep import Interruptions, OutputReader
from dibs_conformance.oracle.numbering import Mismatch, NumberKind
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.strategies import DAY, HOUR
from dibs_conformance.target import OpenedStorage
from dibs_conformance.verbs import Lockstep, import_
from dibs_conformance.verbs.actions import START
from dibs_conformance.verbs.events import Reader
from dibs_conformance.verbs.list import hide_expired


def read_export(pair: Lockstep, queue: str, limit: int) -> tuple[list[ExportRecord], Settings]:
    """Export a queue page by page. Return its records and its settings.

    Raise Mismatch unless each id occurs once, equal to that of the oracle.
    """
    records, settings = pair.read_export(queue, limit)
    pair.record("export", {"queue": queue, "limit": limit}, [record.id for record in records])
    check_ids(pair, queue, [record.id for record in records])
    for record in records:
        pair.compare_slot(queue, record.id, hide_expired(record.slot, pair.now))
    return records, settings


def export_in_parts(pair: Lockstep, queue: str, parts: int, limit: int) -> None:
    """Export a queue in parts. Raise Mismatch unless all parts together contain each id once."""
    read = [pair.read_export(queue, limit, part)[0] for part in pair.split(queue, parts)]
    ids = [[record.id for record in records] for records in read]
    pair.record("export", {"queue": queue, "parts": parts, "limit": limit}, ids)
    check_ids(pair, queue, [id for part in ids for id in part])


def check_ids(pair: Lockstep, queue: str, ids: list[str]) -> None:
    """Raise Mismatch unless each live id was exported once.

    An id whose outcome has expired may be missing.
    """
    known = pair.oracle.queue(queue).ids
    must = {id for id, one in known.items() if one.current or one.live_outcome(pair.now)}
    if len(ids) != len(set(ids)) or not must <= set(ids) <= set(known):
        raise Mismatch(f"export has {sorted(ids)}; expected {sorted(must)}")


def copy_and_compare(session: ExampleSession, source: Lockstep, queue: str, limit: int) -> None:
    """Copy a queue to a new location. Compare its slots, counts and order of claims there with the oracle.

    The records are imported twice; the second import must change no id.
    """
    opened = OpenedStorage(session.locations, session.runner, session.locations.new())
    target = Lockstep(opened, session.runner, session.story, now=source.now, compare_each=True)
    target.oracle.numbers = source.oracle.numbers
    try:
        copy_queue(source, target, queue, limit)
    finally:
        opened.close()


def copy_queue(source: Lockstep, target: Lockstep, queue: str, limit: int) -> None:
    records, settings = read_export(source, queue, limit)
    export_in_parts(source, queue, limit, limit)
    target.configure(queue, SettingsPatch(**structs.asdict(settings)))
    answers = target.call("import_", {"queue": queue}, target.storage.import_(queue, records, now=target.now))
    if [*answers] != ["imported"] * len(records):
        raise Mismatch(f"import_ into an empty location returned {answers}; expected imported")
    copy_oracle(source, target, queue, records)
    target.compare_slots(queue)
    target.counts([queue])
    import_twice(target, queue, records)
    claim_all(target, queue)


def copy_oracle(source: Lockstep, target: Lockstep, queue: str, records: list[ExportRecord]) -> None:
    """Copy the records of the oracle to the oracle of `target`, and map the imported numbers to them."""
    target.numbering = source.numbering.copy_for_import(queue)
    target.read_offsets = {scope: [] for scope in source.read_offsets if scope[0] == queue}
    call = target.oracle.numbers.call
    for record in records:
        for kind, number in imported_numbers(record.slot):
            scope = (queue, record.id)
            target.numbering.add_imported(
                kind, scope, source.numbering.expected(kind, scope, number), number, call
            )
        known = deepcopy(source.oracle.get(queue, record.id))
        import_.step(target.oracle, queue, record.id, known, target.now)


def import_twice(target: Lockstep, queue: str, records: list[ExportRecord]) -> None:
    """Import the records of existing ids again. Raise Mismatch unless each one gets the result `exists`."""
    known = target.oracle.queue(queue).ids
    there = [
        record for record in records if known[record.id].current or known[record.id].live_outcome(target.now)
    ]
    answers = target.call("import_", {"queue": queue}, target.storage.import_(queue, there, now=target.now))
    if [*answers] != ["exists"] * len(there):
        raise Mismatch(f"import_ of existing ids returned {answers}; expected exists")
    target.compare_slots(queue)


def claim_all(target: Lockstep, queue: str) -> None:
    """Claim the due jobs of the copy. The order must be that of the oracle, and each fence must be new."""
    target.configure(queue, SettingsPatch(paused=False, max_active=None))
    lease = target.grant([queue], HOUR, "mover")
    target.claim(queue, lease, 100)


def imported_numbers(slot: Slot) -> Iterator[tuple[NumberKind, int]]:
    """Yield each seq, revision and fence of an exported slot, with its kind."""
    for live in (slot.current, slot.successor):
        if live is not None:
            if live.seq:  # A successor that creates nothing has none.
                yield "seq", live.seq
            yield "revision", live.revision
    if slot.current is not None and slot.current.run is not None:
        yield "fence", slot.current.run.fence
    if slot.outcome is not None:
        yield "revision", slot.outcome.revision
        if slot.outcome.fence:
            yield "fence", slot.outcome.fence


QUEUE: Final = "q"
ACTIONS: Final[dict[str, type[SettleAction]]] = {
    "complete": Complete,
    "fail": Fail,
    "cancelled": Cancelled,
    "retry": RetryLater,
    "release": Release,
    "hand_off": HandOff,
}
OOPS: Final = Error(type="Oops")
CONSTANTS: Final = {"none": None, "yes": True, "no": False}
UNITS: Final = {"": 1, "hour": HOUR, "day": DAY}
LOOP: Final = re.compile(
    r"(?:times (?P<times>\d+)|each (?P<names>\$\w+(?: \$\w+)*) = (?P<words>.*?)):(?: (?P<steps>.*))?"
)
JOB: Final = re.compile(r"(?P<id>[^:!@]+)(:(?P<key>[^!@]+))?(!(?P<priority>-?\d+))?(@(?P<delay>\d+))?")


@frozen
class FixedHistory:
    """One fixed history. Call it with a lockstep to play it."""

    sentence: str
    tags: Sequence[str]
    steps: Sequence[str]

    @property
    def crosses_queues(self) -> bool:
        """Return whether a follow-up is for another queue, which needs the capability `cross_queue`."""
        return any(re.search(r"\bthen=\S*>", step) for step in self.steps)

    @property
    def reports_output(self) -> bool:
        """Return whether a run reports output, which needs the capability `output`."""
        return any(re.search(r"\boutput=", step) for step in self.steps)

    def __call__(self, lockstep: Lockstep) -> None:
        Player(lockstep).play(*self.steps)


def read_histories(text: str) -> tuple[FixedHistory, ...]:
    """Return the histories of a text, in order."""
    parts = re.findall(r"^(\S.*?)(?: \[(.*)\])?\n((?: +.*\n)+)", text, re.MULTILINE)
    return tuple(
        FixedHistory(sentence, tags.split(", "), tuple(unroll(steps.splitlines())))
        for sentence, tags, steps in parts
    )


def unroll(lines: Sequence[str]) -> Iterator[str]:
    """Yield the steps of some lines, with those of each loop repeated."""
    rest = list(lines)
    while rest:
        line, inside = rest.pop(0), []
        while rest and indent(rest[0]) > indent(line):
            inside.append(rest.pop(0))
        if (loop := LOOP.fullmatch(line.strip())) is None:
            yield from filter(None, line.strip().split("; "))
            continue
        times, names, words, steps = loop.group("times", "names", "words", "steps")
        bars = " | " if " | " in (words or "") else None
        for values in words.split(bars) if names else [""] * int(times):
            yield from unroll(
                [substitute(one, names or "", values) for one in ([steps] if steps else inside)]
            )


def substitute(line: str, names: str, values: str) -> str:
    """Return a line with each variable replaced by its value: several variables have a word each."""
    variables = names.split()
    for name, value in zip(variables, values.split() if len(variables) > 1 else [values], strict=False):
        line = line.replace(name, value)
    return line


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def spread(word: str) -> Iterator[str]:
    """Yield the words for which a word with a range stands, such as `j{0-3}:k` or `{a-c}`."""
    found = re.fullmatch(r"(.*)\{(\w+)-(\w+)\}(.*)", word)
    if found is None:
        yield word
    elif found[2].isdigit():
        yield from (f"{found[1]}{n:02}{found[4]}" for n in range(int(found[2]), int(found[3]) + 1))
    else:
        yield from (f"{found[1]}{chr(n)}{found[4]}" for n in range(ord(found[2]), ord(found[3]) + 1))


# -- values ------------------------------------------------------------------------------------------


def read_value(text: str, now: int) -> Any:
    """Return a constant, a number, a time or duration in ms, or the text itself."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if found := re.fullmatch(r"now([+-]\d+)?", text):
        return now + int(found[1] or 0)
    found = re.fullmatch(r"(-?\d*)(hour|day|)", text)
    return int(found[1] or 1) * UNITS[found[2]] if found and text else text


def read_text(text: str) -> str:
    """Return a text; `x*5` stands for xxxxx."""
    found = re.fullmatch(r"(.+)\*(\d+)", text)
    return found[1] * int(found[2]) if found else text


def read_bytes(text: str) -> bytes:
    return read_text(text).encode("latin-1")


def read_error(text: str) -> Error:
    """Return an error from `Type` or `Type/message`."""
    kind, _, message = text.partition("/")
    return Error(type=kind, message=read_text(message))


def read_pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split("+"))


def read_retention(text: str) -> OutcomeRetention:
    """Return a retention from `failed:10+keep:failed/completed`."""
    fields = {name: read_value(value, 0) for name, value in read_pairs(text).items() if name != "keep"}
    if (kept := read_pairs(text).get("keep")) is not None:
        fields["keep_payload"] = () if kept == "none" else tuple(kept.split("/"))
    return OutcomeRetention(**fields)


def read_rule(text: str) -> Update | Reject:
    """Return a rule for a known id from `reject`, `reject_failed` or `create:no+run_at:later`."""
    if text.startswith("reject"):
        return Reject(failed=text == "reject_failed")
    return Update(**{name: read_value(value, 0) for name, value in read_pairs(text).items()})


def read_job(text: str, options: Mapping[str, Any]) -> NewJob:
    """Return a job. Options are fields of the job or its data. A job with a key has its id as payload."""
    found = JOB.fullmatch(text)
    assert found is not None, f"{text!r} is no job"  # noqa: S101 - a mistake in a history
    id, key, priority, delay = found.group("id", "key", "priority", "delay")
    data: dict[str, Any] = {
        "key": key,
        "payload": id.encode() if key else b"",
        "priority": int(priority or 0),
    }
    fields: dict[str, Any] = {"id": id, "delay": int(delay) if delay else None, **select(options, NewJob)}
    return NewJob(**fields, data=JobData(**data | select(options, JobData)))


def select(options: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """Return the options that are fields of a kind of struct."""
    return {name: value for name, value in options.items() if name in kind.__struct_fields__}


def read_follow_ups(text: str) -> tuple[FollowUp, ...]:
    """Return follow-ups from `a:k@5+other>b`, with a queue for `b`, or update-only ones from `update+a`."""
    names = text.removeprefix("update+").split("+")
    rule = Update(create=not text.startswith("update+"))
    queued = [(queue or QUEUE, read_job(job, {})) for queue, _, job in (one.rpartition(">") for one in names)]
    return tuple(FollowUp(queue=queue, job=job, on_conflict=rule) for queue, job in queued)


#: The fields that are not written as plain values.
NOTATIONS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("payload", "result", "memo"), read_bytes),
    **dict.fromkeys(("rate", "key_rate"), lambda text: StartRate(*map(int, text.split("/")))),
    "shares": lambda text: {key: read_value(share, 0) for key, share in read_pairs(text).items()},
    "output": lambda text: tuple(map(read_bytes, text.split("+"))),
    "request_key": str,
    "attributes": lambda text: {name: value.encode() for name, value in read_pairs(text).items()},
    "error": read_error,
    "retention": read_retention,
    "on_conflict": read_rule,
    "then": read_follow_ups,
}


# -- the calls ---------------------------------------------------------------------------------------


@frozen
class ScriptPart:
    """A part of a step: its words, and its options."""

    words: Sequence[str]
    options: dict[str, Any]

    @classmethod
    def read(cls, text: str, now: int) -> ScriptPart:
        words, options = list[str](), dict[str, Any]()
        for word in text.split():
            name, equals, value = word.partition("=")
            if not equals:
                words += spread(word)
            elif name in NOTATIONS and value != "none":
                options[name] = NOTATIONS[name](value)
            else:
                options[name] = read_value(value, now)
        return cls(words, options)

    def number(self, default: int) -> int:
        """Return the number that the first word is, or the default."""
        return int(read_value(self.words[0], 0)) if self.words else default

    def action(self) -> SettleAction:
        """Return the action that the first word names. A failure has the error `Oops` by default."""
        kind = ACTIONS[self.words[0]]
        return kind(**({"error": OOPS} if kind is Fail else {}) | self.options)

    def requests(self) -> Iterator[EnqueueRequest]:
        """Yield a request for each word. An option is a field of the request, the job or its data."""
        for word in self.words:
            job = read_job(word, self.options)
            yield EnqueueRequest(job=job, **select(self.options, EnqueueRequest))


#: The methods of a lockstep, or of a storage, whose steps have another name.
METHODS: Final = {
    "set": "configure",
    "exchange": "settle_and_claim",
    "wait": "pass_time",
    "compare": "compare_slots",
    "queues": "all_queues",
}


@define
class HistoryCalls:
    """The calls of the steps of one history. It knows the newest lease, and the runs and revisions by id."""

    queue: str = QUEUE
    lease: str = ""
    reader: Reader = field(factory=Reader)
    #: The readers of output, by name. A reader has the name of its id by default.
    output_readers: dict[str, OutputReader] = field(factory=dict)
    #: Leases, runs and revisions by name. The name of an id stands for its newest run.
    saved: dict[str, Any] = field(factory=dict)
    revisions: dict[str, int] = field(factory=dict)

    def read(self, step: str, now: int) -> tuple[str, str, list[ScriptPart]]:
        """Return the name that a step gives to its result, its verb, and its parts."""
        name, _, call = step.rpartition(" = ")
        verb, _, rest = call.partition(" ")
        if verb in ACTIONS:
            verb, rest = "settle", call
        return name, verb, [ScriptPart.read(part, now) for part in rest.split(", ")]

    def arguments(
        self, verb: str, parts: Sequence[ScriptPart]
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yield the arguments of each call of a step. Only a report makes several, one for each run."""
        part, queue = parts[0], parts[0].options.pop("in", self.queue)
        if verb == "report":
            progress = part.words[1].encode() if part.words[1:] else None
            for id, fence in self.saved[part.words[0]].items():
                yield (queue, id, fence, progress), part.options
            return
        yield ARGUMENTS[verb](self, queue, parts), part.options if verb in WITH_OPTIONS else {}

    def output(self, queue: str, part: ScriptPart) -> tuple[Any, ...]:
        """Return the arguments of a reading of the output of an id, by the reader that a part names."""
        [id, *rest] = part.words
        reader = self.output_readers.setdefault(part.options.pop("reader", id), OutputReader())
        return queue, id, reader, int(rest[0]) if rest else 100

    def find_lease(self, part: ScriptPart) -> str:
        name = part.options.pop("lease", None)
        return str(self.saved[name]) if name else self.lease

    def settlements(self, parts: Sequence[ScriptPart]) -> list[Settlement]:
        """Return a settlement for each run of each part, whose first word is the action."""
        costs = [part.options.pop("cost", None) for part in parts]
        return [
            Settlement(id=id, fence=fence, action=part.action(), cost=cost)
            for part, cost in zip(parts, costs, strict=True)
            for name in part.words[1:]
            for id, fence in self.saved[name].items()
        ]

    def exchange(self, queue: str, parts: Sequence[ScriptPart]) -> tuple[Any, ...]:
        limit = parts[0].options.pop("limit", 10)
        return queue, self.settlements(parts), self.lease, limit

    def finish(self, queue: str, part: ScriptPart) -> tuple[Any, ...]:
        """Return the arguments of a finish by the revision of a claim, or of a named enqueue."""
        named, id = part.options.pop("revision", None), part.words[1]
        return queue, id, part.action(), self.saved[named] if named else self.revisions[id]

    def keep(self, name: str, verb: str, answer: Any) -> None:
        """Keep the lease, the runs or the revision that an answer has. A named lease is not the newest."""
        kept: Any = None
        if verb == "grant":
            kept = answer if isinstance(answer, str) else answer.lease
            self.lease = self.lease if name else kept
        elif verb == "enqueue":
            kept = answer[-1].revision
        elif verb in ("claim", "exchange"):
            jobs = answer.jobs if isinstance(answer, ClaimResult) else answer.claim.jobs
            kept = {job.id: job.run.fence for job in jobs if job.run is not None}
            self.saved |= {**{id: {id: fence} for id, fence in kept.items()}, "last": kept}
            self.revisions |= {job.id: job.revision for job in jobs}
        if name:
            self.saved[name] = kept


#: The arguments of a call, by verb. They come from its parts, and from the leases and runs of the history.
ARGUMENTS: Final[dict[str, Callable[[HistoryCalls, str, Sequence[ScriptPart]], tuple[Any, ...]]]] = {
    "grant": lambda _, queue, parts: (parts[0].words[1:] or [queue], parts[0].number(HOUR), "kit"),
    "renew": lambda calls, queue, parts: ([queue], calls.find_lease(parts[0]), parts[0].number(HOUR)),
    "drop": lambda calls, queue, parts: ([queue], calls.find_lease(parts[0]), parts[0].number(10)),
    "set": lambda _, queue, parts: (queue, SettingsPatch(**parts[0].options)),
    "enqueue": lambda _, queue, parts: (queue, [one for part in parts for one in part.requests()]),
    "claim": lambda calls, queue, parts: (queue, calls.find_lease(parts[0]), parts[0].number(10)),
    "settle": lambda calls, queue, parts: (queue, calls.settlements(parts)),
    "exchange": lambda calls, queue, parts: calls.exchange(queue, parts),
    "finish": lambda calls, queue, parts: calls.finish(queue, parts[0]),
    "amend": lambda _, queue, parts: (queue, parts[0].words[0], JobPatch(**parts[0].options)),
    "list": lambda _, queue, parts: (queue, *parts[0].words),
    "events": lambda calls, queue, parts: (queue, calls.reader, parts[0].number(100)),
    "output": lambda calls, queue, parts: calls.output(queue, parts[0]),
    "counts": lambda _, queue, parts: (parts[0].words or [queue],),
    "compare": lambda _, queue, parts: tuple(parts[0].words or [queue]),
    "wait": lambda _, __, parts: (parts[0].number(0),),
    "queues": lambda _, __, ___: (),
    **dict.fromkeys(
        ("cancel", "forget", "retry_failed"), lambda _, queue, parts: (queue, list(parts[0].words))
    ),
    **dict.fromkeys(
        ("reap", "prune", "prune_all", "export"), lambda _, queue, parts: (queue, parts[0].number(10))
    ),
}
#: The verbs whose options are arguments of the call.
WITH_OPTIONS: Final = ("claim", "cancel", "list", "export", "output", "prune_all", "retry_failed")


class Player:
    """Plays the steps of one history in lockstep."""

    def __init__(self, lockstep: Lockstep) -> None:
        self.lockstep = lockstep
        self.calls = HistoryCalls()

    def play(self, *steps: str) -> None:
        for step in steps:
            name, verb, parts = self.calls.read(step, self.lockstep.now)
            for args, named in self.calls.arguments(verb, parts):
                if verb == "export":
                    answer: Any = None
                    self.export(*args, **named)
                else:
                    answer = getattr(self.lockstep, METHODS.get(verb, verb))(*args, **named)
                self.calls.keep(name, verb, answer)

    def export(self, queue: str, limit: int, parts: int = 0) -> None:
        """Read an export in pages, whole or in parts."""
        if parts:
            export_in_parts(self.lockstep, queue, parts, limit)
        else:
            read_export(self.lockstep, queue, limit)


async def play_steps(storage: Storage, calls: HistoryCalls, script: str, *, now: int | None = None) -> None:
    """Make the calls of some steps on a storage alone. Without `now`, it has the system clock."""
    when = {} if now is None else {"now": now}
    for step in filter(None, script.split("; ")):
        name, verb, parts = calls.read(step, now or 0)
        for args, named in calls.arguments(verb, parts):
            answer = await getattr(storage, METHODS.get(verb, verb))(*args, **named, **when)
            calls.keep(name, verb, answer)


def play_history(
    session: ExampleSession,
    play: Callable[[Lockstep], None],
    *,
    handles: int = 1,
    compare_each: bool = True,
    interruptions: Interruptions | None = None,
) -> None:
    """Run one history at a new location, with several handles if the storage allows them.

    A history that needs a capability is left out where the storage does not claim it.
    """
    if isinstance(play, FixedHistory) and (
        (play.crosses_queues and not session.cross_queue) or (play.reports_output and not session.output)
    ):
        return
    session.examples += 1
    session.story.begin()
    location = session.locations.new()
    handles = handles if session.handles else 1
    opened = OpenedStorage(session.locations, session.runner, location, handles=handles)
    lockstep = Lockstep(
        opened,
        session.runner,
        session.story,
        now=START,
        compare_each=compare_each,
        interruptions=interruptions,
    )
    try:
        play(lockstep)
    except BaseException:
        # An error from `close` would hide the error of the history.
        with suppress(Exception):
            lockstep.opened.close()
        raise
    else:
        lockstep.opened.close()
    finally:
        session.calls += lockstep.oracle.numbers.call


# -- calls of histories in Python --------------------------------------------------------------------

#: The id and the fence of an active run.
RunRef = tuple[str, int]


def enqueue(lockstep: Lockstep, *ids: str, payload: bytes = b"") -> None:
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload))) for id in ids])


def claim(lockstep: Lockstep, lease: str, limit: int = 10) -> Sequence[RunRef]:
    jobs = lockstep.claim(QUEUE, lease, limit).jobs
    return [(job.id, job.run.fence) for job in jobs if job.run is not None]


def settle(lockstep: Lockstep, run: RunRef, *actions: SettleAction) -> None:
    id, fence = run
    for action in actions:
        lockstep.settle(QUEUE, [Settlement(id=id, fence=fence, action=action)])
