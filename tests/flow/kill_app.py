"""An app with flows, whose worker processes a test kills. $DIBS_URL is the URL of its storage."""

from __future__ import annotations

import asyncio
from typing import Any

from dibs import Dibs, PermanentError
from dibs.flow.builder import Flow

app = Dibs(flows=True)


@app.task(max_stalls=None)
async def double(number: int) -> int:
    await asyncio.sleep(0.01)
    return number * 2


@app.task(max_stalls=None)
async def add_up(parts: list[int]) -> int:
    return sum(parts)


@app.task(max_stalls=None)
async def fail(reason: str) -> None:
    raise PermanentError(reason)


QUEUES = (double.queue.name, add_up.queue.name, fail.queue.name)
PARTS = 6


def build(number: int) -> Flow:
    """Return a flow with a fan-out, a fan-in, a diamond, a nested flow and an ignored failure."""
    flow = app.flow(id=f"flow-{number}")
    parts = [flow.add(double.bind(number + part)) for part in range(PARTS)]
    total = flow.add(add_up.bind([part.output for part in parts]))
    left, right = flow.add(double.bind(total.output)), flow.add(double.bind(total.output))
    nested = app.flow()
    inner: Any = nested.add(double.bind(number))
    nested.returns(nested.add(add_up.bind([inner.output, 1])))
    failed = flow.add(fail.bind("planned"), after=[parts[0]])
    flow.add(double.bind(0), after=[failed], on_failure="ignore")
    flow.returns(flow.add(add_up.bind([left.output, right.output, flow.add(nested).output])))
    return flow


def expected(number: int) -> int:
    """Return the result of the flow."""
    total = sum(2 * (number + part) for part in range(PARTS))
    return 4 * total + 2 * number + 1


#: The states of the nodes of the flow.
STATES = ["completed"] * (PARTS + 3) + ["failed", "completed", "completed", "completed"]
