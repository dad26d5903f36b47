"""Signals: values that other programs send to a job, and the waits of a handler for them.

A signal is an attribute of its job: SIGNAL_PREFIX, the name, a dot and an id. The ids sort by time, so a wait
takes the oldest signal of its name that no earlier wait has taken. What a wait found is stored with the
results of the steps of the job, so each run of the job finds the same.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from attrs import define, field
from msgspec import Struct

from dibs.client.calls.run_steps import StepRefused, Steps, decode_memo
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.client.options.arguments import Seconds, duration_ms, new_id
from dibs.client.options.serde import Serde
from dibs.errors import Refused, SignalTimeout
from dibs.model.check_values import check_json, check_text
from dibs.model.job import Job, JobData, NewJob
from dibs.model.limits import LATEST_TIME, LIMITS
from dibs.model.requests import EnqueueRequest, Update

#: The first part of the name of an attribute that holds a signal, and of a step that holds a wait.
SIGNAL_PREFIX: Final = "dibs.signal."
WAIT_PREFIX: Final = "dibs.wait."
#: Longest name of a signal, in bytes of UTF-8. The name of a stored wait is longer.
NAME_BYTES: Final = 96
SignalStatus = Literal["delivered", "absent", "full"]
#: The answer of `signal` by the status of its request.
SIGNAL_STATUSES: Final[Mapping[str, SignalStatus]] = {
    "updated": "delivered",
    "blocked": "delivered",
    "absent": "absent",
    "full": "full",
}
_WAKE: Final = Update(create=False, run_at="wake")


class StoredValue(Struct, frozen=True):
    """The value of the attribute of a signal: JSON of the serde as it is, other bytes as base64."""

    #: Empty for other bytes.
    json: msgspec.Raw = msgspec.Raw()
    base64: str = ""


class StoredWait(Struct, frozen=True):
    """What a wait has found or decided, as it is stored for later runs."""

    name: str
    #: The id of the signal that the wait took; "" if it took none.
    signal: str = ""
    #: The encoded value of that signal; None after a timeout.
    value: bytes | None = None
    #: Of a wait that goes on: its end, in ms since the epoch.
    until: int = 0


class OpenWait(Struct, frozen=True):
    """A wait that has found no signal yet."""

    name: str
    #: 1 for the first wait of the job for this name.
    number: int
    #: Its end, in ms since the epoch; LATEST_TIME for none.
    until: int


class ParkRun(BaseException):
    """Ends the run of a handler that waits for a signal; the worker parks its job.

    It is no Exception, so that `except Exception` in a handler does not stop it.
    """

    def __init__(self, name: str, until: int) -> None:
        super().__init__(f"the job waits for the signal {name!r}")
        #: The end of the wait, in ms since the epoch.
        self.until = until


def check_signal_name(name: str) -> None:
    """Raise Refused unless `name` is a text of 1 to 96 bytes without NUL."""
    check_text("name", name, NAME_BYTES)


def signal_request(serde: Serde, id: str, name: str, value: Any, request_key: str | None) -> EnqueueRequest:
    """Return the request that sends a signal. Raises Refused for a bad name or value."""
    check_signal_name(name)
    raw = serde.encode(value)
    attributes = {f"{SIGNAL_PREFIX}{name}.{new_id()}": _to_attribute(raw)}
    job = NewJob(id=id, data=JobData(attributes=attributes))
    return EnqueueRequest(job=job, on_conflict=_WAKE, request_key=request_key)


def _to_attribute(raw: bytes) -> bytes:
    try:
        check_json("value", raw, LIMITS.depth - 1)
    except Refused:  # encrypted, or no JSON that each storage can keep
        return msgspec.json.encode({"base64": base64.b64encode(raw).decode()})
    return msgspec.json.encode({"json": msgspec.Raw(raw)})


def _from_attribute(attribute: bytes) -> bytes:
    stored = msgspec.json.decode(attribute, type=StoredValue)
    return bytes(stored.json) or base64.b64decode(stored.base64)


def current_wait(memo: bytes | None) -> OpenWait | None:
    """Return the wait of a parked job, from its memo; None if it has none, or a memo of another program."""
    try:
        return _last_wait(decode_memo(memo))
    except (ValueError, PayloadMismatch):
        return None


def _last_wait(steps: Mapping[str, bytes]) -> OpenWait | None:
    waits = {
        name: msgspec.msgpack.decode(raw, type=StoredWait)
        for name, raw in steps.items()
        if name.startswith(WAIT_PREFIX)
    }
    going_on = [
        OpenWait(wait.name, int(key.rpartition(".")[2]), wait.until)
        for key, wait in ((name.removesuffix(".until"), wait) for name, wait in waits.items() if wait.until)
        if key not in waits
    ]
    return going_on[-1] if going_on else None


@define
class SignalWaits:
    """The waits of one run for signals."""

    _job: Job
    _serde: Serde
    _steps: Steps
    #: The number of waits that this run has begun, by the name of the signal.
    _begun: Counter[str] = field(factory=Counter)

    def begin(self, name: str, type: Any, timeout: Seconds | None, now: int) -> FoundWait:
        """Return what the next wait for a signal of this name finds. Raises Refused.

        `now` is the time of the storage in ms, by the clock of this process since the claim.
        """
        try:
            check_signal_name(name)
            timeout_ms = None if timeout is None else duration_ms("timeout", timeout)
        except Refused as refused:
            raise StepRefused(f"a wait of {self._job.id}: {refused}", field=refused.field) from None
        self._begun[name] += 1
        key = f"{WAIT_PREFIX}{name}.{self._begun[name]}"
        if (stored := self._read(key)) is not None:
            return FoundWait(key, stored, value=self._value_of(stored, type))
        if (signal := self._next_signal(name)) is not None:
            return self._take(key, name, *signal, type)
        return self._go_on(key, name, LATEST_TIME if timeout_ms is None else now + timeout_ms)

    def _read(self, key: str) -> StoredWait | None:
        raw = self._steps.stored(key)
        return None if raw is None else msgspec.msgpack.decode(raw, type=StoredWait)

    def _next_signal(self, name: str) -> tuple[str, bytes] | None:
        """Return the id and the attribute of the oldest signal of this name that no wait has taken."""
        prefix = f"{SIGNAL_PREFIX}{name}."
        taken = {wait.signal for wait in map(self._read, self._steps.names(WAIT_PREFIX)) if wait}
        signals = {
            attribute.removeprefix(prefix): value
            for attribute, value in self._job.data.attributes.items()
            if attribute.startswith(prefix) and "." not in attribute.removeprefix(prefix)
        }
        return min(((id, value) for id, value in signals.items() if id not in taken), default=None)

    def _take(self, key: str, name: str, id: str, attribute: bytes, type: Any) -> FoundWait:
        stored = StoredWait(name, id)
        try:
            stored = StoredWait(name, id, _from_attribute(attribute))
            return FoundWait(key, stored, is_new=True, value=self._value_of(stored, type))
        except ValueError as error:
            # It counts as taken, so that a job that is retried by hand waits for the next signal.
            return FoundWait(f"{key}.{id}", stored, is_new=True, error=error)

    def _value_of(self, stored: StoredWait, type: Any) -> Any:
        if stored.value is None:
            return None
        try:
            return self._serde.decode(stored.value, type)
        except ValueError as error:
            raise StepRefused(
                f"the signal {stored.name!r} of {self._job.id} does not fit the type of the wait: {error}",
                field="type",
            ) from error

    def _go_on(self, key: str, name: str, until: int) -> FoundWait:
        began = self._read(f"{key}.until")
        wait = began or StoredWait(name, until=min(until, LATEST_TIME))
        run = self._job.run
        if run is not None and run.claimed_at >= wait.until:
            return FoundWait(key, StoredWait(name), is_new=True)
        return FoundWait(f"{key}.until", wait, is_new=began is None, parks=True)


@define
class FoundWait:
    """What a wait has found: store it if it is new, and then ask for the result."""

    key: str
    stored: StoredWait
    is_new: bool = False
    parks: bool = False
    value: Any = None
    error: Exception | None = None

    @property
    def raw(self) -> bytes:
        return msgspec.msgpack.encode(self.stored)

    def result(self) -> Any:
        """Return the value of the signal. Raises SignalTimeout, StepRefused, and ParkRun to wait on."""
        if self.parks:
            raise ParkRun(self.stored.name, self.stored.until)
        if self.error is not None:
            raise self.error
        if self.stored.value is None:
            raise SignalTimeout(f"no signal {self.stored.name!r} came in time")
        return self.value
