"""A job that is ready to be enqueued: a queue, and the request that arguments and settings made."""

from __future__ import annotations

import copy

from dibs.errors import Refused
from dibs.model.requests import EnqueueRequest, FollowUp


class Bound:
    """What `task.bind(...)` and `queue.bind(...)` return, for enqueue_many, job.then and claim.complete.

    What is wrong with it is told where it is used, so that a batch can name all of its bad items.
    """

    __slots__ = ("_request", "queue")

    def __init__(self, queue: str, request: EnqueueRequest | Refused) -> None:
        self.queue = queue
        self._request = request

    def __repr__(self) -> str:
        if isinstance(self._request, Refused):
            return f"Bound({self.queue!r}, refused: {self._request})"
        return f"Bound({self.queue!r}, id={self._request.job.id!r})"

    @property
    def request(self) -> EnqueueRequest:
        """The request. Raises Refused when there is something wrong with it."""
        if isinstance(self._request, Refused):
            # A bound job may stand in a batch more than once, and each place gets its own index.
            raise copy.copy(self._request)
        return self._request

    def as_then(self) -> FollowUp:
        """Return it as a follow-up of an end; the fence guards that, so it has no request_key."""
        request = self.request
        if request.request_key is not None:
            raise Refused("a follow-up takes no request_key: its end happens once", field="request_key")
        return FollowUp(queue=self.queue, job=request.job, on_conflict=request.on_conflict)
