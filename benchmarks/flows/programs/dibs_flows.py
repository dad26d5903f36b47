"""dibs: the public API in the producer, and `dibs worker dibs_flows:app` as the worker.

uvloop in the producer, as in the worker, and size 1 for up to 100 runs at a time. Leases are those of
`dibs worker`; FLOW_RECOVERY is ignored.
"""

import asyncio

import flow_harness as harness
import uvloop

from dibs import Dibs

app = Dibs(harness.URL or "memory:", flows=True)


@app.lifespan
async def lifespan():
    harness.ready()
    yield


@app.task(queue="nodes", size=1, max_stalls=None)
async def run_node(flow: int, number: int) -> int:
    if harness.PAUSE:
        await asyncio.sleep(harness.pause_of(number))
    harness.log("n", flow, number)
    return number


@app.task(queue="fan_ins", size=1, max_stalls=None)
async def run_fan_in(flow: int, results: list[int]) -> None:
    harness.fan_in_runs(flow, results)


def new_flow(number, nodes):
    flow = app.flow()
    outputs = [flow.add(run_node.bind(number, n)).output for n in range(nodes)]
    flow.add(run_fan_in.bind(number, outputs))
    return flow


async def enqueue(flows, nodes):
    await asyncio.gather(*(new_flow(number, nodes).enqueue() for number in flows))


async def produce():
    async with app:
        await harness.produce_chunks(enqueue)


if __name__ == "__main__":
    uvloop.run(produce())
