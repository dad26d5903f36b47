"""Processes with skewed clocks at one location: one an hour ahead, one right, and one an hour behind.

The processes read the storage's time one after the other, and a later reading must never be smaller. With the
capability `server_clock`, the storage's time must also advance at the rate of the kit's clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Final

from dibs_conformance.concurrent.process_clients import GRACE, Child
from dibs_conformance.loop_runner import LIMITS, LoopRunner
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.values import law_report
from dibs_conformance.sequential.clocks import SHIFT, shifted_clock
from dibs_conformance.target import LevelPlan, Locations, OpenedStorage, OpenStorage

LAW: Final = "processes with skewed clocks share one time"
SECTION: Final = "1, Time"
SENTENCE: Final = "The time of a storage never steps back, on whatever process a caller uses."
#: The error of each process's clock in ms, in the order of their readings. The first clock is right.
SHIFTS: Final = (0, SHIFT, -SHIFT)
ROUNDS: Final = 3
#: The storage's time and the kit's clock may differ by this number of ms since the first reading.
SLACK: Final = 1_000


def skewed_processes(plan: LevelPlan) -> Findings:
    """Read the time in turn in processes with skewed clocks. Without the capability `shared`, do nothing."""
    if not plan.claims.shared:
        return Findings()
    with ExitStack() as stack:
        location = plan.locations.new()
        target = plan.locations.target
        clients = [stack.enter_context(Child(send_times, target, location, shift)) for shift in SHIFTS]
        readings = read_in_turn(clients)
    why = find_wrong_reading(readings, server_clock=plan.claims.server_clock)
    return Findings(
        histories=1,
        events=len(readings),
        faults={"skewed clock": len(SHIFTS) - 1},
        laws=(law_report(LAW, SECTION, SENTENCE, len(readings), broken=why is not None),),
        failures=() if why is None else (LawFailure(law=LAW, why=why),),
    )


def read_in_turn(clients: Sequence[Child]) -> list[tuple[int, int, int]]:
    """Return the shift of the process, the storage's now, and the kit's time in ms, for each reading."""
    readings = []
    for _ in range(ROUNDS):
        for shift, client in zip(SHIFTS, clients, strict=True):
            client.pipe.send(None)
            who = f"grant(queues=['q']) in a process whose clock is {shift} ms off"
            now = client.receive(who, LIMITS.call + GRACE)
            readings.append((shift, now, time.monotonic_ns() // 1_000_000))
    return readings


def find_wrong_reading(readings: Sequence[tuple[int, int, int]], *, server_clock: bool) -> str | None:
    """Return a description of the first reading that breaks the law, or None."""
    _, first, began = readings[0]
    highest = first
    for shift, now, at in readings:
        who = f"in a process whose clock is {shift} ms off"
        if now < highest:
            return f"the time stepped back from {highest} to {now}, {who}"
        if server_clock and abs((now - first) - (at - began)) > SLACK:
            return f"{now - first} ms passed in the storage while {at - began} ms really passed, {who}"
        highest = now
    return None


def send_times(target: str | OpenStorage, location: str, shift: int, pipe: Connection) -> None:
    """Answer each message on the pipe with the storage's now, until the end of the pipe."""
    runner = LoopRunner()
    with shifted_clock(shift):
        opened = OpenedStorage(Locations(target), runner, location, "system")
        try:
            while True:
                pipe.recv()
                pipe.send(runner.run(opened.storage.grant(["q"], 60_000, "kit")).now)
        except EOFError:
            pass
        finally:
            opened.close()
            runner.close()
