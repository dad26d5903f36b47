"""One simulation: its options, the machines, the faults, the end in calm, and the last audit."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from time import process_time
from typing import Final

from msgspec import Struct

from dibs import Dibs
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs_conformance.simulation.faults import Fault, Storm, draw_faults
from dibs_conformance.simulation.ledger import RECEIVED, SETTLED_AFTER, TICKS, Ledger
from dibs_conformance.simulation.nodes import Machine, WorkerMachine, WorkerSettings
from dibs_conformance.simulation.server import StorageServer
from dibs_conformance.simulation.standard_library import from_seed
from dibs_conformance.simulation.workload import ProducerMachine, ReceiverMachine, make_app
from dibs_conformance.simulation.world import SECOND, BrokenPromise, Process, World, clock_text

#: Seconds of calm at the end within which every job and every wait must have ended.
DRAIN_WITHIN: Final = 900.0
#: Seconds of calm before the end in which producers go on: what must hold in a calm system is checked then.
LAST_CALM: Final = SETTLED_AFTER + 60.0
#: Seconds between two audits.
AUDIT_EVERY: Final = 5.0
#: Seconds in which a worker replaces a process that has died, in a calm system.
REPLACED_WITHIN: Final = 30.0
#: The most tasks of one process, and the most waits at the storage for each process.
MOST_TASKS: Final = 1500
MOST_WAITS: Final = 200
#: Seconds until a machine that was killed, or has crashed, starts again: the range in a storm.
REBOOT: Final = (1.0, 40.0)
QUEUES: Final = ("plain", "timed", "keyed", "rated", TICKS[0], RECEIVED, FLOWS, EVALUATIONS)
#: Machines with a program that receives.
RECEIVERS: Final = 2


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a simulation is drawn from. Two runs with equal options have the same history."""

    seed: int = 1
    hours: float = 1.0
    workers: int = 10
    producers: int = 3
    #: Mean seconds between two actions of a producer.
    pause: float = 5.0
    #: The faults that are left out, by their index: the minimizer shrinks a failure by them.
    without: frozenset[int] = frozenset()
    #: The kinds of faults that are left out.
    without_kinds: frozenset[str] = frozenset()

    @property
    def machines(self) -> int:
        """The number of machines that faults choose from."""
        return self.workers + self.producers + RECEIVERS


class Result(Struct, frozen=True, kw_only=True):
    """The counts of a finished simulation, and the promise that it broke; "" if it kept all."""

    options: Options
    digest: str
    clause: str
    what: str
    #: Simulated seconds, CPU seconds, events, and numbers of jobs and faults.
    simulated: float
    cpu: float
    events: int
    counts: dict[str, int]
    faults: dict[str, int]
    #: The number of faults before the violation.
    injected: int
    latest: tuple[str, ...] = ()


