"""Names of keys. All keys of a queue, and of its fail queue, share one hash tag, so they share a slot.

The queue `emails` has `dibs:{emails}:waiting` and so on, its fail queue `dibs:{emails}:fail:waiting`. What is
not a letter, a digit or one of `-_.` is written as %XX, so no name can open or close a hash tag, or look like
another name; upper and lower case stay apart.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from dibs.errors import UnknownOption
from dibs.model.job import FAIL_SUFFIX

#: What every key begins with, unless the URL says otherwise.
PREFIX: Final = "dibs"
_OTHERS: Final = re.compile(rb"[^A-Za-z0-9_.-]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@lru_cache(4096)
def beginning(prefix: str, queue: str) -> str:
    """Return what the keys of a queue begin with."""
    if queue.endswith(FAIL_SUFFIX) and queue != FAIL_SUFFIX:
        return f"{prefix}:{{{encoded(queue[: -len(FAIL_SUFFIX)])}}}:fail:"
    return f"{prefix}:{{{encoded(queue)}}}:"


def encoded(name: str) -> str:
    """Return a name as it stands in keys."""
    # A lone surrogate names no queue, but asking for one must not fail either.
    return _OTHERS.sub(
        lambda found: b"%%%02X" % ord(found[0]), name.encode("utf-8", "surrogatepass")
    ).decode()


def checked_prefix(prefix: str) -> str:
    """Return the prefix if keys may begin with it. Raises UnknownOption."""
    if not _PREFIX.fullmatch(prefix):
        raise UnknownOption(f"prefix is {prefix!r}; it must be 1 to 100 letters, digits or one of -_.:")
    return prefix


def registry_key(prefix: str) -> str:
    """Return the key of the set of queue names."""
    return f"{prefix}:queues"


def version_key(prefix: str) -> str:
    """Return the key that tells who writes here."""
    return f"{prefix}:version"
