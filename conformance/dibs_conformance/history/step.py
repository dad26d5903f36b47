"""A recorded history: JSON lines, one step each, in any order (docs/reference/history.md lists the fields).

A step is what one call did to one id, with the time at which the call was sent and the time at which its
answer came, by one clock for all clients. A call that was sent and never answered is a step too: it may have
happened at any time since, or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from dibs.errors import Refused

Op = Literal[
    "enqueue",
    "claim",
    "settle",
    "finish",
    "grant",
    "renew",
    "drop",
    "reap",
    "cancel",
    "amend",
    "retry_failed",
    "forget",
    "configure",
    "get",
    "counts",
    "effect",
    "drained",
    "partial",
    "fault",
]

#: The status of a step whose answer never came.
UNKNOWN: Final = "unknown"
#: The status of an enqueue that went in as the follow-up of an end: nobody is told what it came to.
FOLLOWED: Final = "followed"
#: A range of revisions, both ends in it.
Range = tuple[int, int]


class RecordedOutcome(Struct, frozen=True, gc=False, array_like=True):
    """An outcome as it was read: `result` is a digest."""

    kind: str
    fence: int
    first: int
    revision: int
    result: str = ""


class RecordedSlot(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All there was of one id when it was read."""

    current: Range | None = None
    #: Of the active run; 0 when the current waits.
    fence: int = 0
    successor: Range | None = None
    outcome: RecordedOutcome | None = None
    dropped: tuple[Range, ...] = ()


class Step(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What one call did to one id. Words and numbers are the contract's; digests stand for bytes."""

    op: Op
    client: str = ""
    #: Number of the call among its client's; the steps of a batch share it.
    call: int = 0
    #: When it was sent and answered, by one clock for all clients, in any unit; None: never answered.
    began: int = 0
    ended: int | None = None
    queue: str = ""
    id: str = ""
    #: The answer's word. Of claim: "taken" for each job, "short" when it took fewer than asked, "lost".
    status: str = UNKNOWN
    #: The storage's time where the answer tells it, ms.
    now: int = 0

    # -- what was asked
    how: str = ""
    key: str = ""
    payload: str = ""
    replaces: bool = True
    resets: bool = True
    handled: bool = False
    running: bool = False
    lease: str = ""
    limit: int = 0
    paused: bool | None = None
    max_active: int | None = None
    result: str = ""

    # -- what was told
    fence: int = 0
    first: int = 0
    revision: int = 0
    attempt: int = 0
    retries: int = 0
    stalls: int = 0
    timeouts: int = 0
    priority: int = 0
    run_at: int = 0
    seq: int = 0
    until: int = 0
    repeated: bool = False
    origin: tuple[str, str, int] | None = None
    read: RecordedSlot | None = None
    counts: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.ended is None and self.status != UNKNOWN:
            raise ValueError(f"{self.op} has the answer {self.status!r}, and no time at which it came")

    @property
    def unknown(self) -> bool:
        """Whether it may or may not have happened."""
        return self.status == UNKNOWN


class InvalidHistory(Refused):
    """A line of a history is not a step."""


def read_steps(lines: Iterable[bytes]) -> Iterator[Step]:
    """Read JSON lines; empty ones are skipped. Raises Unreadable, with the number of the line."""
    decode = msgspec.json.Decoder(Step).decode
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            yield decode(line)
        except msgspec.DecodeError as error:
            raise InvalidHistory(f"line {number} is no step of a history: {error}", field="history") from None


def read_file(path: Path) -> Iterator[Step]:
    """Read a history from a file. Raises Unreadable."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidHistory(f"{path} cannot be read: {error.strerror}", field="history") from None
    with file:
        yield from read_steps(file)


def write_steps(steps: Iterable[Step]) -> Iterator[bytes]:
    """Turn steps into lines."""
    encode = msgspec.json.Encoder().encode
    for step in steps:
        yield encode(step) + b"\n"


def without_superseded(steps: Iterable[Step]) -> Iterator[Step]:
    """Leave out what was written down before its answer, where the answer was written down as well.

    A recorder that must survive its own death writes a call twice: when it is sent, as unknown, and when
    its answer is there.
    """
    open_calls: dict[tuple[str, int], list[Step]] = {}
    for step in steps:
        if step.call and step.unknown:
            open_calls.setdefault((step.client, step.call), []).append(step)
            continue
        if step.call:
            open_calls.pop((step.client, step.call), None)
        yield step
    for unanswered in open_calls.values():
        yield from unanswered
