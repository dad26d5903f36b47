"""What may be said with `.option(...)`: read, checked and named once, before any process starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from dibs.errors import Refused
from dibs.model.check_jobs import check_conflict, check_queue, check_target
from dibs.model.requests import DEFAULT_UPDATE, OnConflict, Reject
from dibs.spark.door import place_of
from dibs.spark.schemas import Table, columns

READ: Final = ("url", "table", "queue", "after", "until", "on_gap", "pushdown", "partitions")
FOLLOW: Final = ("url", "table", "queue", "start", "on_gap", "max_events")
WRITE: Final = ("url", "queue", "on_conflict", "run", "rejects", "report")
#: What Spark itself adds to the options of a stream.
OF_SPARK: Final = {"checkpointlocation", "queryname", "outputmode", "triggerinterval"}

_RUN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CONFLICTS: Final[dict[str, OnConflict]] = {"update": DEFAULT_UPDATE, "reject": Reject()}
_conflict: Final = msgspec.json.Decoder(OnConflict).decode


class ReadOptions(Struct, frozen=True, kw_only=True):
    """A batch read. `queues` None: all there are when it is planned."""

    url: str
    table: Table
    queues: tuple[str, ...] | None = None
    #: Offsets: only what lies behind the one and up to the other.
    after: str | None = None
    until: str | None = None
    on_gap: Literal["fail", "skip"] = "fail"
    pushdown: bool = False
    #: Into how many parts the ids or the log of a queue are cut at most, to be read side by side.
    partitions: int = 1


class FollowOptions(Struct, frozen=True, kw_only=True):
    """A stream of events or runs."""

    url: str
    table: Table
    queues: tuple[str, ...] | None = None
    #: Where each queue begins without a checkpoint: earliest, latest, or an offset by queue.
    start: Literal["earliest", "latest"] | dict[str, str] = "earliest"
    on_gap: Literal["fail", "skip"] = "fail"
    #: Most events of one micro-batch; None is all there are.
    max_events: int | None = None


class WriteOptions(Struct, frozen=True, kw_only=True):
    """A write of jobs into a queue."""

    url: str
    queue: str
    on_conflict: OnConflict | None = None
    #: The name of this write: what was enqueued under it is known again.
    run: str = ""
    rejects: str | None = None
    report: str | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read. Raises Refused naming the one at fault."""
    return read_options_at(place_of(given.get("url")), given)


def read_options_at(url: str, given: Mapping[str, str]) -> ReadOptions:
    """Return the same, at a place that was looked at already."""
    _check_known(given, READ)
    table = _table(given)
    after, until = given.get("after"), given.get("until")
    queues = _queues(given)
    if (after or until) and (queues is None or len(queues) != 1):
        raise Refused("after and until are offsets of one log: say with queue which", field="queue")
    if (after or until) and table not in ("events", "runs"):
        raise Refused(f"table {table} has no offsets; leave after and until out", field="after")
    return ReadOptions(
        url=url,
        table=table,
        queues=queues,
        after=after,
        until=until,
        on_gap=_word(given, "on_gap", ("fail", "skip")),
        pushdown=_word(given, "pushdown", ("false", "true")) == "true",
        partitions=_whole(given, "partitions", 1) or 1,
    )


def follow_options(given: Mapping[str, str]) -> FollowOptions:
    """Return the options of a stream that is read. Raises Refused naming the one at fault."""
    _check_known(given, FOLLOW)
    table = _table(given, "events")
    if table not in ("events", "runs"):
        raise Refused(f"table {table} is no log and cannot be followed: events or runs can", field="table")
    queues = _queues(given)
    return FollowOptions(
        url=place_of(given.get("url")),
        table=table,
        queues=queues,
        start=_start(given, queues),
        on_gap=_word(given, "on_gap", ("fail", "skip")),
        max_events=_whole(given, "max_events", 1),
    )


def write_options(given: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """Return the options of a write. Raises Refused naming the one at fault."""
    # The run of a stream is its query's own.
    known = tuple(name for name in WRITE if not stream or name != "run")
    _check_known(given, known)
    return write_options_at(place_of(given.get("url")), given)


def write_options_at(url: str, given: Mapping[str, str]) -> WriteOptions:
    """Return the same, at a place that was looked at already."""
    queue = given.get("queue")
    if not queue:
        raise Refused("say with option queue where the jobs go", field="queue")
    check_target(queue)
    run = given.get("run") or ""
    if run and not _RUN.fullmatch(run):
        raise Refused(
            f"run is {run!r:.80}; it must be up to 64 letters, digits, '.', '_' and '-', a letter or "
            "digit first",
            field="run",
        )
    return WriteOptions(
        url=url,
        queue=queue,
        on_conflict=conflict_of(given["on_conflict"]) if given.get("on_conflict") else None,
        run=run,
        rejects=given.get("rejects") or None,
        report=given.get("report") or None,
    )


def conflict_of(text: str) -> OnConflict:
    """Return how a known id is met, from `update`, `reject`, or either with its settings as JSON.

    {"type": "update", "run_at": "later"} and {"type": "reject", "failed": true} are such. Raises Refused.
    """
    if (known := _CONFLICTS.get(text)) is not None:
        return known
    try:
        how: OnConflict = _conflict(text)
    except msgspec.MsgspecError as error:
        raise Refused(
            f"on_conflict is {text!r:.80}; it must be update, reject, or JSON as in "
            f'{{"type": "update", "run_at": "later"}}: {error}',
            field="on_conflict",
        ) from None
    check_conflict(how)
    return how


def _check_known(given: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in given:
        if name.lower() not in known and name.lower() not in OF_SPARK:
            raise Refused(f"unknown option {name!r}; known: {', '.join(sorted(known))}", field=name)


def _table(given: Mapping[str, str], default: str = "") -> Any:
    table = given.get("table", default)
    columns(table)
    return table


def _queues(given: Mapping[str, str]) -> tuple[str, ...] | None:
    """Read one name, or a JSON list of names."""
    text = given.get("queue")
    if not text:
        return None
    names = [text]
    if text.startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError as error:
            raise Refused(f"queue begins like a JSON list of names, but: {error}", field="queue") from None
    for name in names:
        check_queue(name)
    return tuple(dict.fromkeys(names))


def _start(given: Mapping[str, str], queues: tuple[str, ...] | None) -> Any:
    text = given.get("start", "earliest")
    if text in ("earliest", "latest"):
        return text
    try:
        offsets = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise Refused(
            f'start is {text!r:.80}; it must be earliest, latest, or JSON as in {{"emails": "<offset>"}}',
            field="start",
        ) from None
    if queues is not None and (strange := sorted(set(offsets) - set(queues))):
        raise Refused(f"start has an offset for {strange[0]!r:.80}, which is not read", field="start")
    return offsets


def _word(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> Any:
    """Read one of some words; the first is the default."""
    word = given.get(name, words[0]).lower()
    if word not in words:
        raise Refused(f"{name} is {word!r:.80}; it must be {' or '.join(words)}", field=name)
    return word


def _whole(given: Mapping[str, str], name: str, least: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise Refused(f"{name} is {text!r:.80}; it must be a whole number from {least}", field=name)
    return int(text)
