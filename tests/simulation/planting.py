"""Plants a bug in the product, and runs a simulation with it: `python -m tests.simulation.planting NAME`.

A bug is a text replacement, which an import hook makes before the module is compiled: so it is in all classes
and functions, also in those that other modules import by name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Final

from attrs import frozen


@frozen
class PlantedBug:
    """A bug: in `module`, `old`, which occurs once, becomes `new`."""

    name: str
    module: str
    old: str
    new: str
    #: A seed that finds the bug with the options of test_planted_bugs.py; None if none was found yet.
    seed: int | None = None
    #: The promise that is broken at this seed.
    clause: str = ""
    #: The commit that mended this bug, or one like it; "" for a bug that dibs never had.
    mended: str = ""


_WORKER: Final = "dibs.worker.dispatch.worker"
_SUPERVISOR: Final = "dibs.worker.supervisor.supervisor"
_LEASES: Final = "dibs.worker.supervisor.leases"
_CRASH: Final = "dibs.worker.supervisor.crash_recovery"
_EXECUTOR: Final = "dibs.worker.execution.executor"
_COALESCING: Final = "dibs.client.connection.coalescing"
_NODES: Final = "dibs.flow.running.node_calls"

BUGS: Final = (
    PlantedBug(
        "a wake-up makes a queue ready and starts no step",
        "dibs.worker.dispatch.listener",
        "        self._queues, self._task, self._changed = [], None, True\n        self._wake_worker()\n",
        "        self._queues, self._task, self._changed = [], None, True\n",
        seed=1,
        clause="4.3 an accepted job ends",
    ),
    PlantedBug(
        "only the newest lease is renewed",
        _LEASES,
        "            for lease in self.leases:\n                await self._renew(lease)",
        "            for lease in self.leases[-1:]:\n                await self._renew(lease)",
    ),
    PlantedBug(
        "a lost reply to a claim keeps its lease",
        _WORKER,
        "            if reply.claim_unknown:\n",
        "            if reply.claim_unknown and self._draining:\n",
    ),
    PlantedBug(
        "the death of a process keeps the lease of its claims",
        _SUPERVISOR,
        "        self._replace_lease(self._leases.current)\n",
        "",
    ),
    PlantedBug(
        "a lease is dropped before every worker has left it",
        _LEASES,
        " if not self._held_runs.count_under(lease)]:",
        "]:",
        seed=2,
        clause="4.2 one run at a time",
    ),
    PlantedBug(
        "settlements of a failed request are forgotten",
        _WORKER,
        "        queue.round_trips.outbox[:0] = reply.unsettled\n",
        "        queue.round_trips.outbox[:0] = reply.unsettled[1:]\n",
    ),
    PlantedBug(
        "a batch answers its calls in another order",
        "dibs.client.connection.coalescing",
        "                    call.answer.set_result(answer)",
        "                    call.answer.set_result(answer if len(batch) < 3 else answers[-1])",
        seed=1,
        clause="4.1 an accepted enqueue is kept",
    ),
    PlantedBug(
        "a run that overran is settled while it runs",
        "dibs.worker.execution.executor",
        "        if not self._killable:\n",
        "        if True:\n",
    ),
    PlantedBug(
        "a dead worker process is not replaced",
        _SUPERVISOR,
        "            self._replace_worker_later(lifetime)\n",
        "",
        seed=1,
        clause="a worker process that died is replaced",
    ),
    PlantedBug(
        "an open parent counts as ended",
        "dibs.flow.running.decide",
        "while index >= 0 and is_ended(self.notes[parents[index]]):",
        "while index >= 0 and self.notes[parents[index]] != WAITING:",
        seed=1,
        clause="a node runs after its parents",
    ),
    PlantedBug(
        "a completed tick enqueues no next tick",
        "dibs.worker.execution.outcome",
        "        action = with_next_tick(invocation, action)\n        if not is_routine or",
        "        if not is_routine or",
        seed=31,
        clause="every tick runs once",
    ),
    PlantedBug(
        "the watch of deadlines outlives the supervisor",
        _SUPERVISOR,
        "        for task in self._tasks:\n            task.cancel()\n        await self._leases.stop()",
        "        await self._leases.stop()",
        seed=1,
        clause="every task ends at shutdown",
    ),
    PlantedBug(
        "the renewal of leases outlives the supervisor",
        _LEASES,
        "            task.cancel()\n        for lease in self._keeper.leases:",
        "            pass\n        for lease in self._keeper.leases:",
        seed=1,
        clause="every task ends at shutdown",
    ),
    PlantedBug(
        "a wait for a result has no slow poll",
        "dibs.client.connection.outcome_wait",
        "            await self.sleep(self._seconds_until_poll())\n",
        "            await self.sleep(None)\n",
    ),
    PlantedBug(
        "a claim that returns few jobs keeps their capacity",
        _WORKER,
        "                self._capacity.give_back((trip.reserved - started) * queue.size)",
        "                self._capacity.give_back(0)",
        seed=1,
        clause="4.3 an accepted job ends",
    ),
    PlantedBug(
        "a worker counts as drained while handlers run",
        _WORKER,
        "self._tasks or not self._in_flight.all_unstoppable(stopping=self._stopping):",
        "self._tasks:",
    ),
    PlantedBug(
        "a failed node wakes no flow and no timer does",
        "dibs.maintenance.flow_repair",
        "if slot.current is None]",
        "if slot.current is not None]",
    ),
    PlantedBug(
        "an enqueue of a node that repeats counts as open",
        _NODES,
        "if answer.repeated]",
        "if None]",
        mended="aba971c1",
    ),
    PlantedBug(
        "two evaluations of a process share the state of a flow",
        "dibs.flow.running.live_flow",
        "        return self._flows.pop(id, None)\n",
        "        return self._flows.get(id)\n",
        mended="61b5391e",
    ),
    PlantedBug(
        "the failures of a dead process wake no flow",
        _CRASH,
        "            if failed:\n",
        "            if failed and not queue:\n",
        mended="6130faf5",
    ),
    PlantedBug(
        "nobody enqueues a missing evaluation",
        "dibs.worker.supervisor.maintenance",
        "[*loops, self._keep_evaluating_flows()] if FLOWS in self._queues else loops",
        "loops",
        mended="1ca09e46",
    ),
    PlantedBug(
        "a worker that starts does not wait for the storage",
        _LEASES,
        'self.current = await wait_until_available(self._keeper.grant, "no lease")',
        "self.current = await self._keeper.grant()",
        mended="ead6095c",
    ),
    PlantedBug(
        "a handler that swallows its cancellation outlives its lease",
        _EXECUTOR,
        "            task.get_coro().close()\n",
        "            pass\n",
        mended="237b51a1",
    ),
    PlantedBug(
        "an error whose job may be claimed counts as no claim",
        "dibs.worker.dispatch.round_trip",
        "    unknown = claims and ",
        "    unknown = claims and shared and ",
        mended="e05a01b4",
    ),
    PlantedBug(
        "the runs of a dead process are released",
        _CRASH,
        "    elif crash is not None and crash.started[run.index]:\n",
        "    elif crash is not None and not crash.started:\n",
    ),
    PlantedBug(
        "no worker starts after a lost lease",
        _SUPERVISOR,
        "        await self._leases.restart()\n        self._start_workers()\n",
        "        await self._leases.restart()\n",
    ),
    PlantedBug(
        "a request to cancel a run is not passed on",
        _SUPERVISOR,
        "            worker.send(messages.CancelRuns(tuple(runs)))\n",
        "            pass\n",
    ),
    PlantedBug(
        "a new lease is not sent to the workers",
        _LEASES,
        "            if worker.ready:\n                worker.send(",
        "            if not worker.ready:\n                worker.send(",
    ),
    PlantedBug(
        "a run that was cancelled keeps its capacity",
        _WORKER,
        "        self._capacity.give_back(queue.size)\n",
        "        if not isinstance(action, Cancelled):\n            self._capacity.give_back(queue.size)\n",
    ),
    PlantedBug(
        "a claim that failed counts as expected",
        _WORKER,
        "self._in_flight.expected_jobs -= trip.limit",
        "self._in_flight.expected_jobs -= trip.limit if reply.error is None else 0",
    ),
    PlantedBug(
        "no step follows the pause after an error",
        _WORKER,
        "        self._loop.call_later(seconds, self._requests.wake_queue, queue)\n",
        "",
    ),
    PlantedBug(
        "a run has no timer for its timeout",
        _EXECUTOR,
        "        if invocation.deadline is not None and invocation.deadline < self._timer_at:\n"
        "            self._set_timer(invocation.deadline)\n\n    def interrupt",
        "\n    def interrupt",
    ),
    PlantedBug(
        "a process that misses a deadline is not killed",
        "dibs.worker.supervisor.held_runs",
        "                held_run.overran = found = True\n",
        "                held_run.overran = True\n",
    ),
    PlantedBug(
        "a wait takes the outcome of another enqueue of the id",
        "dibs.client.connection.outcome_wait",
        "if outcome is None or self._revision not in (outcome.first, outcome.revision):",
        "if outcome is None:",
    ),
    PlantedBug(
        "a wake-up carries the outcome of another id",
        "dibs.client.connection.shared_waits",
        "wakeup.outcomes.get(waiter.id)",
        "next(iter(wakeup.outcomes.values()), None)",
    ),
    PlantedBug(
        "a batch that may be written counts as not written",
        _COALESCING,
        "fail_calls(batch, self._timeout.cancelled_error(error, read_only=self._read_only))",
        "fail_calls(batch, self._timeout.cancelled_error(error, read_only=True))",
    ),
    PlantedBug(
        "the timer of deadlines ends with its first call",
        _COALESCING,
        "        self._timer = None if nearest == math.inf else",
        "        if nearest == math.inf:\n            return\n        _ =",
    ),
    PlantedBug(
        "a failed node skips no dependents",
        "dibs.flow.running.decide",
        "                ends += [(one, SKIPPED) for one in self._dependents[number]]\n",
        "",
        seed=31,
        clause="a node runs after its parents",
    ),
    PlantedBug(
        "a flow that waits has no timer",
        "dibs.flow.running.evaluation",
        "        raise Snooze(delay=_timer(flow, storage, changed=changed))\n",
        "",
    ),
    PlantedBug(
        "no run of a large request wakes its flow",
        "dibs.worker.dispatch.flow_wakeups",
        "        if last.job.id in woken:\n",
        "        if last.job.id in woken or len(runs) > 2:\n",
    ),
    PlantedBug(
        "the index of an ended run is not free again",
        "dibs.worker.dispatch.in_flight",
        "            self._free_indexes.append(invocation.index)\n",
        "",
    ),
)


class _PlantingLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, bug: PlantedBug) -> None:
        super().__init__(name, path)
        self._bug = bug

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        # Without the cache of compiled files.
        return self.source_to_code(self.get_data(self.path), self.path)

    def get_data(self, path: str) -> bytes:
        text = super().get_data(path).decode()
        assert text.count(self._bug.old) == 1, f"{self._bug.name}: the text to be replaced is gone"
        return text.replace(self._bug.old, self._bug.new).encode()


class _Finder(MetaPathFinder):
    def __init__(self, bug: PlantedBug) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._bug.module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _PlantingLoader(fullname, spec.origin, self._bug)
        return spec


def plant(name: str) -> None:
    """Plant the bug with this name. Call it before dibs is imported."""
    [bug] = [bug for bug in BUGS if bug.name == name]
    sys.meta_path.insert(0, _Finder(bug))


if __name__ == "__main__":
    plant(sys.argv[1])
    from dibs_conformance.simulation.command import run_as_child

    run_as_child()
