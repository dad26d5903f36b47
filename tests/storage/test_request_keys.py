"""Repeats of a request_key under another id, on every storage."""

from __future__ import annotations

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage


def keyed(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id), request_key="order-7")


async def enqueue(storage: Storage, id: str) -> EnqueueResult:
    (answer,) = await storage.enqueue("q", [keyed(id)])
    return answer


async def test_a_repeat_with_another_id_names_the_first_id(any_new_url: str) -> None:
    async with open_storage(any_new_url) as storage:
        first = await enqueue(storage, "first-é")
        plain = EnqueueRequest(job=NewJob(id="other"))
        other, again, more = await storage.enqueue("q", [plain, keyed("second"), keyed("third")])

        assert ("", False) == (first.id, first.repeated)
        assert ("", False) == (other.id, other.repeated)
        repeats = [(a.id, a.status, a.found, a.revision, a.repeated) for a in (again, more)]
        assert [("first-é", "queued", "nothing", first.revision, True)] * 2 == repeats
        assert 2 == (await storage.counts(["q"]))["q"].waiting
