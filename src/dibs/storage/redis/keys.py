"""Names of the Redis keys of a queue.

The queue `emails` has keys like dibs:{emails}:waiting, its fail queue keys like dibs:{emails}:fail:waiting.
Both share the hash tag {emails}, so a cluster keeps their keys on one server and one script may use them all.
Every byte except letters, digits and `-_.` is written as %XX. So no queue name opens or closes a hash tag,
and two names never have the same keys, also if they differ only in case.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from dibs.errors import UnknownOption
from dibs.model.job import FAIL_SUFFIX

#: The start of every key, unless the URL option `prefix` sets another.
PREFIX: Final = "dibs"
_ESCAPED: Final = re.compile(rb"[^A-Za-z0-9_.-]")
_VALID_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@lru_cache(4096)
def queue_prefix(prefix: str, queue: str) -> str:
    """Return the start of all keys of a queue, as in `dibs:{emails}:`."""
    if queue.endswith(FAIL_SUFFIX) and queue != FAIL_SUFFIX:
        return f"{prefix}:{{{escape(queue[: -len(FAIL_SUFFIX)])}}}:fail:"
    return f"{prefix}:{{{escape(queue)}}}:"


def channel_prefix(queue_prefix: str, database: int) -> str:
    """Return the start of the names of all channels of a queue, as in `dibs:{emails}:0:`."""
    return f"{queue_prefix}{database}:"


def declared_in_cluster(prefixes: list[str]) -> list[str]:
    """Return the keys that the call of a script declares in a cluster: prefixes of queues, and one more.

    None of these keys exists. While a slot moves to another node, each node has a part of the queue's keys. A
    script with two declared keys that do not exist gets ASK from the one node and TRYAGAIN from the other,
    so it runs on neither. With one such key, the receiving node would run it on a part of the queue.
    """
    return [*prefixes, f"{prefixes[0]}moving"]


def escape(name: str) -> str:
    """Return a queue name with special bytes as %XX: `a:b` becomes `a%3Ab`."""
    # A valid queue name has no lone surrogate. A read of such a queue must still find it empty, not fail.
    return _ESCAPED.sub(
        lambda found: b"%%%02X" % ord(found[0]), name.encode("utf-8", "surrogatepass")
    ).decode()


def queue_of_prefix(prefix: str) -> str:
    """Return the name of the queue whose keys start with `prefix`, the inverse of `queue_prefix`."""
    escaped, _, rest = prefix.partition(":{")[2].partition("}")
    name = re.sub(r"%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), escaped)
    return name.encode("latin-1").decode("utf-8", "replace") + (FAIL_SUFFIX if rest == ":fail:" else "")


def check_prefix(prefix: str) -> str:
    """Return the prefix. Raise UnknownOption if it has characters that keys of dibs must not begin with."""
    if not _VALID_PREFIX.fullmatch(prefix):
        raise UnknownOption(f"prefix is {prefix!r}; it must be 1 to 100 letters, digits or one of -_.:")
    return prefix


def registry_key(prefix: str) -> str:
    """Return the key of the set of queue names."""
    return f"{prefix}:queues"


def version_key(prefix: str) -> str:
    """Return the key that holds the version of the layout of keys and records."""
    return f"{prefix}:version"


def claim_key(prefix: str, claim_id: str) -> str:
    """Return the key of the list whose elements end the blocking claim `claim_id` of several queues."""
    return f"{prefix}:claim:{claim_id}"
