"""The pages of flows and batches on each storage, with a worker that runs them."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator

import pytest

from dibs import Dibs
from dibs.flow.stored_flow import NodeStatus
from dibs.web import dibs_web
from dibs.web.reading.flow_drawing import MAX_BOXES, choose_groups, draw
from dibs.web.reading.flow_nodes import NodeRun, Span, TimeBar
from tests.flow.conftest import tasks, working  # noqa: F401 - fixtures
from tests.flow.tasks import FAILING, Tasks
from tests.web.conftest import Browser, browse, may


@pytest.fixture
async def viewer(any_url: str, working: Tasks) -> AsyncIterator[Browser]:  # noqa: F811 - the fixture
    """A browser that may write, on a storage of each kind with a worker. Its app has no flows."""
    async with Dibs(any_url) as app, browse(dibs_web(app, allow=may("write"))) as browser:
        yield browser


@pytest.fixture
async def flow_id(working: Tasks) -> str:  # noqa: F811 - the fixture
    """A flow of three loads, of which the second fails, with a node after them."""
    FAILING.add(f"{working.mark} 1")
    flow = working.app.flow(id=f"f-{working.mark}")
    loads = [flow.add(working.load.bind(working.mark, number)) for number in range(3)]
    flow.add(working.summarise.bind([load.output for load in loads]))
    ticket = await flow.enqueue()
    with pytest.raises(Exception, match="did not complete"):
        await ticket.result(wait=30)
    return flow.id


def links(page: str, start: str) -> list[str]:
    """Return the addresses of a page that begin with a text, each once."""
    found = map(html.unescape, re.findall(r'href="([^"]+)"', page))
    return list(dict.fromkeys(address for address in found if address.startswith(start)))


async def test_a_failed_flow_shows_its_graph_and_its_cause(
    viewer: Browser,
    working: Tasks,  # noqa: F811 - the fixture
    flow_id: str,
) -> None:
    page = await viewer.text("/flow", id=flow_id)
    graph = page.partition('<svg class="graph desk"')[2].partition("</svg>")[0]
    causes = page.partition('id="causes"')[2].partition("</section>")[0]

    assert 4 == graph.count('class="box t-')
    assert 3 == graph.count('<path class="line"')
    assert 1 == graph.count('class="box t-bad"')
    assert "Why it failed" in causes
    assert "no 1" in causes
    assert 1 == len(links(causes, f"/job?queue={working.mark}.load"))


async def test_the_nodes_of_a_flow_show_their_arguments_and_their_times(
    viewer: Browser,
    working: Tasks,  # noqa: F811 - the fixture
    flow_id: str,
) -> None:
    page = await viewer.text("/flow", id=flow_id)
    graph = page.partition('<svg class="graph desk"')[2].partition("</svg>")[0]
    rows = page.partition('id="nodes"')[2].split('<tr data-key="n-')[1:]

    assert 4 == len(rows)
    for number in range(3):
        assert re.search(rf"<title>{working.mark}.load .+, {number}: ", graph)
        assert f", {number}</code>" in rows[number]
        assert "waited" in rows[number]
        assert ", ran" in rows[number]
        assert re.search(r'<rect class="r" x="[0-9.]+" width="[0-9.]+"', rows[number])
    # The node that never ran has no time.
    assert "waited" not in rows[3]
    assert 2 == len(re.findall(r"completed, \d+ ms", graph))


async def test_a_bar_is_the_place_of_a_run_in_the_time_of_its_flow() -> None:
    span = Span.since(1000, 2000)

    assert TimeBar(10, 20, 30) == span.bar(NodeRun("", 1100, 1300, 1600))
    assert TimeBar(10, 20, 70) == span.bar(NodeRun("", 1100, 1300, None))
    assert TimeBar(10, 90, 0) == span.bar(NodeRun("", 1100, None, None))
    assert TimeBar(0, 100, 0) == span.bar(NodeRun("", 900, 5000, 6000))


async def test_a_retry_runs_the_failed_node_again(
    viewer: Browser,
    working: Tasks,  # noqa: F811 - the fixture
    flow_id: str,
) -> None:
    FAILING.discard(f"{working.mark} 1")
    answer = await viewer.post("retry_flow", {"id": flow_id})
    ticket = await working.app.get_flow(flow_id).ticket()
    await ticket.result(wait=30)

    assert f"/flow?id={flow_id}&did=flow_retried" == html.unescape(answer.headers["location"])
    assert [0, 1, 1, 2] == sorted(working.ran())
    assert "Retry</button>" not in await viewer.text("/flow", id=flow_id)


async def test_a_cancel_ends_a_running_flow(viewer: Browser, working: Tasks) -> None:  # noqa: F811 - the fixture
    flow = working.app.flow(id=f"f-{working.mark}")
    asked = flow.add(working.approve.bind("may it?"))
    flow.add(working.note.bind(working.mark, "never"), after=[asked])
    ticket = await flow.enqueue()
    await viewer.post("cancel_flow", {"id": flow.id})
    with pytest.raises(Exception, match="cancelled"):
        await ticket.result(wait=30)

    page = await viewer.text("/flow", id=flow.id)

    assert "cancelled</span> enqueued" in page
    assert [] == working.ran()


async def test_flows_are_listed_by_state_with_their_numbers(viewer: Browser, flow_id: str) -> None:
    failed = await viewer.text("/flows", state="failed")
    running = await viewer.text("/flows", state="running")

    assert f"/flow?id={flow_id}" in failed
    assert "2 of 4 completed, 1 failed" in failed
    assert flow_id not in running


async def test_the_page_of_a_node_leads_to_its_flow(viewer: Browser, flow_id: str) -> None:
    page = await viewer.text("/flow", id=flow_id)
    node = await viewer.text(links(page.partition('id="causes"')[2], "/job")[0])
    job = await viewer.text("/job", queue="dibs.flows", id=flow_id)

    assert f'part of the flow <a href="/flow?id={flow_id}">' in node
    assert "Go to the flow" in job
    # The plan has the arguments of jobs of other queues, which the redaction hook may hide.
    assert "on the page of the flow" in job
    assert "&#34;args&#34;" not in job


async def test_a_batch_shows_its_members_segments_and_callbacks(
    viewer: Browser,
    working: Tasks,  # noqa: F811 - the fixture
) -> None:
    FAILING.add(f"{working.mark} 2")
    name = f"b-{working.mark}"
    done = working.note.bind(working.mark, "all")
    async with working.app.batch(id=name, on_finish=done) as batch:
        await batch.enqueue_many(working.load.bind(working.mark, number) for number in range(5))
    await (await working.app.get_batch(name).ticket()).result(wait=30)

    page = await viewer.text("/flow", id=name)
    segment = await viewer.text(links(page.partition('id="segments"')[2], "/flow?id=")[0])
    callback = await viewer.text(links(page.partition('id="callbacks"')[2], "/job")[0])

    assert "4 of 5 completed, 1 failed" in page
    assert 5 == segment.partition('class="graph desk"')[2].partition("</svg>")[0].count('class="box t-')
    assert f'<a href="/flow?id={name}">' in callback
    assert "batch</span>" in await viewer.text("/flows", state="completed")


async def test_an_unknown_flow_and_another_job_are_named(
    viewer: Browser,
    working: Tasks,  # noqa: F811 - the fixture
) -> None:
    await working.app.queue("dibs.flows").enqueue({}, id="no-plan", delay=60)
    answer = await viewer.get("/flow", id="no-plan")

    assert "has no flow and no batch with this id" in await viewer.text("/flow", id="no-such-flow")
    assert 400 == answer.status_code
    assert "has no plan of a flow" in answer.text
    assert "no-plan" in await viewer.text("/flows", state="waiting")


def nodes_of(parents: list[tuple[int, ...]], queues: int = 1) -> list[NodeStatus]:
    return [
        NodeStatus(
            number=number,
            queue=f"q{number % queues}",
            id=f"n{number}",
            state="completed",
            parents=above,
        )
        for number, above in enumerate(parents)
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(nodes_of([(), *[(0,)] * 5000, tuple(range(1, 5001))]), id="fan"),
        pytest.param(nodes_of([(), *[(number,) for number in range(9999)]], queues=7), id="chain"),
        pytest.param(nodes_of([tuple(range(max(0, n - 3), n)) for n in range(2000)], queues=3), id="mesh"),
        pytest.param(nodes_of([()]), id="one"),
    ],
)
def test_the_drawing_of_any_plan_has_few_boxes_inside_its_width(nodes: list[NodeStatus]) -> None:
    groups = choose_groups(nodes)
    phone, desk = draw(groups, nodes, {}, 340, 2), draw(groups, nodes, {}, 1060, 5)

    assert len(groups) <= MAX_BOXES
    assert {node.number for node in nodes} == {number for group in groups for number in group.numbers}
    for drawing in (phone, desk):
        assert all(0 <= box.x and box.x + box.width <= drawing.width for box in drawing.boxes)
        places = {(box.x, box.y) for box in drawing.boxes}
        assert len(places) == len(drawing.boxes)
