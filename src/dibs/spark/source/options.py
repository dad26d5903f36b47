"""The options of the data source, parsed and checked from the texts of `.option(name, text)`.

All checks are done here, before Spark starts a task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from attrs import AttrsInstance, field, fields, frozen

from dibs.errors import Refused
from dibs.model.check_jobs import check_conflict, check_enqueue_queue, check_queue
from dibs.model.requests import DEFAULT_UPDATE, OnConflict, Reject
from dibs.spark.connection import absolute_location, shared_url
from dibs.spark.schemas import TableName, columns

OptionsT = TypeVar("OptionsT", bound=AttrsInstance)

#: Options that Spark adds to those of a stream.
SPARK_OPTIONS: Final = {"checkpointlocation", "queryname", "outputmode", "triggerinterval"}

#: Names of Spark's own sources, in lower case -> the option here, and its values for theirs.
_SPARK_NAMES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "startingoffsets": ("start", {}),
    "maxoffsetspertrigger": ("max_events", {}),
    "minpartitions": ("partitions", {}),
    "failondataloss": ("on_gap", {"true": "fail", "false": "skip"}),
}

_RUN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAMED_CONFLICTS: Final[dict[str, OnConflict]] = {"update": DEFAULT_UPDATE, "reject": Reject()}
_decode_conflict: Final = msgspec.json.Decoder(OnConflict).decode


# -- converters of single options: from text to value ------------------------------------------------


def parse_conflict(text: str) -> OnConflict:
    """Return the conflict rule that a text names: `update`, `reject`, or one of them with settings as JSON.

    Examples of JSON are {"type": "update", "run_at": "later"} and {"type": "reject", "failed": true}.
    Raise Refused for other texts.
    """
    if (known := _NAMED_CONFLICTS.get(text)) is not None:
        return known
    try:
        conflict: OnConflict = _decode_conflict(text)
    except msgspec.MsgspecError as error:
        raise Refused(
            f"on_conflict is {text!r:.80}; it must be update, reject, or JSON such as "
            f'{{"type": "update", "run_at": "later"}}: {error}',
            field="on_conflict",
        ) from None
    check_conflict(conflict)
    return conflict


def _parse_optional_conflict(text: str | None) -> OnConflict | None:
    return parse_conflict(text) if text else None


def _parse_queues(text: str | None) -> tuple[str, ...] | None:
    """Return the queues in a name or a JSON list of names, without duplicates; None for an empty text."""
    if not text:
        return None
    names = [text]
    if text.startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError as error:
            raise Refused(
                f"queue is {text!r:.80}; it must be a name or a JSON list of names: {error}", field="queue"
            ) from None
    for name in names:
        check_queue(name)
    return tuple(dict.fromkeys(names))


def _check_target_queue(queue: str) -> str:
    if not queue:
        raise Refused("option queue is missing; set it to the queue that receives the jobs", field="queue")
    check_enqueue_queue(queue)
    return queue


def _check_table(name: str) -> Any:
    columns(name)
    return name


def _check_run_name(run: str) -> str:
    if run and not _RUN.fullmatch(run):
        raise Refused(
            f"run is {run!r:.80}; it must be up to 64 letters, digits, '.', '_' and '-', and start with a "
            "letter or digit",
            field="run",
        )
    return run


def _parse_start(text: str) -> Any:
    if text in ("earliest", "latest"):
        return text
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise Refused(
            f'start is {text!r:.80}; it must be earliest, latest, or JSON such as {{"emails": "<offset>"}}',
            field="start",
        ) from None


def _parse_on_gap(text: str) -> Any:
    return _parse_choice("on_gap", text, "fail", "skip")


def _parse_pushdown(text: str) -> bool:
    return _parse_choice("pushdown", text, "false", "true") == "true"


def _parse_choice(name: str, text: str, *choices: str) -> str:
    if text.lower() not in choices:
        raise Refused(f"{name} is {text!r:.80}; it must be {' or '.join(choices)}", field=name)
    return text.lower()


def _parse_partitions(value: str | int) -> int:
    return _parse_positive("partitions", value)


def _parse_max_events(value: str | int | None) -> int | None:
    return None if value is None else _parse_positive("max_events", value)


def _parse_positive(name: str, value: str | int) -> int:
    text = str(value)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Refused(f"{name} is {text!r:.80}; it must be an integer of at least 1", field=name)
    return int(text)


def _to_absolute_location(text: str | None) -> str | None:
    return absolute_location(text) if text else None


def _empty_to_none(text: str | None) -> str | None:
    return text or None


# -- the options of each operation -------------------------------------------------------------------


@frozen(kw_only=True)
class ReadOptions:
    """The options of a batch read."""

    url: str
    table: TableName = field(converter=_check_table)
    #: None: all queues that exist when Spark plans the read.
    queues: tuple[str, ...] | None = field(default=None, converter=_parse_queues, alias="queue")
    #: Offsets in the log of the single queue: read the events behind `after`, up to and including `until`.
    after: str | None = field(default=None, converter=_empty_to_none)
    until: str | None = field(default=None, converter=_empty_to_none)
    on_gap: Literal["fail", "skip"] = field(default="fail", converter=_parse_on_gap)
    pushdown: bool = field(converter=_parse_pushdown)
    #: Maximum number of partitions for the ids or the log of one queue.
    partitions: int = field(default=1, converter=_parse_partitions)

    def __attrs_post_init__(self) -> None:
        if not (self.after or self.until):
            return
        if self.queues is None or len(self.queues) != 1:
            raise Refused(
                "after and until are offsets in the log of one queue; set option queue to its name",
                field="queue",
            )
        if self.table not in ("events", "runs"):
            raise Refused(f"table {self.table} has no offsets; remove after and until", field="after")


@frozen(kw_only=True)
class StreamOptions:
    """The options of a stream of events or runs."""

    url: str
    table: TableName = field(default="events", converter=_check_table)
    #: None: all queues, including queues created while the stream runs.
    queues: tuple[str, ...] | None = field(default=None, converter=_parse_queues, alias="queue")
    #: First offset without a checkpoint: earliest, latest, or queue -> offset.
    start: Literal["earliest", "latest"] | dict[str, str] = field(default="earliest", converter=_parse_start)
    on_gap: Literal["fail", "skip"] = field(default="fail", converter=_parse_on_gap)
    #: Maximum number of events in a micro-batch; None is unlimited.
    max_events: int | None = field(default=None, converter=_parse_max_events)
    #: Number of partitions of a micro-batch, if fewer queues than this have new events.
    partitions: int = field(default=1, converter=_parse_partitions)

    def __attrs_post_init__(self) -> None:
        if self.table not in ("events", "runs"):
            raise Refused(
                f"table {self.table} cannot be streamed; the tables that can are events and runs. Read "
                f"{self.table} with spark.read, or follow table events",
                field="table",
            )
        if isinstance(self.start, dict) and self.queues is not None:
            for queue in sorted(self.start.keys() - set(self.queues)):
                raise Refused(
                    f"start has an offset for queue {queue!r:.80}, but option queue does not name it",
                    field="start",
                )


@frozen(kw_only=True)
class WriteOptions:
    """The options of a write of jobs to a queue."""

    url: str
    queue: str = field(converter=_check_target_queue)
    on_conflict: OnConflict | None = field(default=None, converter=_parse_optional_conflict)
    #: Name of this write, part of the request key of each row; empty: a random name.
    run: str = field(default="", converter=_check_run_name)
    rejects: str | None = field(default=None, converter=_to_absolute_location)
    report: str | None = field(default=None, converter=_to_absolute_location)


def read_options(raw_options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read. Raise Refused with the name of an invalid option."""
    return read_options_at(shared_url(raw_options.get("url")), raw_options)


