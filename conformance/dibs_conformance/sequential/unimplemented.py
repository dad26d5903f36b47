"""The failures of an unfinished storage. Each names a missing method and describes its task."""

from __future__ import annotations

import inspect
from typing import Final

from dibs.storage.protocol import Storage
from dibs_conformance.answer_types import wrong_answer
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.report import Failure

LAW: Final = "every verb is implemented"
#: All verbs of the storage protocol, in the order of its definition.
VERBS: Final = tuple(
    name
    for name, member in vars(Storage).items()
    if inspect.iscoroutinefunction(member) and not name.startswith("_")
)


def missing_verb_failure(error: Exception, story: tuple[str, ...]) -> Failure | None:
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
    return Failure(law=LAW, why=why, story=story)


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
