"""What is told about a storage that is not written yet: which verb to write next, and what it is to do."""

from __future__ import annotations

import inspect
from typing import Final

from dibs.storage.protocol import Storage
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.report import Failure

LAW: Final = "every verb is there"
#: Every verb of the protocol, in its order.
VERBS: Final = tuple(
    name
    for name, member in vars(Storage).items()
    if inspect.iscoroutinefunction(member) and not name.startswith("_")
)


def missing(error: Exception, story: tuple[str, ...]) -> Failure | None:
    """Return a failure that names the verb which is not there; None for any other error."""
    verb = missing_verb(error)
    if verb is None:
        return None
    kind = type(error.obj)  # type: ignore[attr-defined]
    others = [other for other in VERBS if other != verb and not hasattr(kind, other)]
    also = f" Not there either: {', '.join(others)}." if others else ""
    why = f"{kind.__name__} has no {verb}(). {says(verb)}{also}"
    return Failure(law=LAW, why=why, story=story)


def missing_verb(error: Exception) -> str | None:
    """Return the verb that was called and that the storage does not have yet."""
    if not isinstance(error, AttributeError) or error.name not in VERBS:
        return None
    return None if hasattr(type(error.obj), error.name) else error.name


def says(verb: str) -> str:
    """Return what the protocol says of a verb, in its first sentence, and where the rest stands."""
    member = getattr(Storage, verb)
    first = (inspect.getdoc(member) or "").partition("\n")[0]
    where = f"dibs.storage.protocol.Storage.{verb}"
    return f"It is to: {first} It returns {returns(verb)}; {where} says the rest."


def returns(verb: str) -> str:
    return str(inspect.signature(getattr(Storage, verb)).return_annotation)


def check_answer(verb: str, answer: object) -> None:
    """Refuse None, which no verb answers: the usual mark of one that is not finished."""
    if answer is None and verb in VERBS:
        raise Mismatch(f"{verb}() answered None. {says(verb)}")
