"""What clients make of their answers."""

from __future__ import annotations

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs_conformance.concurrent.actions import ClientState
from dibs_conformance.concurrent.calls import Call


def test_the_numbers_of_a_repeat_are_not_its_ids() -> None:
    """A key that was used for `a` answers an enqueue of `b` with the revision of `a`: a finish of `b` by it
    is in the range of `b`, or not, by chance. The judge once took that for a failure.
    """
    state = ClientState()
    requests = [EnqueueRequest(job=NewJob(id=id), request_key="k") for id in ("a", "b")]
    first = EnqueueResult("queued", "nothing", 5, 5)
    again = EnqueueResult("queued", "nothing", 5, 5, repeated=True)
    call = Call(client="ann", operation="enqueue", queue="q", args={"requests": requests}, now=1, invoked=1.0)
    call.answer, call.completion = [first, again], "answered"

    state.record(call)

    assert [("a", 5)] == state.revisions
