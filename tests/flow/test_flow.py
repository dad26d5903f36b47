"""Flows on every storage: fan-out and fan-in, chains, failures, progress."""

from __future__ import annotations

import asyncio

import pytest

from dibs import ConfigurationError, Dibs, JobFailed
from dibs.model.wakeup import EVALUATIONS
from tests.flow.tasks import FAILING, Tasks


async def test_results_of_a_fan_out_are_the_arguments_of_the_fan_in(working: Tasks) -> None:
    flow = working.app.flow()
    parts = [flow.add(working.load.bind(working.mark, number)) for number in range(50)]
    total = flow.add(working.summarise.bind([part.output for part in parts], 10))
    flow.returns(total)
    ticket = await flow.enqueue()

    assert sum(range(50)) * 2 * 10 == await ticket.result(wait=30)
    assert sorted(working.ran()) == list(range(50))


async def test_a_node_arrives_inside_lists_and_dicts_and_by_keyword(working: Tasks) -> None:
    flow = working.app.flow()
    one = flow.add(working.load.bind(working.mark, 1))
    two = flow.add(working.load.bind(working.mark, 2))
    total = flow.add(working.summarise.bind([one.output, 100, two.output]))
    flow.returns(flow.add(working.describe.bind(total.output, labels={"a": one.output, "b": 7})))

    assert "106 [('a', 2), ('b', 7)]" == await (await flow.enqueue()).result(wait=30)


async def test_each_call_of_a_chain_gets_the_result_before_it(working: Tasks) -> None:
    chain = working.app.chain(
        working.fetch.bind("http://ada"),
        working.parse.options(priority=1),
        working.store.bind(place="there"),  # type: ignore[call-arg]  # its first argument comes later
    )

    assert {"there": "http://ada"} == await (await chain.enqueue()).result(wait=30)


async def test_a_chain_puts_the_result_before_arguments_that_fit_without_it(working: Tasks) -> None:
    chain = working.app.chain(working.load.bind(working.mark, 3), working.add_up.bind(4))

    assert 10 == await (await chain.enqueue()).result(wait=30)


async def test_a_node_runs_after_its_parents(working: Tasks) -> None:
    flow = working.app.flow()
    first = flow.add(working.note.bind(working.mark, "first"))
    second = flow.add(working.note.bind(working.mark, "second"), after=[first])
    flow.add(working.note.bind(working.mark, "third"), after=[first, second])
    await (await flow.enqueue()).result(wait=30)

    assert ["first", "second", "third"] == working.ran()


async def test_a_failure_skips_the_dependents_and_fails_the_flow_by_name(working: Tasks) -> None:
    FAILING.add(f"{working.mark} 1")
    flow = working.app.flow(id=f"f-{working.mark}")
    bad, good = (flow.add(working.load.bind(working.mark, number)) for number in (1, 2))
    skipped = flow.add(working.summarise.bind([bad.output]))
    flow.add(working.note.bind(working.mark, "never"), after=[skipped])
    flow.add(working.note.bind(working.mark, "independent"), after=[good])
    ticket = await flow.enqueue()
    with pytest.raises(JobFailed, match="PermanentError: no 1") as failed:
        await ticket.result(wait=30)

    assert failed.value.error is not None
    assert "FlowFailed" == failed.value.error.type
    assert "1 of 5 nodes did not complete" in failed.value.error.message
    assert "2 skipped" in failed.value.error.message
    assert {1, 2, "independent"} == set(working.ran())
    status = await working.app.get_flow(flow.id).status()
    assert status is not None
    assert ["failed", "completed", "skipped", "skipped", "completed"] == [one.state for one in status.nodes]
    assert "dibs.errors.PermanentError: no 1" == status.nodes[0].error


async def test_an_ignored_failure_runs_the_dependents_and_completes_the_flow(working: Tasks) -> None:
    FAILING.add(f"{working.mark} 1")
    flow = working.app.flow(id=f"f-{working.mark}")
    bad = flow.add(working.load.bind(working.mark, 1))
    flow.add(working.note.bind(working.mark, "ran"), after=[bad], on_failure="ignore")

    assert await (await flow.enqueue()).result(wait=30) is None
    assert [1, "ran"] == working.ran()
    status = await working.app.get_flow(flow.id).status()
    assert status is not None
    assert ("completed", ["failed", "completed"]) == (status.state, [one.state for one in status.nodes])


async def test_progress_shows_the_nodes_by_state(working: Tasks) -> None:
    flow = working.app.flow()
    first = flow.add(working.load.bind(working.mark, 1))
    wait = flow.add(working.approve.bind("may it?"), after=[first])
    flow.add(working.note.bind(working.mark, "end"), after=[wait])
    ticket = await flow.enqueue()
    async with asyncio.timeout(30):
        async for progress in ticket.progress():
            if progress["completed"] == 1:
                break

    assert {"total": 3, "completed": 1, "failed": 0, "skipped": 0, "open": 2} == progress


async def test_a_flow_that_runs_or_completed_is_not_enqueued_again(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    flow.returns(flow.add(working.load.bind(working.mark, 4)))
    first = await flow.enqueue()
    assert 8 == await first.result(wait=30)
    second = await flow.enqueue()

    assert ("completed", 8) == (second.verdict, await second.result(wait=30))
    assert [4] == working.ran()


async def test_an_app_without_flows_says_how_to_get_them(any_app: Dibs) -> None:
    with pytest.raises(ConfigurationError, match="flows=True"):
        any_app.flow()
    assert [] == list(any_app.handlers)


async def test_a_flow_has_a_blocking_form(working: Tasks) -> None:
    def run() -> tuple[object, object]:
        flow = working.app.sync.flow()
        one = flow.add(working.load.bind(working.mark, 5))
        flow.returns(flow.add(working.summarise.bind([one.output])))
        chain = working.app.sync.chain(working.fetch.bind("a"), working.parse)
        result = flow.enqueue().result(wait=30)
        status = working.app.sync.get_flow(flow.id).status()
        assert status is not None
        return result, (status.completed, chain.enqueue().result(wait=30))

    assert (10, (2, "a")) == await asyncio.to_thread(run)


async def test_a_worker_logs_no_line_for_an_evaluation(
    working: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dibs.worker")
    flow = working.app.flow()
    flow.returns(flow.add(working.summarise.bind([flow.add(working.load.bind(working.mark, 1)).output])))
    await (await flow.enqueue()).result(wait=30)

    lines = [record.getMessage() for record in caplog.records]
    assert [] == [line for line in lines if line.startswith(f"{EVALUATIONS}/")]
