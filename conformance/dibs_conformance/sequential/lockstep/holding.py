"""Grant, renew, drop, reap and report on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model.job import Slot
from dibs_conformance.oracle.holding import Unlawful
from dibs_conformance.oracle.numbering import Differs
from dibs_conformance.sequential.lockstep.running import Running


class Holding(Running):
    """Who holds what, and for how long."""

    def grant(self, queues: Sequence[str], ttl: int, holder: str) -> str:
        args = {"queues": list(queues), "ttl": ttl, "holder": holder}
        answer = self.run("grant", args, self.storage.grant(queues, ttl, holder, now=self.now))
        self.saw("grant", queues[0], args, answer)
        if (answer.now, answer.expires_at) != (self.now, self.now + ttl):
            raise Differs(f"grant answered now {answer.now}, expires_at {answer.expires_at}")
        self.oracle.grant(queues, answer.lease, ttl, holder, self.now)
        return answer.lease

    def renew(self, queues: Sequence[str], lease: str, ttl: int) -> None:
        args = {"lease": lease, "ttl": ttl}
        answers = self.run(
            "renew", {"queues": queues, **args}, self.storage.renew(queues, lease, ttl, now=self.now)
        )
        expected = self.oracle.renew(queues, lease, ttl, self.now)
        if answers.keys() != expected.keys():
            raise Differs(f"renew answered for {sorted(answers)}")
        for queue, said in expected.items():
            answer = answers[queue]
            self.saw("renew", queue, args, answer)
            asked = tuple(sorted(answer.cancel_requested)) if said.alive else ()
            ends = answer.expires_at if said.alive else 0
            self.agree(queue, "", said, replace(answer, cancel_requested=asked, expires_at=ends))

    def drop(self, queues: Sequence[str], lease: str, limit: int) -> None:
        args = {"lease": lease, "limit": limit}
        before = {queue: [job.id for job, _ in self.oracle.queue(queue).held(lease)] for queue in queues}
        left = self.run(
            "drop", {"queues": queues, **args}, self.storage.drop(queues, lease, limit, now=self.now)
        )
        for queue in queues:
            slots = self.slots(queue)
            self.saw("drop", queue, args, left[queue], slots)
            gone = [id for id in before[queue] if not held(slots[id], lease)]
            self._chosen(queue, lease, limit, gone, left[queue])
            self.look(queue)

    def _chosen(self, queue: str, lease: str, limit: int, gone: list[str], left: int) -> None:
        try:
            expected = self.oracle.drop(queue, lease, limit, gone, self.now)
        except Unlawful as error:
            raise Differs(str(error)) from None
        self.agree(queue, "", expected, left)

    def reap(self, queue: str, limit: int) -> None:
        args = {"limit": limit}
        answers = self.run("reap", {"queue": queue, **args}, self.storage.reap(queue, limit, now=self.now))
        slots = self.slots(queue)
        self.saw("reap", queue, args, answers, slots if self.looking else None)
        order = sorted(answers, key=lambda one: seq_of(slots.get(one.id)))
        try:
            expected = self.oracle.reap(queue, limit, [one.id for one in order], self.now)
        except Unlawful as error:
            raise Differs(str(error)) from None
        for said, answer in zip(expected, order, strict=True):
            self.agree(queue, said.id, said, answer)
        self.settled_down(queue)

    def report(self, queue: str, id: str, fence: int, progress: bytes) -> None:
        args = {"id": id, "fence": fence, "progress": progress}
        work = self.storage.report(queue, id, fence, progress, now=self.now)
        answer = self.run("report", {"queue": queue, **args}, work)
        self.saw("report", queue, args, answer)
        told = self.numbering.expected("fence", (queue, id), fence)
        self.agree(queue, id, self.oracle.report(queue, id, told, progress), answer)
        self.settled_down(queue)


def held(slot: Slot, lease: str) -> bool:
    run = slot.current.run if slot.current else None
    return run is not None and run.lease == lease


def seq_of(slot: Slot | None) -> int:
    """The place in line, by which a reap that took several tells in which order."""
    return slot.current.seq if slot is not None and slot.current is not None else 0
