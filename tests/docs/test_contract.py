"""The contract page agrees with the code: transitions, verbs, events, settings and limits."""

from __future__ import annotations

from typing import get_args

from dibs.model import transition_table
from dibs.model.events import AttemptKind, NoteKind
from dibs.model.limits import LIMITS
from dibs.model.requests import SettingsPatch
from dibs.storage.protocol import Storage
from tests.source import PROJECT

PAGE = (PROJECT / "docs/explanation/contract.md").read_text("utf-8")
BEGIN = "<!-- transitions: begin (printed by dibs.model.transition_table.markdown()) -->\n\n"
END = "\n<!-- transitions: end -->"


def test_the_table_of_transitions_is_the_one_in_the_code() -> None:
    _, _, rest = PAGE.partition(BEGIN)
    table, _, _ = rest.partition(END)

    assert transition_table.markdown() == table


def test_every_verb_of_the_protocol_is_explained() -> None:
    verbs = [name for name, member in vars(Storage).items() if callable(member) and not name.startswith("_")]

    assert [] == [verb for verb in verbs if f"`{verb}(" not in PAGE]


def test_every_event_and_setting_is_named() -> None:
    words = [*get_args(AttemptKind), *get_args(NoteKind), *SettingsPatch.__struct_fields__]

    assert [] == [word for word in words if word not in PAGE]


def test_the_limits_are_those_of_the_code() -> None:
    assert f"| payload | {LIMITS.payload >> 20} MiB |" in PAGE
    assert f"| attributes | {LIMITS.attributes >> 10} KiB |" in PAGE
    assert f"| id | {LIMITS.id} bytes |" in PAGE
    assert f"| name of a queue | {LIMITS.queue} bytes |" in PAGE
    assert f"| request_key, key | {LIMITS.request_key} bytes |" in PAGE
    assert f"| requests in a batch | {LIMITS.batch:,} |" in PAGE
    assert f"| depth of JSON | {LIMITS.depth} |" in PAGE
