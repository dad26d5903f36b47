"""The checks after the end of all flows: dibs and the naive reading agree about each of them."""

from __future__ import annotations

from attrs import define

from dibs.flow.stored_flow import FlowStatus
from dibs.model.wakeup import FLOWS
from tests.flow.machine.graphs import FlowSpec, label_of
from tests.flow.machine.laws import check_planned_ends, require
from tests.flow.machine.naive import Reading, read
from tests.flow.machine.world import World


@define
class EndCheck:
    """Compares the flows of a world with the naive reading."""

    world: World

    async def check(self) -> None:
        ledger = self.world.ledger
        for label in [label for label in self.world.specs if "." not in label]:
            starts = ledger.enqueues[label] + ledger.retries[label]
            require(starts == len(ledger.ends[label]), "each flow ends exactly once", label, starts)
            check_planned_ends(ledger, label, self.world.specs[label], self.world.retried)
        for label, spec in self.world.specs.items():
            if ledger.ends[label]:
                await self._check_flow(label, spec)

    async def _check_flow(self, label: str, spec: FlowSpec) -> None:
        kind = self.world.ledger.kinds(label)[-1]
        if self.world.is_cancelled(label):
            if kind == "cancelled":
                return
        else:
            require(kind != "cancelled", "only a cancelled flow ends as cancelled", label)
        if label in self.world.retried:  # its last run may be of an operator, after the end of its parent
            return
        _, id = self.world.ledger.ids[label][-1]
        status = await self.world.processes[0].app.get_flow(id).status()
        require(status is not None, "an ended flow has a status", label)
        assert status is not None
        seen = [str(node.state) for node in status.nodes]
        reading = read(self.world.ledger, label, spec, seen, set(self.world.retried))
        self._check_states(label, seen, reading)
        self._check_last_round(label, spec, seen)
        require(kind == reading.kind, "a flow ends as its nodes say", label, kind, reading, seen)
        if kind == "failed":
            self._check_error(label, status, reading)
        elif spec.returns is not None:
            await self._check_result(label, spec, spec.returns)

    def _check_states(self, label: str, seen: list[str], reading: Reading) -> None:
        for number, (state, possible) in enumerate(zip(seen, reading.states, strict=True)):
            require(state in possible, "nodes end as the naive reading", label, number, seen, reading)

    def _check_last_round(self, label: str, spec: FlowSpec, seen: list[str]) -> None:
        """Check that a retry of the flow ran all nodes again that had not completed."""
        ledger = self.world.ledger
        for number, node in enumerate(spec.nodes):
            name = f"{label}.{number}"
            if (
                node.shared is None
                and seen[number] in ("failed", "cancelled")
                and name not in self.world.retried
            ):
                last = ledger.ends[name][-1].order
                require(last > ledger.started[label], "a retry runs failed nodes again", name)

    def _check_error(self, label: str, status: FlowStatus, reading: Reading) -> None:
        text = "" if status.error is None else status.error.message
        count = f"{len(reading.causes)} of {status.total} nodes did not complete"
        require(count in text, "a failed flow counts its nodes", label, text, reading)
        for number in reading.causes[:5]:
            require(f"node {number} (" in text, "a failed flow names its nodes", label, number, text)

    async def _check_result(self, label: str, spec: FlowSpec, number: int) -> None:
        end = self.world.ledger.ends[label][-1]
        name = label_of(label, number, spec.nodes[number])
        results = [one.result for one in self.world.ledger.ends[name] if one.kind == "completed"]
        require(end.result in results, "the result is that of its node", label, end, results)


async def check_end(world: World) -> None:
    """Check all flows after a drain, and that no job is left."""
    await EndCheck(world).check()
    left = await world.live_jobs()
    require(not left, "no job is left", left)
    for label in world.specs:
        for queue, id in world.ledger.ids.get(label, ()):
            (slot,) = await world.recorder.get(queue, [id])
            require(queue == FLOWS and slot.current is None, "each flow has ended", label)
