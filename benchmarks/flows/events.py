"""The events that nodes and fan-ins write to a log, and the counts of lost and doubled fan-ins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from attrs import define, field, frozen

#: Seconds in which a worker acknowledges a fan-in after its end, and runs it again if it is killed before.
ACKNOWLEDGE: Final = 1.0


class Event(NamedTuple):
    """A line of the log; programs/flow_harness.py describes the letters."""

    letter: str
    flow: int
    value: int
    pid: int
    ns: int


@define
class EventLog:
    """The log of one session. `read` appends new events to `events`."""

    path: Path
    events: list[Event] = field(factory=list)
    #: The flows whose fan-in ended at least once.
    done: set[int] = field(factory=set)
    _offset: int = 0

    def read(self) -> list[Event]:
        """Return the events since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        # A line is one write, but a read may come between two pages of it.
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        new = [parse(line) for line in complete.decode().splitlines()]
        self.events += new
        self.done.update(event.flow for event in new if event.letter == "f")
        return new


def parse(line: str) -> Event:
    letter, *numbers = line.split()
    flow, value, pid, ns = map(int, numbers)
    return Event(letter, flow, value, pid, ns)


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
