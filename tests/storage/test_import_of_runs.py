"""The import of an active job: its new run gets a higher fence than its old holder has."""

from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.registry import open_storage


async def test_a_released_import_is_claimed_under_a_fence_above_the_one_it_had() -> None:
    """Contract 3, Queues as a whole: counters are raised above the numbers of an import."""
    async with (
        open_storage("memory:fence-source", clock="manual") as source,
        open_storage("memory:fence-target", clock="manual") as target,
    ):
        await source.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=1000)
        lease = await source.grant(["q"], 1000, "old", now=1000)
        [old] = (await source.claim("q", lease.lease, 1, now=1000)).jobs
        await target.import_("q", (await source.export("q")).records, now=1000)

        lease = await target.grant(["q"], 1000, "new", now=1000)
        [new] = (await target.claim("q", lease.lease, 1, now=1000)).jobs
        late = Settlement(id="a", fence=old.run.fence if old.run else 0, action=Complete())

        assert new.run is not None
        assert new.run.fence > late.fence
        assert [answer.status for answer in await target.settle("q", [late], now=1000)] == ["lost"]


async def test_a_run_asked_to_cancel_arrives_cancelled() -> None:
    """Contract 3, Queues as a whole: an active job is released, or ends after a requested cancellation."""
    async with (
        open_storage("memory:asked-source", clock="manual") as source,
        open_storage("memory:asked-target", clock="manual") as target,
    ):
        await source.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=1000)
        lease = await source.grant(["q"], 1000, "old", now=1000)
        await source.claim("q", lease.lease, 1, now=1000)
        await source.cancel("q", ["a"], running=True, now=1000)

        await target.import_("q", (await source.export("q")).records, now=1000)
        [slot] = await target.get("q", ["a"], now=1000)

        assert slot.current is None
        assert slot.outcome is not None
        assert slot.outcome.kind == "cancelled"
