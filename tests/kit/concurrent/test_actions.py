"""The state that a client keeps of its answers."""

from __future__ import annotations

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs_conformance.verbs import remember
from dibs_conformance.verbs.actions import ClientCall, ClientState


def test_a_repeated_enqueue_adds_no_revision_to_the_state() -> None:
    """An enqueue of `b` with a key first used for `a` returns the revision of `a`. The range of `b` may cover
    this revision by chance, so a finish of `b` with it was once reported as a false failure.
    """
    state = ClientState()
    requests = [EnqueueRequest(job=NewJob(id=id), request_key="k") for id in ("a", "b")]
    first = EnqueueResult("queued", "nothing", 5, 5)
    again = EnqueueResult("queued", "nothing", 5, 5, repeated=True)
    call = ClientCall(
        client="ann", operation="enqueue", queue="q", args={"requests": requests}, now=1, invoked=1.0
    )
    call.answer, call.completion = [first, again], "answered"

    remember(state, call)

    assert [("a", 5)] == state.revisions
