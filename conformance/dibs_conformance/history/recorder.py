"""The recorder of the calls of clients, as steps of a history.

Wrap the storage of each client with the same recorder:

    steps: list[RecordedStep] = []
    async with open_storage(url) as storage:
        recorded = Recorder(steps.append).wrap(storage, "worker-1")
        await recorded.enqueue("emails", [EnqueueRequest(job=NewJob(id="a"))])

A call that raises OutcomeUnknown or is cancelled is recorded with the status `unknown`. A refused call has
the status `refused`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import Any, TypeVar

from attrs import field, frozen

from dibs.errors import DibsError, OutcomeUnknown
from dibs.storage.protocol import Storage
from dibs_conformance.steps import UNKNOWN, RecordedStep
from dibs_conformance.verbs import VERBS
from dibs_conformance.verbs.verb import CallEncoding

T = TypeVar("T")
Clock = Callable[[], int]


@frozen
class Recorder:
    """Writes the steps of all clients, with times from one shared clock.

    The default clock is `time.monotonic_ns`, which all processes of a machine share. With `twice` each call
    is also written when it is sent, so that the calls of a killed process are recorded.
    """

    write: Callable[[RecordedStep], object]
    clock: Clock = time.monotonic_ns
    twice: bool = field(default=False, kw_only=True)

    def wrap(self, storage: Storage, client: str) -> Storage:
        """Return a storage that records the calls of this client."""
        return RecordedStorage(storage, self, client)

    def mark(self, step: RecordedStep) -> None:
        """Write a step that is not a call: a fault, an effect, or "drained"."""
        self.write(step)


class RecordedStorage:
    """A storage that records its calls. Other attributes are those of the wrapped storage."""

    def __init__(self, storage: Storage, recorder: Recorder, client: str) -> None:
        self._storage, self._recorder, self._client = storage, recorder, client
        self._calls = count(1)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        verb = VERBS.get(name)
        if verb is None or verb.encoding is None:
            return attribute
        return self._record_calls(attribute, verb.encoding)

    def _record_calls(
        self, method: Callable[..., Awaitable[T]], encoding: CallEncoding
    ) -> Callable[..., Awaitable[T]]:
        async def recorded(*args: Any, **kwargs: Any) -> T:
            call, began = next(self._calls), self._recorder.clock()
            requested = encoding.request(*args, **kwargs)
            if self._recorder.twice:
                self._write(requested, call, began, None)
            try:
                answer = await method(*args, **kwargs)
            except (OutcomeUnknown, asyncio.CancelledError):
                self._write(requested, call, began, None)
                raise
            except DibsError:
                self._write(
                    ({**one, "status": "refused"} for one in requested), call, began, self._recorder.clock()
                )
                raise
            self._write(encoding.reply(requested, answer), call, began, self._recorder.clock())
            return answer

        return recorded

    def _write(self, steps: Iterable[Mapping[str, Any]], call: int, began: int, ended: int | None) -> None:
        for one in steps:
            status = one.get("status", UNKNOWN)
            step = {**one, "status": status, "client": self._client, "call": call}
            self._recorder.write(RecordedStep(**step, began=began, ended=ended))
