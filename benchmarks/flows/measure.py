"""The measurements of one system: rates, requests, handovers, and fan-ins under kills."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import asdict, define, frozen

from benchmarks.flows.session import Event, Session, open_session
from benchmarks.flows.systems import FlowServer, Requests, System

#: Seconds in which a worker acknowledges a fan-in after its end, and runs it again if it is killed before.
ACKNOWLEDGE: Final = 1.0


def handover_ms(events: Iterable[Event], flows: range) -> list[float]:
    """Return the ms from the end of the last node to the start of the fan-in, for each flow."""
    last: dict[int, int] = {}
    starts: dict[int, int] = {}
    for event in events:
        if event.letter == "n":
            last[event.flow] = max(event.ns, last.get(event.flow, 0))
        elif event.letter == "s":
            starts.setdefault(event.flow, event.ns)
    return [(starts[flow] - last[flow]) / 1e6 for flow in flows]


@frozen
class FanIns:
    """The fan-ins of all flows of a run with kills."""

    flows: int
    #: Fan-ins that did not end.
    lost: int
    #: Lost fan-ins whose nodes all ended.
    lost_after_nodes: int
    #: Fan-ins that ran twice although no kill explains the second run.
    doubled: int
    #: Fan-ins that ran again because their worker was killed before it could acknowledge them.
    repeated: int
    #: Fan-ins with another sum of results than that of all nodes.
    wrong: int


def count_fan_ins(
    events: Iterable[Event], flows: range, nodes: int, killed: Mapping[int, int], *, results: bool = True
) -> FanIns:
    """Count the fan-ins of these flows, each with `nodes` nodes.

    `killed`: the time in ns of the kill, by process id. `results`: fan-ins get the results of nodes.
    """
    ended: dict[int, set[int]] = defaultdict(set)
    runs: dict[int, list[Event]] = defaultdict(list)
    ends: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.letter == "s":
            runs[event.flow].append(event)
        elif event.letter == "f":
            ends[event.flow].append(event)
        elif event.letter == "n":
            ended[event.flow].add(event.value)
    lost = [flow for flow in flows if not ends[flow]]
    twice = [flow for flow in flows if len(runs[flow]) > 1]
    doubled = [flow for flow in twice if not _is_explained(runs[flow], ends[flow], killed)]
    expected = sum(range(nodes)) if results else -1
    return FanIns(
        flows=len(flows),
        lost=len(lost),
        lost_after_nodes=sum(len(ended[flow]) == nodes for flow in lost),
        doubled=len(doubled),
        repeated=len(twice) - len(doubled),
        wrong=sum(any(end.value != expected for end in ends[flow]) for flow in flows),
    )


def _is_explained(runs: list[Event], ends: list[Event], killed: Mapping[int, int]) -> bool:
    """Return whether each run but the last was in a process that was killed before its acknowledgement."""
    *earlier, _ = sorted(runs, key=lambda run: run.ns)
    end_of = {end.pid: end.ns for end in ends}
    return all(
        run.pid in killed and killed[run.pid] <= end_of.get(run.pid, killed[run.pid]) + ACKNOWLEDGE * 1e9
        for run in earlier
    )


#: Seconds in which a server and its clients end what follows the last fan-in.
SETTLE: Final = 0.5
#: Seconds in a run with kills after which the jobs of a killed worker run again.
RECOVERY: Final = 10
#: Least ms that a node works in a run with kills, so that kills meet running nodes; the most is ten times.
PAUSE: Final = 15

Figures = dict[str, Any]


@frozen(kw_only=True)
class Effort:
    """The numbers of flows of each measurement."""

    #: Nodes of a flow -> flows of one measurement of the rate.
    flows: dict[int, int]
    #: Nodes of a flow -> flows that are enqueued one after the other, for the handover.
    handovers: dict[int, int]
    #: Seconds after which no further flow is enqueued for the handover.
    seconds: float = 20.0
    #: Flows of a round with a kill, and nodes of each.
    kill_flows: int = 5
    kill_nodes: int = 20
    #: Seconds after the last kill in which fan-ins may end, before they count as lost.
    patience: float = 120.0


FULL: Final = Effort(flows={1: 2_000, 100: 50, 9_999: 1}, handovers={1: 200, 100: 50})
QUICK: Final = Effort(flows={1: 50, 100: 2, 9_999: 1}, handovers={1: 10, 100: 5}, seconds=5, patience=60)


@define
class Measurement:
    """The measurements of one system."""

    system: System
    server: FlowServer
    effort: Effort = FULL

    def rates_and_handovers(self) -> Figures:
        """Return the figures of one round. Raise PeerUnavailable if the system fails."""
        with open_session(self.system, self.server.reset()) as session:
            rates = {
                str(nodes): self.rate(session, nodes, flows) for nodes, flows in self.effort.flows.items()
            }
            handovers = {
                str(nodes): self.handovers(session, nodes, flows)
                for nodes, flows in self.effort.handovers.items()
            }
        return {"rates": rates, "handovers_ms": handovers}

    def rate(self, session: Session, nodes: int, flows: int) -> Figures:
        """Return the time from the enqueue of all flows to the end of the last fan-in, and the requests."""
        before = self.server.requests()
        numbers, times = session.enqueue(flows, nodes)
        session.wait_for_fan_ins(numbers)
        end = max(event.ns for event in session.log.events if event.letter == "f" and event.flow in numbers)
        jobs = flows * (nodes + 1)
        return {
            "jobs": jobs,
            "seconds": (end - times["started"]) / 1e9,
            "enqueue_seconds": (times["ended"] - times["started"]) / 1e9,
            "handover_ms": handover_ms(session.log.events, numbers),
            "requests": asdict(self.requests_since(before, jobs)),
        }

    def requests_since(self, before: Requests, jobs: int) -> Requests:
        """Return the requests for each job, once the statistics of the server are complete."""
        time.sleep(SETTLE)
        return self.server.requests().per_node(before, jobs)

    def handovers(self, session: Session, nodes: int, flows: int) -> list[float]:
        """Return the ms from the last node's end to the fan-in's start, one flow after the other."""
        first = session.next_flow
        deadline = time.monotonic() + self.effort.seconds
        for _ in range(flows):
            session.wait_for_fan_ins(session.enqueue(1, nodes)[0])
            if time.monotonic() > deadline:
                break
        return handover_ms(session.log.events, range(first, session.next_flow))

    def fan_ins_under_kills(self, rounds: int, seed: int) -> Figures:
        """Kill a worker in each round, and count lost and doubled fan-ins."""
        effort, draw = self.effort, random.Random(seed)
        with open_session(self.system, self.server.reset(), pause=PAUSE, recovery=RECOVERY) as session:
            results = any(event.letter == "f" and event.value >= 0 for event in session.log.events)
            first = session.next_flow
            for number in range(rounds):
                kill_one(session, effort, number, draw)
            flows = range(first, first + rounds * effort.kill_flows)
            session.wait(lambda: session.log.done.issuperset(flows), effort.patience)
            # Jobs of killed workers may still come back, and start a fan-in once more.
            time.sleep(RECOVERY * 2)
            session.log.read()
            killed = session.workers.killed
            return asdict(
                count_fan_ins(session.log.events, flows, effort.kill_nodes, killed, results=results)
            )


def kill_one(session: Session, effort: Effort, number: int, draw: random.Random) -> None:
    """Enqueue flows, and kill the worker of a random event of them. Wait until its successor is ready."""
    ready, seen = session.ready_workers(), len(session.log.events)
    flows, _ = session.enqueue(effort.kill_flows, effort.kill_nodes)
    # All other rounds kill near the ends of nodes and fan-ins.
    total = effort.kill_flows * (effort.kill_nodes + 1)
    wanted = draw.randint(1, total) if number % 2 else draw.randint(total * 9 // 10, total)
    session.wait(lambda: len(_events_of(session, flows, seen)) >= wanted, RECOVERY * 3)
    events = _events_of(session, flows, seen)
    victim = session.workers.number_of(events[-1].pid) if events else None
    time.sleep(draw.random() * 0.01)
    session.workers.replace(number % 2 if victim is None else victim)
    session.wait(lambda: session.ready_workers() > ready, RECOVERY * 3)


def _events_of(session: Session, flows: range, seen: int) -> list[Event]:
    """Return the ends of nodes and the starts of fan-ins of these flows, after the first `seen` events."""
    return [event for event in session.log.events[seen:] if event.letter in "ns" and event.flow in flows]
