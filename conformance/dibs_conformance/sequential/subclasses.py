"""Promise 8: a subclass of str, bytes or int counts as its plain value, in each argument of each verb.

The texts say something else in `str()`, `repr()` and format strings, as members of an Enum do.
"""

from __future__ import annotations

import inspect
from enum import IntEnum
from typing import Any, Final, cast

from attrs import frozen
from msgspec import Struct

from dibs.storage.protocol import Storage
from dibs_conformance.sequential.bad_input import replaced
from dibs_conformance.sequential.scripts import Player, read_histories
from dibs_conformance.verbs import Lockstep


class Text(str):
    """A text whose conversions to text are another text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        return "another text"


class Bytes(bytes):
    """A subclass of bytes."""


def with_subclasses(value: Any) -> Any:
    """Return a copy with each text, each bytes and each number replaced by one of a subclass."""
    if isinstance(value, str):
        return Text(str.__str__(value))
    if isinstance(value, bytes):
        return Bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return IntEnum("Number", {"MEMBER": value}).MEMBER  # type: ignore[attr-defined]
    if isinstance(value, list | tuple):
        return type(value)(map(with_subclasses, value))
    if isinstance(value, dict):
        return {with_subclasses(name): with_subclasses(one) for name, one in value.items()}
    if isinstance(value, Struct):
        for field in value.__struct_fields__:
            value = replaced(value, field, with_subclasses(getattr(value, field)))
    return value


@frozen
class SubclassedCalls:
    """A storage whose verbs get values of subclasses."""

    storage: Storage

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.storage, name)
        if not inspect.iscoroutinefunction(verb):
            return verb
        return lambda *args, **named: verb(
            *map(with_subclasses, args), **{name: with_subclasses(one) for name, one in named.items()}
        )


[EACH_VERB] = read_histories("""
Each verb gets values of subclasses: the life of a job, from a repeated enqueue to a prune.
    set max_active=2 log_level=all; enqueue a!1 payload=p attributes=a:1 request_key=key delay=0
    enqueue b request_key=key; enqueue c d:k retention=completed:5+keep:completed; list waiting limit=10
    grant; renew hour; claim 1; report a 1 memo=m; amend a attributes=b:2; cancel a; hand_off a
    finish fail a error=E/m; retry_failed a; claim 1; complete a result=r then=e; claim 1
    exchange complete last; counts; queues; export 10; drop 1; reap 1; forget a; wait 5; prune; events 10
    amend e priority=1
""")


def use_subclasses(lockstep: Lockstep) -> None:
    """Play a history whose calls have values of subclasses, and compare its results as always."""
    handles: Final = lockstep.opened.handles
    handles[:] = [cast("Storage", SubclassedCalls(handle)) for handle in handles]
    Player(lockstep).play(*EACH_VERB.steps)
