"""The common part of the Python programs: settings, the log of events, and the requests of a producer.

Environment variables: the step in FLOW_STEP (`prepare`, `produce` or `work`), the URL of the server in
FLOW_URL, the path of the log in FLOW_LOG, the least milliseconds that a node works in FLOW_PAUSE, and in
FLOW_RECOVERY the seconds after which the jobs of a killed worker run again (0: the default of the system).

Events are lines of the log: a letter, the number of the flow, a value, the process id, and the time in ns.

    r   a worker is ready
    n   a node ends; the value is the number of the node
    s   a fan-in starts
    f   a fan-in ends; the value is the sum of the results that it got, or -1 if it gets none
"""

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

STEP = os.environ.get("FLOW_STEP", "")
URL = os.environ.get("FLOW_URL", "")
PAUSE = int(os.environ.get("FLOW_PAUSE", "0")) / 1000
RECOVERY = int(os.environ.get("FLOW_RECOVERY", "0"))
#: Flows and nodes that a producer enqueues at a time; one flow if it has more nodes.
MAX_FLOWS, MAX_NODES = 100, 1_000

# O_APPEND: the lines of several processes do not mix.
_log = os.open(os.environ.get("FLOW_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def log(letter: str, flow: int, value: int) -> None:
    """Write an event."""
    line = f"{letter} {flow} {value} {os.getpid()} {time.monotonic_ns()}\n"
    os.write(_log, line.encode())


def pause_of(number: int) -> float:
    """Return the seconds that a node works: one to ten times the pause, so that nodes end one by one."""
    return PAUSE * (1 + number % 10)


def ready() -> None:
    log("r", 0, 0)


def fan_in_runs(flow: int, results: object) -> None:
    """Write the start and the end of a fan-in. `results` is a list, the result of one node, or None."""
    log("s", flow, 0)
    if PAUSE:
        time.sleep(PAUSE)
    values = results if isinstance(results, list) else [results]
    log("f", flow, -1 if results is None else sum(values))


def requests() -> Iterator[tuple[range, int]]:
    """Yield the numbers of the flows and the nodes of each, for every line of standard input."""
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        first, nodes = request["first"], request["nodes"]
        yield range(first, first + request["flows"]), nodes


def answer(started: int) -> None:
    """Print the times of the first call and of the last answer, in ns."""
    print(json.dumps({"started": started, "ended": time.monotonic_ns()}), flush=True)


def produce(enqueue: Callable[[int, int], object]) -> None:
    """Enqueue one flow after the other with `enqueue(flow, nodes)`."""
    for flows, nodes in requests():
        started = time.monotonic_ns()
        for flow in flows:
            enqueue(flow, nodes)
        answer(started)


async def produce_chunks(enqueue: Callable[[range, int], Awaitable[object]]) -> None:
    """Enqueue chunks of flows with `enqueue(flows, nodes)`. Reading standard input blocks the event loop."""
    for flows, nodes in requests():
        started = time.monotonic_ns()
        size = max(1, min(MAX_FLOWS, MAX_NODES // nodes))
        for at in range(0, len(flows), size):
            await enqueue(flows[at : at + size], nodes)
        answer(started)
