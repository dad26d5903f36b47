"""Checks that each verb exists, and that its answer has the type that the protocol declares.

A verb is an operation of `dibs.storage.protocol.Storage`, such as `claim`. The failures of an unfinished
storage name a missing method and describe its task.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from dibs.storage.abilities import ManyQueues
from dibs.storage.protocol import BlockingClaims, Storage
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.report import LawFailure
from dibs_conformance.report.call_text import format_value

LAW: Final = "every verb is implemented"
#: All verbs of the storage protocol, in the order of its definition.
VERBS: Final = tuple(
    name
    for name, member in vars(Storage).items()
    if inspect.iscoroutinefunction(member) and not name.startswith("_")
)
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


def missing_verb_failure(error: Exception, story: tuple[str, ...]) -> LawFailure | None:
    """Return a failure for a call of a missing method. It also lists the other missing methods.

    Return None for any other error.
    """
    verb = missing_verb(error)
    if verb is None:
        return None
    kind = type(error.obj)  # type: ignore[attr-defined]
    others = [other for other in VERBS if other != verb and not hasattr(kind, other)]
    also = f" Also missing: {', '.join(others)}." if others else ""
    why = f"{kind.__name__} has no method {verb}(). {describe_verb(verb)}{also}"
    return LawFailure(law=LAW, why=why, story=story)


def missing_verb(error: BaseException) -> str | None:
    """Return the name of the storage method whose absence caused the error, or None for any other error."""
    if not isinstance(error, AttributeError) or error.name not in VERBS:
        return None
    return None if hasattr(type(error.obj), error.name) else error.name


def describe_verb(verb: str) -> str:
    """Return the first paragraph of the protocol's docstring of a verb, and the name of its result."""
    doc = inspect.getdoc(getattr(Storage, verb)) or ""
    task = " ".join(doc.partition("\n\n")[0].split())
    return f"Its task: {task} It returns {result_type(verb)}; see dibs.storage.protocol.Storage.{verb}."


def result_type(verb: str) -> str:
    """Return the result type of a verb as text, from the annotation in the protocol."""
    return str(inspect.signature(getattr(Storage, verb)).return_annotation)


def check_result(verb: str, result: object) -> None:
    """Raise Mismatch for a result of a wrong type, such as None, which an unfinished method returns."""
    if result is None and verb in VERBS:
        raise Mismatch(f"{verb}() returned None. {describe_verb(verb)}")
    if (wrong := wrong_answer(verb, result)) is not None:
        raise Mismatch(wrong)
