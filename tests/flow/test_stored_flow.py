"""Stored flows on every storage: cancel, retry, shared ids, nested flows, approval, transactions."""

from __future__ import annotations

import asyncio

import pytest

from dibs import FlowStatus, JobCancelled, JobFailed, Refused
from dibs.model.wakeup import EVALUATIONS, FLOWS
from tests.flow.tasks import FAILING, Tasks


async def status_when(tasks: Tasks, id: str, number: int, state: str) -> FlowStatus:
    """Return the status of a flow once a node is in a state."""
    async with asyncio.timeout(30):
        while True:
            status = await tasks.app.get_flow(id).status()
            if status is not None and status.nodes[number].state == state:
                return status
            await asyncio.sleep(0.01)


async def until_cancelled(tasks: Tasks, id: str) -> None:
    """Wait until a node of the queue `approve` is cancelled."""
    async with asyncio.timeout(10):
        while True:
            job = await tasks.approve.queue.get(id)
            if job is not None and job.state == "cancelled":
                return
            await asyncio.sleep(0.01)


async def approve(tasks: Tasks, id: str, number: int) -> None:
    """Finish a handed-off node."""
    status = await status_when(tasks, id, number, "handed_off")
    job = await tasks.approve.queue.get(status.nodes[number].id)
    assert job is not None
    assert "done" == await tasks.approve.queue.finish(job.id, job.revision)