class Simulation:
    """The machines of one seed."""

    def __init__(self, options: Options, world: World) -> None:
        self.options, self.world = options, world
        self.ledger = Ledger(self.world, self._is_local, lambda: self.server.now_ms)
        draw = Random(f"system of {options.seed}")
        more = {"many_queues": draw.random() < 0.5, "blocking_claim": draw.random() < 0.5}
        self.server = StorageServer(self.world, self.ledger.observe, more)
        self.workers = [self._make_worker(number, draw) for number in range(options.workers)]
        self.producers = [
            ProducerMachine(
                self.world, self.server, f"producer{number}", self._make_app, self.ledger,
                pause=options.pause, seed=f"producer {number} of {options.seed}",
            )
            for number in range(options.producers)
        ]  # fmt: skip
        self.receivers = [
            ReceiverMachine(
                self.world, self.server, f"receiver{number}", self._make_app, self.ledger,
                f"receiver {number} of {options.seed}",
            )
            for number in range(RECEIVERS)
        ]  # fmt: skip
        self.machines: Sequence[Machine] = [*self.workers, *self.producers, *self.receivers]
        self.injected: Counter[str] = Counter()
        #: The latest faults and deploys, as lines.
        self.latest: list[str] = []

    def _make_app(self, process: Process) -> Dibs:
        return make_app(self.ledger, process)

    def _make_worker(self, number: int, draw: Random) -> WorkerMachine:
        settings = WorkerSettings(
            processes=draw.choice((0, 1, 1, 2)),
            lease=draw.choice((4.0, 15.0, 30.0)),
            poll=draw.choice((1.0, 1.0, 5.0)),
            grace=draw.choice((0.0, 5.0, 30.0)),
        )
        return WorkerMachine(self.world, self.server, f"worker{number}", self._make_app, settings)

    def _is_local(self, process: Process) -> bool:
        return process.name.startswith("worker") and "/" not in process.name

    # -- the course ----------------------------------------------------------------------------------

    def run(self, on_hour: Callable[[str], None]) -> Result:
        """Run the simulation, and call `on_hour` with a line for each hour."""
        cpu, seconds = process_time(), self.options.hours * 3600
        for number, machine in enumerate(self.machines):
            self.world.call_in(0.1 * number, self._boot, machine)
        storms, faults = draw_faults(self.options.seed, seconds, len(self.machines))
        for storm in storms:
            self.world.call_in(storm.begin, self._begin_storm, storm)
        for index, fault in enumerate(faults):
            if index not in self.options.without and fault.kind not in self.options.without_kinds:
                self.world.call_in(fault.at, self._inject, fault)
        self.world.call_in(AUDIT_EVERY, self._audit)
        for hour in range(1, int(self.options.hours) + 2):
            end = min(hour, self.options.hours) * 3600
            self.world.run(int(end * SECOND))
            on_hour(self._hour_line(process_time() - cpu))
            if self.world.violation is not None or end >= seconds:
                break
        self._finish()
        for machine in self.machines:
            machine.kill()
        self.server.process.kill()
        return self._result(process_time() - cpu)

    def _hour_line(self, cpu: float) -> str:
        counts = self.ledger.counts
        return (
            f"{clock_text(self.world.now)}  {self.world.events:>12,} events  {counts['enqueued']:>9,} jobs  "
            f"{counts['ended']:>9,} ended  {sum(self.injected.values()):>6,} faults  {cpu:>7.1f} s CPU"
        )

    def _result(self, cpu: float) -> Result:
        violation = self.world.violation or BrokenPromise("", "", self.world.now)
        return Result(
            options=self.options,
            digest=self.ledger.digest,
            clause=violation.clause,
            what=violation.what,
            simulated=self.world.now / SECOND,
            cpu=cpu,
            events=self.world.events,
            counts=dict(sorted(self.ledger.counts.items())),
            faults=dict(sorted(self.injected.items())),
            injected=sum(self.injected.values()),
            latest=tuple(self.latest[-12:]),
        )

    # -- faults --------------------------------------------------------------------------------------

    def _begin_storm(self, storm: Storm) -> None:
        self.ledger.calm_since = None
        self.world.call_in(storm.end - storm.begin, self._end_storm)

    def _end_storm(self) -> None:
        """End all faults: what was killed starts again, what was frozen goes on, and connections work."""
        for machine in self.machines:
            machine.link.calm()
            for process in machine.processes:
                process.frozen_until = min(process.frozen_until, self.world.now)
                if not process.dead:
                    process.wake_at(self.world.now)
            self._boot(machine)
        self.server.up = True
        self.ledger.calm_since = self.world.now

    def _boot(self, machine: Machine) -> None:
        if not (machine.alive or machine.finished):
            machine.start()

    def _inject(self, fault: Fault) -> None:
        self.injected[fault.kind] += 1
        machine = self.machines[fault.machine]
        at = clock_text(self.world.now)
        self.latest.append(f"{at} {fault.kind} {machine.name} for {fault.seconds:.2f} s")
        del self.latest[:-50]
        getattr(self, "_" + fault.kind.replace(" ", "_"))(machine, fault)

    def _kill_machine(self, machine: Machine, fault: Fault) -> None:
        machine.kill()
        self.world.call_in(fault.seconds, self._boot, machine)

    def _kill_process(self, machine: Machine, fault: Fault) -> None:
        if machine.processes:
            machine.processes[int(fault.draw * len(machine.processes))].crash()
        self.world.call_in(fault.seconds, self._boot, machine)

    def _freeze_machine(self, machine: Machine, fault: Fault) -> None:
        machine.freeze(fault.seconds)

    def _freeze_process(self, machine: Machine, fault: Fault) -> None:
        if machine.processes:
            machine.processes[int(fault.draw * len(machine.processes))].freeze(fault.seconds)

    def _bad_network(self, machine: Machine, fault: Fault) -> None:
        draw = Random(fault.draw)
        for name in ("slow", "lose_request", "lose_reply", "repeat", "hang", "lose_wakeup"):
            setattr(machine.link, name, draw.choice((0.0, 0.0, 0.02, 0.2, 0.5)))
        self.world.call_in(fault.seconds, machine.link.calm)

    def _refused(self, machine: Machine, fault: Fault) -> None:
        machine.link.state = "refused"
        self.world.call_in(fault.seconds, machine.link.calm)

    def _silent(self, machine: Machine, fault: Fault) -> None:
        machine.link.state = "silent"
        self.world.call_in(fault.seconds, machine.link.calm)

    def _restart_storage(self, machine: Machine, fault: Fault) -> None:
        self.server.restart(min(fault.seconds, 20.0))

    def _freeze_storage(self, machine: Machine, fault: Fault) -> None:
        self.server.process.freeze(min(fault.seconds, 20.0))

    def _jump_storage_clock(self, machine: Machine, fault: Fault) -> None:
        self.server.process.clock.skew += int((fault.draw - 0.5) * 2 * fault.seconds * SECOND)

    def _jump_clock(self, machine: Machine, fault: Fault) -> None:
        for process in machine.processes:
            process.clock.skew += int((fault.draw - 0.5) * 3600 * SECOND)

    def _deploy(self, machine: Machine, fault: Fault) -> None:
        """Stop a worker as a deployment does. It starts again as soon as it has ended."""
        if isinstance(machine, WorkerMachine):
            machine.stop()

    # -- audits --------------------------------------------------------------------------------------

    def _audit(self) -> None:
        """Check what must hold at each moment, and restart machines that ended in calm times."""
        self.world.call_in(AUDIT_EVERY, self._audit)
        if int(self.world.now / SECOND / AUDIT_EVERY) % 60 == 0:
            gc.collect()
        for machine in self.machines:
            self._boot(machine)
            for process in machine.processes:
                if (number := len(process.tasks())) > MOST_TASKS:
                    self.world.fail("nothing grows without bound", f"{process.name} has {number} tasks")
        processes = sum(len(machine.processes) for machine in self.machines)
        if self.server.pending > MOST_WAITS * (processes + 1):
            self.world.fail("nothing grows without bound", f"{self.server.pending} calls wait at the storage")
        if self.ledger.is_calm() and not self.workers[0].finished:
            self._check_leases()
            if late := self.ledger.late_runs():
                self.world.fail("a run ends after its timeout", f"{late[0]} still runs")
            self._check_processes()

    def _check_processes(self) -> None:
        """Check that a calm worker has all its processes. One that crashed just now is being replaced."""
        for worker in self.workers:
            missing = 1 + worker.settings.processes - len(worker.processes)
            worker.incomplete = worker.incomplete + 1 if missing > 0 else 0
            if worker.incomplete * AUDIT_EVERY > REPLACED_WITHIN:
                self.world.fail(
                    "a worker process that died is replaced", f"{worker.name} has {missing} processes too few"
                )

    def _check_leases(self) -> None:
        if overdue := self.ledger.overdue_leases(self.server.now_ms):
            self.world.fail("3 leases", f"{overdue[0]} is active, and its lease has expired for over 2 s")

    # -- the end -------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Stop all faults, wait until each job and wait has ended, and check that the workers stop."""
        self._end_storm()
        self.world.run(self.world.now + int(LAST_CALM * SECOND))
        for producer in self.producers:
            producer.finished = True
        end = self.world.now + int(DRAIN_WITHIN * SECOND)
        while self.world.violation is None and self.world.now < end and self._what_is_left():
            self.world.run(self.world.now + 20 * SECOND)
        if left := self._what_is_left():
            self.world.fail("4.3 an accepted job ends", f"after {DRAIN_WITHIN:g} s of calm: {left}")
        for receiver in self.receivers:
            receiver.finished = True
        for worker in self.workers:
            worker.finished = True
            worker.stop()
        while self.world.violation is None and any(one.alive for one in (*self.workers, *self.receivers)):
            self.world.run(self.world.now + SECOND)

    def _what_is_left(self) -> str:
        """Return the producers, jobs and flows that have not ended, as text; "" if there are none."""
        if alive := [one.name for one in self.producers if one.alive]:
            return f"a wait or a call of {', '.join(alive)} has not ended"
        if self.ledger.owed:
            (queue, id), revisions = next(iter(self.ledger.owed.items()))
            return f"{len(self.ledger.owed)} ids have not ended, as {queue}/{id} of revision {min(revisions)}"
        for queue, counts in self.server.run_now(self.server.storage.counts(QUEUES)).items():
            live = counts.waiting + counts.active + counts.blocked
            if live > (queue == TICKS[0]):
                return f"{queue} has {live} live jobs"
            if queue == TICKS[0] and not live:
                return f"{queue} has no next tick"
        return ""


def simulate(options: Options, on_hour: Callable[[str], None] = lambda _: None) -> Result:
    """Run one simulation in this process. Set PYTHONHASHSEED before it starts to repeat it bit for bit."""
    logging.disable(logging.CRITICAL)
    world = World(options.seed)
    with from_seed(world, options.seed):
        return Simulation(options, world).run(on_hour)
