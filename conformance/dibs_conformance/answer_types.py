"""Checks that the answer of a storage has the type that the storage protocol declares for the verb."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from dibs.storage.many_queues import ManyQueues
from dibs.storage.protocol import BlockingClaims, Storage
from dibs_conformance.report.story import format_value

#: Number of entries of a list or mapping whose types are checked. Later entries count as having these types.
CHECKED_ENTRIES: Final = 100


def wrong_answer(verb: str, answer: object) -> str | None:
    """Return an error message for an answer whose type differs from the protocol's, else None."""
    declared = declared_type(verb)
    if declared is None or has_type(answer, declared):
        return None
    expected = str(inspect.signature(find_verb(verb)).return_annotation)
    return f"{verb}() returned {format_value(answer)[:200]}, a {type(answer).__name__}; expected {expected}"


@cache
def declared_type(verb: str) -> Any:
    """Return the type of the answer of a verb, or None for a name that is no verb."""
    method = find_verb(verb)
    return None if method is None else get_type_hints(method).get("return")


def find_verb(verb: str) -> Any:
    """Return the declaration of a verb, or None for a name that is no verb."""
    return next((vars(one)[verb] for one in (Storage, BlockingClaims, ManyQueues) if verb in vars(one)), None)


def has_type(value: object, declared: Any) -> bool:
    """Return whether a value has a type; for a list or mapping, also whether its first entries have theirs.

    A type other than a class, a list and a mapping is accepted without a check.
    """
    origin, inside = get_origin(declared), get_args(declared)
    if origin is None:
        return not isinstance(declared, type) or isinstance(value, declared)
    if not isinstance(origin, type):
        return True
    if not isinstance(value, origin):
        return False
    if issubclass(origin, Mapping):
        entries = list(value.values())[:CHECKED_ENTRIES]  # type: ignore[attr-defined]
        return all(has_type(entry, inside[-1]) for entry in entries)
    if issubclass(origin, Sequence):
        return all(has_type(entry, inside[0]) for entry in value[:CHECKED_ENTRIES])  # type: ignore[index]
    return True
