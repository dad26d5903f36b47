"""Counts the calls of each verb of a storage."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any, Final

import pytest

from dibs.storage.protocol import Storage

VERBS: Final = [
    name
    for name, member in vars(Storage).items()
    if inspect.iscoroutinefunction(member) and not name.startswith("_")
]


def counted(storage: Storage, patch: pytest.MonkeyPatch) -> Counter[str]:
    """Return a counter of the calls of each verb from now on."""
    calls: Counter[str] = Counter()

    def counting(name: str, verb: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return verb(*args, **kwargs)

        return call

    for name in VERBS:
        patch.setattr(storage, name, counting(name, getattr(storage, name)))
    return calls
