"""The page of an id: current job, successor and outcome, and the form that enqueues a job."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from attrs import frozen

from dibs.client.calls.run_steps import decode_memo
from dibs.client.calls.signals import WAIT_PREFIX, OpenWait, current_wait
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.client.task import Task
from dibs.errors import BadHandler
from dibs.flow.batch.plan import BATCH_ATTRIBUTE, batch_of_segment, flow_attributes
from dibs.model.job import Job, JobData, Outcome, Slot, Successor
from dibs.model.limits import LATEST_TIME
from dibs.model.overrides import readable
from dibs.model.wakeup import EVALUATIONS, FLOWS, flow_of
from dibs.web.reading.errors import ErrorView, error_view
from dibs.web.reading.output import Outputs, OutputView
from dibs.web.reading.source import Shown, Source, iso, share, to_shown
from dibs.web.reading.story import Stories, Story, with_present

#: Most arguments, attributes or steps of a job that the page lists.
MAX_VALUES: Final = 50


@frozen
class NamedValue:
    """An argument, an attribute or a step of a job."""

    name: str
    value: Shown


#: Longest payload whose arguments a list shows, in bytes: a list of 25 would decode 25 MiB at each reading.
MAX_DECODED: Final = 65_536

#: Stands for the data of a flow.
PLAN: Final = NamedValue("plan", Shown("on the page of the flow", "hidden"))


@frozen
class Part:
    """One part of an id: its current job, its successor or its outcome."""

    state: str
    #: Labels with times in ms since the epoch.
    times: tuple[tuple[str, int], ...]
    #: Labels with short texts.
    facts: tuple[tuple[str, str], ...]
    #: The arguments of a task's call, else the whole data under the name "data"; None if they are not kept.
    arguments: tuple[NamedValue, ...] | None
    attributes: tuple[NamedValue, ...]
    steps: tuple[NamedValue, ...] = ()
    progress: Shown | None = None
    result: Shown | None = None
    error: ErrorView | None = None
    cancel_requested: bool = False


@frozen
class JobPage:
    """An id with all its parts."""

    queue: str
    id: str
    state: str
    current: Part | None
    successor: Part | None
    outcome: Part | None
    #: Number of ranges of enqueues that a cancel dropped.
    dropped: int
    story: Story
    #: None if no run of the job has written output.
    output: OutputView | None
    log_level: str
    #: True if the queue is paused.
    paused: bool
    #: The data of a waiting job as JSON text, for the form that changes it; None if the form cannot.
    editable: str | None
    #: The name of the signal that a parked job waits for; "" for none.
    waits_for: str
    priority: int
    #: Ids of the flow and the batch that the job belongs to; "" for none.
    flow: str
    batch: str

    @property
    def exists(self) -> bool:
        return self.current is not None or self.outcome is not None or self.dropped > 0


async def read_job(source: Source, stories: Stories, outputs: Outputs, params: Mapping[str, str]) -> JobPage:
    """Return the page of `queue` and `id`. Raises Refused for a queue or an id that is not allowed."""
    storage = await source.storage()
    queue, id = params.get("queue", ""), params.get("id", "")
    [slot] = await storage.get(queue, [id])
    settings = (await source.census.queues()).get(queue)
    log_level = "runs" if settings is None else settings.log_level
    current = slot.current
    part = current or slot.outcome
    since = None if part is None else part.enqueued_at
    story = await stories.read(source, storage, queue, id, since=since)
    return JobPage(
        queue=queue,
        id=id,
        state=slot_state(slot),
        current=None if current is None else _current(source, queue, current),
        successor=None if slot.successor is None else _successor(source, queue, slot.successor),
        outcome=None if slot.outcome is None else _outcome(source, queue, slot.outcome),
        dropped=len(slot.dropped),
        story=story if current is None or log_level == "all" else with_present(story, current),
        output=await outputs.read(source, storage, queue, id, slot),
        log_level=log_level,
        paused=settings is not None and settings.paused,
        editable=_editable(source, queue, current),
        waits_for="" if (wait := _wait(current)) is None else wait.name,
        priority=0 if current is None else current.data.priority,
        **_flow_ids(queue, id, slot),
    )


def _flow_ids(queue: str, id: str, slot: Slot) -> dict[str, str]:
    """Return the ids of the flow and the batch whose pages show this job."""
    attributes = flow_attributes(slot)
    flow = id if queue in (FLOWS, EVALUATIONS) else flow_of(attributes) or ""
    segment_of = batch_of_segment(flow) if flow else None
    return {"flow": flow, "batch": _callback_of(attributes) or segment_of or ""}


def _callback_of(attributes: Mapping[str, bytes]) -> str:
    """Return the id of the batch of a callback; "" for another job."""
    try:
        return msgspec.json.decode(attributes.get(BATCH_ATTRIBUTE, b'""'), type=str)
    except ValueError:  # a program has set the attribute itself
        return ""


def slot_state(slot: Slot) -> str:
    """Return the state of an id as the page names it."""
    if slot.current is None:
        return "nothing" if slot.outcome is None else slot.outcome.kind
    if slot.current.run is None:
        return "waiting"
    if slot.current.run.lease is None:
        return "handed off"
    return "active" if slot.successor is None else "active+blocked"


def _current(source: Source, queue: str, job: Job) -> Part:
    run = job.run
    times = [("enqueued", job.enqueued_at), ("due", job.run_at)]
    facts = list(_counts(job))
    if (wait := _wait(job)) is not None:
        facts.insert(0, ("waits for", wait.name))
        times[1:] = [("until", wait.until)] if wait.until < LATEST_TIME else []
    if run is not None:
        times.append(("claimed", run.claimed_at))
        facts.append(("worker", run.holder))
    return Part(
        state=slot_state(Slot(current=job)),
        times=tuple(times),
        facts=(*facts, *_data_facts(job.data), *_merged_enqueues(job)),
        **_data_parts(source, queue, job.data),
        progress=_progress(source, queue, None if run is None else run.progress),
        error=error_view(source, queue, job.error),
        cancel_requested=run is not None and run.cancel_requested,
    )


def _wait(job: Job | None) -> OpenWait | None:
    """Return the wait of a parked job for a signal; None for any other job."""
    return current_wait(job.data.memo) if job is not None and job.is_parked else None


def _successor(source: Source, queue: str, successor: Successor) -> Part:
    times = [("enqueued", successor.enqueued_at)]
    if successor.creates:
        times.append(("due", successor.run_at))
    parts = _data_parts(source, queue, successor.data if successor.creates else None)
    return Part(
        state="blocked",
        times=tuple(times),
        facts=(*_data_facts(successor.data), *_merged_enqueues(successor)),
        **parts,
    )


def _outcome(source: Source, queue: str, outcome: Outcome) -> Part:
    times = [("enqueued", outcome.enqueued_at)]
    if outcome.claimed_at is not None:
        times.append(("claimed", outcome.claimed_at))
    times.append(("ended", outcome.ended_at))
    facts = [*_counts(outcome)]
    if outcome.holder:
        facts.append(("worker", outcome.holder))
    if outcome.expires_at is None:
        facts.append(("kept", "for ever"))
    else:
        times.append(("kept until", outcome.expires_at))
    parts = _data_parts(source, queue, outcome.data)
    parts["attributes"] = _attributes(source, queue, outcome.kept_attributes)
    return Part(
        state=outcome.kind,
        times=tuple(times),
        facts=(*facts, *_merged_enqueues(outcome)),
        **parts,
        progress=_progress(source, queue, outcome.progress),
        result=_result(source, queue, outcome.result),
        error=error_view(source, queue, outcome.error),
    )


def _progress(source: Source, queue: str, raw: bytes | None) -> Shown | None:
    return None if raw is None else source.show_json(queue, "progress", raw)


def _result(source: Source, queue: str, raw: bytes | None) -> Shown | None:
    return None if raw is None else source.show(queue, "result", source.decode(queue, raw))


def _counts(value: Job | Outcome) -> Iterator[tuple[str, str]]:
    yield "attempts", str(value.attempts)
    for name in ("retries", "timeouts", "stalls"):
        if count := getattr(value, name):
            yield name, str(count)


def _merged_enqueues(value: Job | Successor | Outcome) -> Iterator[tuple[str, str]]:
    if value.enqueues > 1:
        yield "merged enqueues", str(value.enqueues)


def _data_facts(data: JobData) -> Iterator[tuple[str, str]]:
    if data.priority:
        yield "priority", str(data.priority)
    if data.key is not None:
        yield "key", data.key
    for name, value in readable(data.overrides, iso).items():
        # Of the values in an Overrides, only durations are floats.
        text = f"{value:g} s" if isinstance(value, float) else str(value)
        yield name.replace("_", " "), "no limit" if value is None else text


def _data_parts(source: Source, queue: str, data: JobData | None) -> dict[str, Any]:
    if data is None:
        return {"arguments": None, "attributes": ()}
    # The plan of a flow has the arguments of jobs of other queues, for which the redaction hook decides.
    known = (PLAN,) if queue == FLOWS else tuple(_arguments(source, queue, data.payload))
    return {
        "arguments": known,
        "attributes": _attributes(source, queue, data.attributes),
        "steps": _steps(source, queue, data.memo),
    }


def _attributes(source: Source, queue: str, attributes: Mapping[str, bytes]) -> tuple[NamedValue, ...]:
    found = {name: msgspec.json.decode(raw) for name, raw in attributes.items()}
    return (
        tuple(_named_values(source.hide(queue, "attributes", found), "attributes", share(len(found))))
        if found
        else ()
    )


def _arguments(source: Source, queue: str, payload: bytes) -> Iterator[NamedValue]:
    data = source.hide(queue, "data", source.decode(queue, payload))
    call = call_of(data)
    if call is None:
        yield NamedValue("data", to_shown(data))
        return
    args, kwargs = call
    names = _positional_names(source, queue)
    most = share(min(MAX_VALUES, len(args)) + min(MAX_VALUES, len(kwargs)))
    for index, value in enumerate(args[:MAX_VALUES]):
        yield NamedValue(names[index] if index < len(names) else f"[{index}]", to_shown(value, most))
    yield from _named_values(kwargs, "kwargs", most)


def _named_values(values: Any, name: str, most: int) -> Iterator[NamedValue]:
    if not isinstance(values, Mapping):
        yield NamedValue(name, to_shown(values))
        return
    for key in list(values)[:MAX_VALUES]:
        yield NamedValue(str(key), to_shown(values[key], most))


def arguments_text(source: Source, queue: str, data: JobData | None, most: int) -> str:
    """Return the arguments of a job in one line of at most `most` characters, as its page shows them.

    "" for a job without arguments, the plan of a flow, and an outcome that kept none.
    """
    if data is None or queue == FLOWS:
        return ""
    if len(data.payload) > MAX_DECODED:
        return f"{len(data.payload):,} bytes"
    parts = [
        each.value.text if each.name == "data" or each.name[0] == "[" else f"{each.name}={each.value.text}"
        for each in _arguments(source, queue, data.payload)
    ]
    text = " ".join(", ".join(parts).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def call_of(data: Any) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the positional and the named arguments of a task's payload; None for other data."""
    if not isinstance(data, dict) or data.keys() != {"args", "kwargs"}:
        return None
    args, kwargs = data["args"], data["kwargs"]
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def _positional_names(source: Source, queue: str) -> list[str]:
    task = source.task(queue)
    if task is None:
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(task.function).parameters
    return [name for name, one in parameters.items() if one.kind in by_position]