def read_options_at(url: str, raw_options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read from a URL that is resolved already."""
    return _create_options(
        ReadOptions, {"table": "", "pushdown": "false", **_lower_names(raw_options), "url": url}
    )


def stream_options(raw_options: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream that is read. Raise Refused with the name of an invalid option."""
    return _create_options(
        StreamOptions, {**_lower_names(raw_options), "url": shared_url(raw_options.get("url"))}
    )


def write_options(raw_options: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """Return the options of a write. Raise Refused with the name of an invalid option."""
    return write_options_at(shared_url(raw_options.get("url")), raw_options, stream=stream)


def write_options_at(url: str, raw_options: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """Return the options of a write to a URL that is resolved already."""
    # The run of a stream is made of the id of its query and the number of its batch.
    excluded = frozenset({"run"} if stream else ())
    return _create_options(WriteOptions, {"queue": "", **_lower_names(raw_options), "url": url}, excluded)


def _lower_names(raw_options: Mapping[str, str]) -> dict[str, str]:
    """Return options by the names of the fields. Raise Refused for an option that has two names here."""
    # Spark does not distinguish upper and lower case in names of options.
    given = {name.lower(): text for name, text in raw_options.items()}
    found = dict[str, str]()
    for said, text in given.items():
        name, values = _SPARK_NAMES.get(said, (said, {}))
        if name != said and name in given:
            raise Refused(f"options {said} and {name} are the same; set one of them", field=name)
        found[name] = values.get(text.lower(), text) if values else text
    return found


def _create_options(
    kind: type[OptionsT], raw_options: Mapping[str, str], excluded: frozenset[str] = frozenset()
) -> OptionsT:
    known = {attribute.alias for attribute in fields(kind)} - excluded
    for name in raw_options:
        if name not in known and name not in SPARK_OPTIONS:
            raise Refused(f"unknown option {name!r}; known options: {', '.join(sorted(known))}", field=name)
    values: dict[str, Any] = {name: text for name, text in raw_options.items() if name in known}
    return kind(**values)
