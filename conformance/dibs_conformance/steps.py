"""The format of a recorded history: JSON lines, one step each, in any order.

docs/reference/history.md lists the fields.

A step is the effect of one call on one id. It has the times at which the call was sent and answered, by one
clock for all clients. A call without an answer is a step, too: it may have taken effect at any time since, or
never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from dibs.errors import Refused
from dibs.model.limits import START_COST

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
    "report",
    "configure",
    "get",
    "counts",
    "import",
    "prune",
    "events",
    "effect",
    "drained",
    "partial",
    "fault",
]

#: The status of a step without an answer.
UNKNOWN: Final = "unknown"
#: The status of an enqueue made by a follow-up. The answer does not show its result.
FOLLOWED: Final = "followed"
#: The memo of a job without one, and of a report that removes it.
NO_MEMO: Final = "none"
#: A range of revisions, both ends included.
Range = tuple[int, int]


def digest(value: bytes | None) -> str:
    """Return a short digest of bytes, or "none" for None."""
    return "none" if value is None else blake2b(value, digest_size=6).hexdigest()


class RecordedOutcome(Struct, frozen=True, gc=False, array_like=True):
    """An outcome as read. `result` is a digest."""

    kind: str
    fence: int
    first: int
    revision: int
    result: str = ""


class RecordedSlot(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The state of one id as read."""

    current: Range | None = None
    #: Fence of the active run; 0 if the current job waits.
    fence: int = 0
    successor: Range | None = None
    outcome: RecordedOutcome | None = None
    dropped: tuple[Range, ...] = ()


class LoggedEntry(Struct, frozen=True, gc=False, array_like=True):
    """An event as a reader of the log got it."""

    offset: str
    kind: str
    id: str = ""
    fence: int = 0
    #: The times at which the run began and ended; None for an event that is not the end of a run.
    claimed_at: int | None = None
    finished_at: int | None = None


class RecordedStep(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The effect of one call on one id. Values are those of the contract; bytes are replaced by digests."""

    op: Op
    client: str = ""
    #: The number of the call among its client's calls. The steps of a batch share it.
    call: int = 0
    #: The times at which the call was sent and answered, in any unit. `ended` is None without an answer.
    began: int = 0
    ended: int | None = None
    queue: str = ""
    id: str = ""
    #: The answer. A claim has "taken" for each job, then "short" if it took fewer than its limit, or "lost".
    status: str = UNKNOWN
    #: The storage's time in the answer, in ms. Of a claim: the time by which a job is due.
    now: int = 0
    #: Of a claimed job: the time at which its run began, if that is later than `now`; else 0.
    claimed_at: int = 0

    # -- the request
    how: str = ""
    key: str = ""
    payload: str = ""
    replaces: bool = True
    resets: bool = True
    #: False for an update-only request.
    creates: bool = True
    #: True for a request that asks the active run to end.
    supersedes: bool = False
    running: bool = False
    lease: str = ""
    limit: int = 0
    paused: bool | None = None
    max_active: int | None = None
    #: Of a settle: the cost of the run, in thousandths of a start.
    cost: int = START_COST
    result: str = ""
    #: Of a claimed job or a report: a digest of the memo, or NO_MEMO; empty if it is unknown, or not given.
    memo: str = ""
    #: Of a configure: the settings in the patch, each with its value as JSON text.
    patch: dict[str, str] | None = None
    #: Of a page of the log: the offset it begins after.
    after: str | None = None

    # -- the answer
    fence: int = 0
    first: int = 0
    revision: int = 0
    attempt: int = 0
    retries: int = 0
    stalls: int = 0
    timeouts: int = 0
    priority: int = 0
    #: Of a claim: the key of the job, for the settings `per_key` and `key_rate`; empty without a key.
    job_key: str = ""
    run_at: int = 0
    seq: int = 0
    until: int = 0
    repeated: bool = False
    origin: tuple[str, str, int] | None = None
    read: RecordedSlot | None = None
    counts: dict[str, int] | None = None
    #: Of a configure: all settings of the queue, each with its value as JSON text.
    settings: dict[str, str] | None = None
    #: Of a page of the log: the offset at which the next page begins.
    next: str | None = None
    #: The events on a page of the log, and whether the log was trimmed behind `after`.
    logged: tuple[LoggedEntry, ...] = ()
    fell_off: bool = False

    def __post_init__(self) -> None:
        if self.ended is None and self.status != UNKNOWN:
            raise ValueError(f"{self.op} has the status {self.status!r} but no `ended` time")

    @property
    def run_began(self) -> int:
        """The storage's time at which the run of a claimed job began, in ms."""
        return self.claimed_at or self.now

    @property
    def unknown(self) -> bool:
        """True if the step may or may not have taken effect."""
        return self.status == UNKNOWN


class InvalidHistory(Refused):
    """A line of a history cannot be read as a step."""


def read_steps(lines: Iterable[bytes]) -> Iterator[RecordedStep]:
    """Read JSON lines, skipping empty ones. Raises InvalidHistory with the line number."""
    decode = msgspec.json.Decoder(RecordedStep).decode
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            yield decode(line)
        except msgspec.DecodeError as error:
            raise InvalidHistory(
                f"line {number} is not a step of a history: {error}", field="history"
            ) from None


def read_file(path: Path) -> Iterator[RecordedStep]:
    """Read a history from a file. Raises InvalidHistory."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidHistory(f"{path} cannot be read: {error.strerror}", field="history") from None
    with file:
        yield from read_steps(file)


def write_steps(steps: Iterable[RecordedStep]) -> Iterator[bytes]:
    """Encode steps as JSON lines."""
    encode = msgspec.json.Encoder().encode
    for step in steps:
        yield encode(step) + b"\n"


def without_superseded(steps: Iterable[RecordedStep]) -> Iterator[RecordedStep]:
    """Yield the steps without unanswered ones that were written again with their answer.

    A recorder with `twice` writes a call when it is sent, with the status `unknown`, and again when it is
    answered.
    """
    open_calls: dict[tuple[str, int], list[RecordedStep]] = {}
    for step in steps:
        if step.call and step.unknown:
            open_calls.setdefault((step.client, step.call), []).append(step)
            continue
        if step.call:
            open_calls.pop((step.client, step.call), None)
        yield step
    for unanswered in open_calls.values():
        yield from unanswered