def _steps(source: Source, queue: str, memo: bytes | None) -> tuple[NamedValue, ...]:
    try:
        results = decode_memo(memo)
    except PayloadMismatch:
        return (NamedValue("memo", Shown(f"{len(memo or b'')} bytes", "bytes")),)
    most = share(min(MAX_VALUES, len(results)))
    return tuple(
        NamedValue(name, source.show(queue, "step", source.decode(queue, raw), most))
        for name, raw in list(results.items())[:MAX_VALUES]
        if not name.startswith(WAIT_PREFIX)
    )


def _editable(source: Source, queue: str, job: Job | None) -> str | None:
    """Return the data of a waiting job as JSON text, if the page may show and change it."""
    if job is None or job.run is not None or source.redact is not None:
        return None
    data = source.decode(queue, job.data.payload)
    shown = to_shown(data)
    return shown.text if shown.kind == "json" and not shown.is_cut else None


#: Most characters of a type hint or a default that the form shows.
MAX_HINT: Final = 80


@frozen
class FormField:
    """A parameter of a task as a field of the form."""

    name: str
    #: The type hint as text.
    hint: str
    #: True if the typed text is the value; False if it is JSON.
    is_text: bool
    required: bool
    #: The default as the reader sees it; "" without one.
    default: str


@frozen
class EnqueuePage:
    """The form of a queue."""

    queue: str
    #: The fields of a task; None for a queue without a task in this app, which takes JSON.
    fields: tuple[FormField, ...] | None
    doc: str


