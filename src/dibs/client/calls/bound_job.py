"""`Bound`, which `bind` returns: a job with its data and settings, to be enqueued later."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from attrs import frozen

from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_key import TaskKey
from dibs.client.options.job_settings import JobSettings
from dibs.client.options.serde import Serde
from dibs.errors import Refused
from dibs.model.requests import EnqueueRequest, FollowUp

R_co = TypeVar("R_co", covariant=True)


@frozen(eq=False)
class KeptCall:
    """A call that cannot be encoded, because results of other jobs are missing. A flow encodes it later."""

    signature: CallSignature
    serde: Serde
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    settings: JobSettings
    key: TaskKey | None


class Bound(Generic[R_co]):
    """A job to be enqueued later, returned by `task.bind(...)` and `queue.bind(...)`.

    Pass it to `enqueue_many`, `flow.add`, `job.then`, `claim.complete` or `claim.fail`. These calls raise the
    errors of its data and settings, so that a batch reports all of its bad jobs together.
    """

    __slots__ = ("_request", "call", "has_id", "queue")

    def __init__(
        self,
        queue: str,
        request: EnqueueRequest | Refused,
        has_id: bool = False,  # noqa: FBT001, FBT002 - a keyword costs time in each `bind`
        call: KeptCall | None = None,
    ) -> None:
        self.queue: str = queue
        """Name of the queue."""
        self._request = request
        #: True if the caller chose the id.
        self.has_id: bool = has_id
        #: The call, if it was refused.
        self.call: KeptCall | None = call

    def __repr__(self) -> str:
        if isinstance(self._request, Refused):
            return f"<Bound for {self.queue!r}, refused: {self._request}>"
        return f"<Bound for {self.queue!r}, id {self._request.job.id!r}>"

    @property
    def request(self) -> EnqueueRequest:
        """The request for the storage. Raises Refused if the data or a setting is not allowed."""
        if isinstance(self._request, Refused):
            # A batch may contain a Bound more than once, and each error gets the index of its own item.
            raise copy.copy(self._request)
        return self._request

    def as_follow_up(self) -> FollowUp:
        """Return the job as a follow-up: a job that is enqueued in the same atomic step as another job ends.

        Raises Refused if it has a request_key. It would have no effect: a job ends only once, and so its
        follow-up is enqueued only once.
        """
        request = self.request
        if request.request_key is not None:
            raise Refused(
                "a follow-up cannot have a request_key; leave it out, because a job ends only once",
                field="request_key",
            )
        return FollowUp(queue=self.queue, job=request.job, on_conflict=request.on_conflict)
