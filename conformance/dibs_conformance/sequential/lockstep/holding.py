"""The verbs on leases and on held runs (grant, renew, drop, reap, report), called in lockstep."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model.job import Slot
from dibs_conformance.oracle.holding import ForbiddenChoice
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.sequential.lockstep.running import RunVerbs


class LeaseVerbs(RunVerbs):
    """The verbs on leases and on the runs under them: grant, renew, drop, reap and report."""

    def grant(self, queues: Sequence[str], ttl: int, holder: str) -> str:
        args = {"queues": list(queues), "ttl": ttl, "holder": holder}
        answer = self.call("grant", args, self.storage.grant(queues, ttl, holder, now=self.now))
        self.check_laws("grant", queues[0], args, answer)
        if (answer.now, answer.expires_at) != (self.now, self.now + ttl):
            raise Mismatch(f"grant answered now {answer.now}, expires_at {answer.expires_at}")
        self.oracle.grant(queues, answer.lease, ttl, holder, self.now)
        return answer.lease

    def renew(self, queues: Sequence[str], lease: str, ttl: int) -> None:
        args = {"lease": lease, "ttl": ttl}
        answers = self.call(
            "renew", {"queues": queues, **args}, self.storage.renew(queues, lease, ttl, now=self.now)
        )
        expected = self.oracle.renew(queues, lease, ttl, self.now)
        if answers.keys() != expected.keys():
            raise Mismatch(f"renew answered for {sorted(answers)}")
        for queue, wanted in expected.items():
            answer = answers[queue]
            self.check_laws("renew", queue, args, answer)
            requested = tuple(sorted(answer.cancel_requested)) if wanted.alive else ()
            ends = answer.expires_at if wanted.alive else 0
            self.compare(queue, "", wanted, replace(answer, cancel_requested=requested, expires_at=ends))

    def drop(self, queues: Sequence[str], lease: str, limit: int) -> None:
        args = {"lease": lease, "limit": limit}
        before = {queue: [job.id for job, _ in self.oracle.queue(queue).held(lease)] for queue in queues}
        left = self.call(
            "drop", {"queues": queues, **args}, self.storage.drop(queues, lease, limit, now=self.now)
        )
        for queue in queues:
            slots = self.slots(queue)
            self.check_laws("drop", queue, args, left[queue], slots)
            gone = [id for id in before[queue] if not is_held(slots[id], lease)]
            self._compare_drop(queue, lease, limit, gone, left[queue])
            self.compare_slots(queue)
            self.check_token(queue)

    def _compare_drop(self, queue: str, lease: str, limit: int, gone: list[str], left: int) -> None:
        try:
            expected = self.oracle.drop(queue, lease, limit, gone, self.now)
        except ForbiddenChoice as error:
            raise Mismatch(str(error)) from None
        self.compare(queue, "", expected, left)

    def reap(self, queue: str, limit: int) -> None:
        args = {"limit": limit}
        answers = self.call("reap", {"queue": queue, **args}, self.storage.reap(queue, limit, now=self.now))
        slots = self.slots(queue)
        self.check_laws("reap", queue, args, answers, slots if self.compare_each else None)
        order = sorted(answers, key=lambda one: seq_of(slots.get(one.id)))
        try:
            expected = self.oracle.reap(queue, limit, [one.id for one in order], self.now)
        except ForbiddenChoice as error:
            raise Mismatch(str(error)) from None
        for wanted, answer in zip(expected, order, strict=True):
            self.compare(queue, wanted.id, wanted, answer)
        self.after_write(queue)

    def report(
        self, queue: str, id: str, fence: int, progress: bytes | None = None, memo: bytes | None = None
    ) -> None:
        args = {"id": id, "fence": fence, "progress": progress, "memo": memo}
        options = self.options("report", progress=progress, memo=memo)
        work = self.storage.report(queue, id, fence, **options, now=self.now)
        answer = self.call("report", {"queue": queue, **args}, work)
        self.check_laws("report", queue, args, answer)
        oracle_fence = self.numbering.expected("fence", (queue, id), fence)
        self.compare(queue, id, self.oracle.report(queue, id, oracle_fence, progress, memo), answer)
        self.after_write(queue)


def is_held(slot: Slot, lease: str) -> bool:
    call = slot.current.run if slot.current else None
    return call is not None and call.lease == lease


def seq_of(slot: Slot | None) -> int:
    """Return the seq of the current job, or 0.

    A reap gives growing seqs to its jobs, so the seqs show the order in which the storage took the jobs.
    """
    return slot.current.seq if slot is not None and slot.current is not None else 0
