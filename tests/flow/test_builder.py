"""Building a flow: the fields of refused arguments, and the content of a plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from dibs import Dibs, Flow, MessagePackSerde, Refused, Update
from dibs.flow.plan import MAX_NODES, decode_plan, encode_plan
from tests.flow import tasks as functions
from tests.flow.tasks import Tasks


@pytest.fixture
def tasks() -> Tasks:
    return Tasks("memory:")


def other_node(tasks: Tasks) -> Any:
    return tasks.app.flow().add(tasks.load.bind("m", 1))


#: Refused calls: the field of the error, a part of its text, and the call.
REFUSED: dict[str, tuple[str, str, Callable[[Tasks, Flow], Any]]] = {
    "a node of another flow": (
        "after", "another flow", lambda t, f: f.add(t.load.bind("m", 1), after=[other_node(t)])
    ),
    "a node of another flow as an argument": (
        "after", "another flow", lambda t, f: f.add(t.summarise.bind([other_node(t)]))
    ),
    "a value that is no node": ("after", "not a node", lambda t, f: f.add(t.load.bind("m", 1), after=["a"])),  # type: ignore[list-item]
    "one node without a list": (
        "after", "list of nodes", lambda t, f: f.add(t.load.bind("m", 1), after=other_node(t))
    ),
    "a call that is not bound": ("job", "task.bind", lambda t, f: f.add(t.load)),  # type: ignore[call-overload]
    "an unknown rule": (
        "on_failure", "stop", lambda t, f: f.add(t.load.bind("m", 1), on_failure="go on")  # type: ignore[call-overload]
    ),
    "an argument that does not fit": ("number", "number", lambda t, f: f.add(t.load.bind("m", "x"))),  # type: ignore[arg-type]
    "an argument that does not fit, beside a node": (
        "scale", "scale", lambda t, f: f.add(t.summarise.bind([f.add(t.load.bind("m", 1)).output], "x"))  # type: ignore[arg-type]
    ),
    "an unknown argument beside a node": (
        "z", "unexpected", lambda t, f: f.add(t.summarise.bind([f.add(t.load.bind("m", 1))], 1, z=1))  # type: ignore[call-arg, list-item]
    ),
    "a dictionary with numbers as keys": (
        "labels", "text as keys",
        lambda t, f: f.add(t.describe.bind(1, labels={1: f.add(t.load.bind("m", 1))})),  # type: ignore[dict-item]
    ),
    "a request key of a node": (
        "request_key", "leave it out", lambda t, f: f.add(t.load.options(request_key="k").bind("m", 1))
    ),
    "a rule that replaces jobs": (
        "on_conflict", "left out",
        lambda t, f: f.add(t.load.options(on_conflict=Update(data=False)).bind("m", 1))
    ),
    "a node that replaces a run": (
        "supersede", "cancel the flow", lambda t, f: f.add(t.load.options(supersede=True).bind("m", 1))
    ),
    "a reserved attribute": (
        "attributes['dibs.x']", "dibs.",
        lambda t, f: f.add(t.load.options(attributes={"dibs.x": 1}).bind("m", 1))
    ),
    "a flow in itself": ("flow", "itself", lambda _, f: f.add(f)),
    "returns of another flow": ("after", "another flow", lambda t, f: f.returns(other_node(t))),
    "an empty id": ("id", "1 to 480", lambda t, _: t.app.flow(id="")),
    "a long id": ("id", "1 to 480", lambda t, _: t.app.flow(id="x" * 481)),
    "a short keep": ("keep", "one hour", lambda t, _: t.app.flow(keep=60)),
    "an unknown setting": ("color", "unknown setting", lambda t, _: t.app.flow(color="red")),  # type: ignore[call-arg]
    "an empty chain": ("jobs", "no calls", lambda t, _: t.app.chain()),
}  # fmt: skip


@pytest.mark.parametrize(("field", "text", "call"), REFUSED.values(), ids=REFUSED)
def test_bad_input_names_its_field(
    tasks: Tasks, field: str, text: str, call: Callable[[Tasks, Flow], Any]
) -> None:
    flow = tasks.app.flow()
    with pytest.raises(Refused, match=text) as refused:
        call(tasks, flow)

    assert field == refused.value.field


def test_a_flow_is_never_replaced(tasks: Tasks) -> None:
    flow = tasks.app.flow(on_conflict=Update())
    flow.add(tasks.load.bind("m", 1))
    with pytest.raises(Refused, match="Reject") as refused:
        flow.build_request(1000)

    assert "on_conflict" == refused.value.field


def test_a_flow_has_at_most_ten_thousand_nodes(tasks: Tasks) -> None:
    flow = tasks.app.flow()
    bound = tasks.load.bind("m", 1)
    nodes = [flow.add(bound) for _ in range(MAX_NODES - 1)]
    flow.add(tasks.summarise.bind([node.output for node in nodes]))
    with pytest.raises(Refused, match="10,000 nodes"):
        flow.add(bound)

    assert len(encode_plan(flow.plan())) < 2**20, "such a plan fits in a payload"


def test_a_plan_that_is_too_large_is_refused(tasks: Tasks) -> None:
    flow = tasks.app.flow()
    for _ in range(11):
        flow.add(tasks.note.bind("m", "x" * 100_000))

    with pytest.raises(Refused, match="1,048,576 bytes"):
        flow.build_request(2**20)


def test_a_plan_reads_as_json_and_decodes_to_the_same(tasks: Tasks) -> None:
    flow = tasks.app.flow()
    one = flow.add(tasks.load.options(id="own", priority=3).bind("m", 1))
    flow.add(tasks.summarise.bind([one.output], 2))
    raw = encode_plan(flow.plan())

    assert b'"data":{"args":["m",1],"kwargs":{}}' in raw
    assert raw == encode_plan(decode_plan(raw))


def test_a_stored_plan_with_a_parent_behind_its_node_is_refused() -> None:
    with pytest.raises(ValueError, match="not before it"):
        decode_plan(b'{"queues":["q"],"nodes":[{"data":1,"after":[0]}]}')


async def test_nodes_may_have_different_serdes(any_url: str) -> None:
    app = Dibs(any_url, flows=True)
    packed = MessagePackSerde()
    fetch = app.task(queue=f"fetch-{os.urandom(4).hex()}", serde=packed)(functions.fetch)
    parse = app.task(queue="parse")(functions.parse)
    store = app.task(queue="store", serde=packed)(functions.store)
    async with app:
        flow = app.flow()
        body = flow.add(fetch.bind("ada"))
        text = flow.add(parse.bind(body.output, upper=True))
        flow.returns(flow.add(store.bind(text.output, place="x")))
        ticket = await flow.enqueue()
        await app.work(until="empty", handle_signals=False)

        assert {"x": "ADA"} == await ticket.result(wait=5)
        stored = await app.get_flow(flow.id).ticket()
        assert {"x": "ADA"} == await stored.result(wait=5)