async def test_a_finish_of_a_handed_off_node_wakes_the_flow(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    asked = flow.add(working.approve.bind("may it?"))
    flow.add(working.note.bind(working.mark, "approved"), after=[asked])
    ticket = await flow.enqueue()
    await approve(working, flow.id, 0)
    await ticket.result(wait=10)

    assert ["approved"] == working.ran()


async def test_a_cancel_of_a_node_wakes_the_flow(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    asked = flow.add(working.approve.bind("may it?"))
    flow.add(working.note.bind(working.mark, "never"), after=[asked])
    ticket = await flow.enqueue()
    status = await status_when(working, flow.id, 0, "handed_off")
    assert "cancelled" == await working.approve.queue.cancel(status.nodes[0].id, running=True)

    with pytest.raises(JobFailed, match="was cancelled"):
        await ticket.result(wait=10)


async def test_a_cancel_of_a_flow_cancels_its_open_nodes(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    done = flow.add(working.load.bind(working.mark, 1))
    asked = flow.add(working.approve.bind("may it?"), after=[done])
    flow.add(working.note.bind(working.mark, "never"), after=[asked])
    ticket = await flow.enqueue()
    await status_when(working, flow.id, 1, "handed_off")
    assert "requested" == await working.app.get_flow(flow.id).cancel()
    with pytest.raises(JobCancelled):
        await ticket.result(wait=10)

    status = await working.app.get_flow(flow.id).status()
    assert status is not None
    assert ["completed", "cancelled", "skipped"] == [node.state for node in status.nodes]
    job = await working.approve.queue.get(status.nodes[1].id)
    assert job is not None
    assert "cancelled" == job.state


async def test_a_status_shows_nodes_that_were_enqueued_before_their_notes(tasks: Tasks) -> None:
    flow = tasks.app.flow(id=f"f-{tasks.mark}")
    flow.add(tasks.note.bind(tasks.mark, "first"))
    await flow.enqueue()
    stored = tasks.app.get_flow(flow.id)
    status = await stored.status()
    assert status is not None
    assert "waiting" == status.nodes[0].state

    await tasks.note.options(id=status.nodes[0].id).enqueue(tasks.mark, "first")
    status = await stored.status()
    assert status is not None
    assert "queued" == status.nodes[0].state


async def test_a_cancel_shows_nodes_that_completed_without_a_read_as_completed(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    ended = [flow.add(working.note.bind(working.mark, f"{number}")) for number in range(3)]
    asked = flow.add(working.approve.bind("may it?"))
    flow.add(working.note.bind(working.mark, "never"), after=[*ended, asked])
    ticket = await flow.enqueue()
    for number in range(3):  # an evaluation reads only the last open parent, the approval
        await status_when(working, flow.id, number, "completed")
    await status_when(working, flow.id, 3, "handed_off")
    await working.app.get_flow(flow.id).cancel()
    with pytest.raises(JobCancelled):
        await ticket.result(wait=10)

    status = await working.app.get_flow(flow.id).status()
    assert status is not None
    assert [*3 * ["completed"], "cancelled", "skipped"] == [node.state for node in status.nodes]


async def test_a_cancel_of_the_flow_job_cancels_its_nodes_too(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    flow.add(working.approve.bind("may it?"))
    await flow.enqueue()
    status = await status_when(working, flow.id, 0, "handed_off")
    assert "cancelled" == await working.app.queue(FLOWS).cancel(flow.id, running=True)

    await until_cancelled(working, status.nodes[0].id)


async def test_a_cancel_before_the_start_ends_the_flow_at_once(tasks: Tasks) -> None:
    flow = tasks.app.flow(id=f"f-{tasks.mark}")
    flow.add(tasks.load.bind(tasks.mark, 1))
    await flow.enqueue()
    stored = tasks.app.get_flow(flow.id)

    assert "cancelled" == await stored.cancel()
    assert "cancelled" == await stored.cancel()
    assert "not_found" == await tasks.app.get_flow("unknown").cancel()
    assert await tasks.app.get_flow("unknown").status() is None


async def test_a_retry_runs_again_what_did_not_complete(working: Tasks) -> None:
    FAILING.add(f"{working.mark} 1")
    flow = working.app.flow(id=f"f-{working.mark}")
    bad, good = (flow.add(working.load.bind(working.mark, number)) for number in (1, 2))
    flow.returns(flow.add(working.summarise.bind([bad.output, good.output])))
    ticket = await flow.enqueue()
    with pytest.raises(JobFailed):
        await ticket.result(wait=10)
    FAILING.clear()
    assert "queued" == await working.app.get_flow(flow.id).retry_failed()
    again = await working.app.get_flow(flow.id).ticket()

    assert 6 == await again.result(wait=10)
    assert [1, 1, 2] == sorted(working.ran())
    assert "completed" == await working.app.get_flow(flow.id).retry_failed()


async def test_flows_share_a_job_with_an_id_of_its_own(working: Tasks) -> None:
    shared = working.load.options(id=f"shared-{working.mark}")
    tickets = []
    for scale in (1, 10):
        flow = working.app.flow()
        part = flow.add(shared.bind(working.mark, 7))
        flow.returns(flow.add(working.summarise.bind([part.output], scale)))
        tickets.append(await flow.enqueue())

    assert [14, 140] == [await ticket.result(wait=20) for ticket in tickets]
    assert [7] == working.ran()


async def test_a_flow_is_a_node_of_another_flow(working: Tasks) -> None:
    inner = working.app.flow()
    parts = [inner.add(working.load.bind(working.mark, number)) for number in range(3)]
    inner.returns(inner.add(working.summarise.bind([part.output for part in parts])))
    outer = working.app.flow()
    first = outer.add(inner)
    last = outer.add(working.summarise.bind([first.output, 100]))
    outer.returns(last)

    assert 106 == await (await outer.enqueue()).result(wait=20)


async def test_a_failure_of_a_nested_flow_fails_the_outer_one_and_a_retry_reaches_it(working: Tasks) -> None:
    FAILING.add(f"{working.mark} 1")
    inner = working.app.flow()
    inner.add(working.load.bind(working.mark, 0))
    inner.returns(inner.add(working.load.bind(working.mark, 1)))
    outer = working.app.flow(id=f"f-{working.mark}")
    outer.returns(outer.add(inner))
    with pytest.raises(JobFailed, match=r"FlowFailed.*no 1"):
        await (await outer.enqueue()).result(wait=20)
    FAILING.clear()
    stored = working.app.get_flow(outer.id)
    assert "queued" == await stored.retry_failed()

    assert 2 == await (await stored.ticket()).result(wait=20)
    assert [0, 1, 1] == sorted(working.ran())


async def test_a_cancel_reaches_the_nodes_of_a_nested_flow(working: Tasks) -> None:
    inner = working.app.flow(id=f"inner-{working.mark}")
    inner.add(working.approve.bind("may it?"))
    outer = working.app.flow(id=f"f-{working.mark}")
    nested = working.app.flow()
    nested.add(working.approve.bind("may it?"))
    outer.add(nested)
    await outer.enqueue()
    status = await status_when(working, outer.id, 0, "handed_off")
    nested_id = status.nodes[0].id
    open_node = (await status_when(working, nested_id, 0, "handed_off")).nodes[0].id
    await working.app.get_flow(outer.id).cancel()

    await until_cancelled(working, open_node)


async def test_a_result_that_does_not_fit_fails_the_node_with_a_text(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    text = flow.add(working.long.bind(3))
    flow.add(working.summarise.bind([1, text]))  # type: ignore[list-item]  # the result is text
    ticket = await flow.enqueue()
    with pytest.raises(JobFailed, match=r"node 1.*parts"):
        await ticket.result(wait=10)

    status = await working.app.get_flow(flow.id).status()
    assert status is not None
    assert "failed" == status.nodes[1].state
    assert "cannot be enqueued" in status.nodes[1].error


async def test_results_that_are_too_large_together_fail_the_node(working: Tasks) -> None:
    flow = working.app.flow()
    texts = [flow.add(working.long.bind(600_000)) for _ in range(2)]
    flow.add(working.describe.bind(1, labels={"a": texts[0], "b": texts[1]}))  # type: ignore[dict-item]

    with pytest.raises(JobFailed, match="node 2"):
        await (await flow.enqueue()).result(wait=10)


async def test_evaluations_leave_nothing_behind(working: Tasks) -> None:
    flow = working.app.flow()
    flow.add(working.load.bind(working.mark, 1))
    await (await flow.enqueue()).result(wait=10)
    queue = working.app.queue(EVALUATIONS)

    async with asyncio.timeout(10):
        while await queue.get(flow.id) is not None:  # noqa: ASYNC110 - another process may end it
            await asyncio.sleep(0.01)


async def test_a_flow_without_nodes_is_refused(tasks: Tasks) -> None:
    with pytest.raises(Refused, match="no nodes"):
        await tasks.app.flow().enqueue()
    assert 0 == (await tasks.app.queue(FLOWS).counts()).waiting