async def read_form(source: Source, params: Mapping[str, str]) -> EnqueuePage:
    """Return the form of `queue`."""
    queue = params.get("queue", "")
    await source.storage()
    task = source.task(queue)
    fields = None if task is None else task_fields(task)
    doc = "" if task is None else (inspect.getdoc(task.function) or "").partition("\n\n")[0]
    return EnqueuePage(queue, fields, doc)


def task_fields(task: Task[Any, Any]) -> tuple[FormField, ...] | None:
    """Return a field for each parameter; None for *args or **kwargs, which need the JSON of a call."""
    parameters = inspect.signature(task.function).parameters.values()
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return None
    try:
        hints = task._call.hints  # noqa: SLF001 - a part of dibs
    except BadHandler:
        hints = {}
    return tuple(_field(one, hints.get(one.name, Any)) for one in parameters)


def _field(one: inspect.Parameter, hint: Any) -> FormField:
    required = one.default is one.empty
    return FormField(
        name=one.name,
        hint=_hint_text(hint),
        is_text=_is_text(hint),
        required=required,
        default="" if required else repr(one.default)[:MAX_HINT],
    )


def _is_text(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set(typing.get_args(hint)) == {str, type(None)}
    return hint is str


def _hint_text(hint: Any) -> str:
    if hint is Any:
        return "any JSON"
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return text.replace("typing.", "")[:MAX_HINT]
