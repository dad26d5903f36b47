"""The conversion of the calls on whole queues to steps: configure, prune, import_, pages and the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from dibs.model.requests import Settings, SettingsPatch
from dibs.model.results import EventPage, ExportPage, ExportRecord, ListPage
from dibs_conformance.history.step import LoggedEntry

#: The fields of a step known so far.
Fields = dict[str, Any]
StepFields = Sequence[Fields]


class CallEncoding(NamedTuple):
    """Functions that convert the calls of one operation."""

    #: Converts the arguments of a call to steps without an answer.
    request: Callable[..., StepFields]
    #: Adds an answer to these steps.
    reply: Callable[[StepFields, Any], StepFields]


def digest(value: bytes | None) -> str:
    """Return a short digest of bytes, or "none" for None."""
    return "none" if value is None else blake2b(value, digest_size=6).hexdigest()


def with_status(requested: StepFields, answer: Sequence[str]) -> StepFields:
    return [{**one, "status": status} for one, status in zip(requested, answer, strict=True)]


def setting_texts(settings: Struct) -> dict[str, str]:
    """Return the fields that are set, each as JSON text."""
    fields = asdict(settings).items()
    return {name: msgspec.json.encode(value).decode() for name, value in fields if value is not UNSET}


def configure_request(queue: str, patch: SettingsPatch, **_: Any) -> StepFields:
    changes = {name: getattr(patch, name) for name in ("paused", "max_active")}
    known = {name: value for name, value in changes.items() if value is not UNSET}
    return [{"op": "configure", "queue": queue, "patch": setting_texts(patch), **known}]


def configure_reply(requested: StepFields, answer: Settings) -> StepFields:
    return [{**one, "status": "configured", "settings": setting_texts(answer)} for one in requested]


def import_request(queue: str, records: Sequence[ExportRecord], **_: Any) -> StepFields:
    return [import_fields(queue, record) for record in records]


def import_fields(queue: str, record: ExportRecord) -> Fields:
    fields: Fields = {"op": "import", "queue": queue, "id": record.id}
    if (job := record.slot.current) is not None:
        fields |= {"first": job.first, "revision": job.revision, "payload": digest(job.data.payload)}
    return fields


def list_request(
    queue: str, state: str, *, after: str | None = None, until: str | None = None, **_: Any
) -> StepFields:
    return [{"op": "list", "queue": queue, "how": state, "after": after, "upto": until}]


def export_request(queue: str, *, after: str | None = None, until: str | None = None, **_: Any) -> StepFields:
    return [{"op": "export", "queue": queue, "after": after, "upto": until}]


def list_reply(requested: StepFields, answer: ListPage) -> StepFields:
    ids = tuple(id for id, _ in answer.items)
    return [{**one, "status": "listed", "ids": ids, "next": answer.after} for one in requested]


def export_reply(requested: StepFields, answer: ExportPage) -> StepFields:
    ids = tuple(record.id for record in answer.records)
    return [{**one, "status": "listed", "ids": ids, "next": answer.after} for one in requested]


def events_request(queue: str, *, after: str | None = None, **_: Any) -> StepFields:
    return [{"op": "events", "queue": queue, "after": after}]


def events_reply(requested: StepFields, answer: EventPage) -> StepFields:
    logged = tuple(
        LoggedEntry(offset, e.kind, e.id, e.fence, e.claimed_at, e.finished_at) for offset, e in answer.events
    )
    fields = {"status": "read", "logged": logged, "next": answer.offset, "fell_off": answer.fell_off}
    return [{**one, **fields} for one in requested]


def answered(status: str) -> Callable[[StepFields, Any], StepFields]:
    return lambda requested, _: [{**one, "status": status} for one in requested]


QUEUE_ENCODINGS: dict[str, CallEncoding] = {
    "configure": CallEncoding(configure_request, configure_reply),
    "prune": CallEncoding(lambda queue, *_, **__: [{"op": "prune", "queue": queue}], answered("pruned")),
    "import_": CallEncoding(import_request, with_status),
    "list": CallEncoding(list_request, list_reply),
    "export": CallEncoding(export_request, export_reply),
    "split": CallEncoding(
        lambda queue, *_, state=None, **__: [{"op": "split", "queue": queue, "how": state or ""}],
        answered("split"),
    ),
    "events": CallEncoding(events_request, events_reply),
}
