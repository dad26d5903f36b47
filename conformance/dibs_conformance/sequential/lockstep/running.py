"""The verbs of a run (enqueue, claim, settle, settle_and_claim, serve, finish), called in lockstep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import End, EnqueueRequest, QueueStep, Settlement
from dibs.model.results import ClaimResult, EnqueueResult, SettleResult
from dibs.storage.many_queues import ManyQueues
from dibs.storage.protocol import Storage
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.sequential.lockstep.token_checks import TokenChecks


class RunVerbs(TokenChecks):
    """The verbs that enqueue jobs, claim them and end their runs, called in lockstep."""

    def enqueue(self, queue: str, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        args = {"requests": requests}
        answers = self.call(
            "enqueue", {"queue": queue, **args}, self.storage.enqueue(queue, requests, now=self.now)
        )
        self.check_laws("enqueue", queue, args, answers)
        expected = self.oracle.enqueue(queue, requests, self.now)
        for request, wanted, answer in zip(requests, expected, answers, strict=True):
            self.compare(queue, self._key_owner(queue, request, repeated=wanted.repeated), wanted, answer)
        self.after_write(queue)
        return answers

    def _key_owner(self, queue: str, request: EnqueueRequest, *, repeated: bool) -> str:
        """Return the id to which the revisions in a result belong.

        For a repeated request_key, this is the id of the first request with that key.
        """
        if request.request_key is None:
            return request.job.id
        key = (queue, request.request_key)
        if not repeated:
            self._key_owners[key] = request.job.id
        return self._key_owners.get(key, request.job.id)

    def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        args = {"lease": lease, "limit": limit}
        called_at = self.now if now is None else now
        answer = self.call(
            "claim", {"queue": queue, **args}, self.storage.claim(queue, lease, limit, now=called_at)
        )
        self._compare_claim(queue, args, answer, self.newest_handle)
        self.after_write(queue)
        return answer

    def _compare_claim(
        self, queue: str, args: Mapping[str, Any], answer: ClaimResult, storage: Storage
    ) -> None:
        """Compare the answer of a claim by the handle `storage`. The reads of laws may use another one."""
        self.check_laws("claim", queue, args, answer)
        expected = self.oracle.claim(queue, args["lease"], args["limit"], self.now)
        if expected.lost:
            answer = replace(answer, next_due=None)
        self._compare_jobs(queue, expected, answer)
        self.compare(queue, "", replace(expected, jobs=()), replace(answer, jobs=()))
        self.keep_token(queue, answer, storage)

    def _compare_jobs(self, queue: str, expected: ClaimResult, answer: ClaimResult) -> None:
        ids, wanted = [job.id for job in answer.jobs], [job.id for job in expected.jobs]
        if ids != wanted:
            raise Mismatch(f"claimed {ids}; expected {wanted}")
        for old, new in zip(expected.jobs, answer.jobs, strict=True):
            self.compare(queue, old.id, old, new)

    def settle(self, queue: str, settlements: Sequence[Settlement]) -> Sequence[SettleResult]:
        args = {"settlements": settlements}
        work = self.storage.settle(queue, settlements, now=self.now)
        answers = self.call("settle", {"queue": queue, **args}, work)
        self._compare_settlements(queue, settlements, answers)
        self.after_write(*self._changed_queues(queue, settlements))
        return answers

    def _compare_settlements(
        self, queue: str, settlements: Sequence[Settlement], answers: Sequence[SettleResult]
    ) -> None:
        self.check_laws("settle", queue, {"settlements": settlements}, answers)
        expected = self.oracle.settle(queue, [self._as_oracle_knows(queue, s) for s in settlements], self.now)
        for settlement, wanted, answer in zip(settlements, expected, answers, strict=True):
            self.compare(queue, settlement.id, wanted, answer)
        self.match_fail_jobs(queue + FAIL_SUFFIX)

    def _as_oracle_knows(self, queue: str, settlement: Settlement) -> Settlement:
        """Return the settlement with the fence that the oracle drew for the same run."""
        fence = self.numbering.expected("fence", (queue, settlement.id), settlement.fence)
        return replace(settlement, fence=fence)

    def _changed_queues(self, queue: str, settlements: Sequence[Settlement]) -> list[str]:
        follow = [item.queue for s in settlements for item in getattr(s.action, "then", ())]
        return list(dict.fromkeys([queue, queue + FAIL_SUFFIX, *follow]))

    def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int
    ) -> ClaimResult:
        args = {"settlements": settlements, "lease": lease, "limit": limit}
        work = self.storage.settle_and_claim(queue, settlements, lease, limit, now=self.now)
        # A read would show the slots after the claim. The laws on the settlements need the slots before it.
        compare_each, self.compare_each = self.compare_each, False
        answer, storage = self.call("settle_and_claim", {"queue": queue, **args}, work), self.newest_handle
        self._compare_settlements(queue, settlements, answer.settled)
        self._compare_claim(queue, {"lease": lease, "limit": limit}, answer.claim, storage)
        self.compare_each = compare_each
        self.after_write(*self._changed_queues(queue, settlements))
        return answer.claim

    def serve(self, steps: Sequence[QueueStep], lease: str) -> Sequence[ClaimResult]:
        """Serve the steps, whose queues are in the order of their names. Return the claims.

        A storage may apply the steps in any order; the oracle applies them in this one. Storages without the
        capability `many_queues` get one call for each step.
        """
        storage = self.storage
        if not storage.capabilities.many_queues:
            return [self._serve_alone(step, lease) for step in steps]
        work = cast("ManyQueues", storage).serve(steps, lease, now=self.now)
        compare_each, self.compare_each = self.compare_each, False
        answers = self.call("serve", {"steps": steps, "lease": lease}, work)
        for step, answer in zip(steps, answers, strict=True):
            self._compare_settlements(step.queue, step.settlements, answer.settled)
            if step.limit:
                args = {"lease": lease, "limit": step.limit}
                self._compare_claim(step.queue, args, answer.claim, storage)
            else:
                self.compare(step.queue, "", ClaimResult(now=self.now), answer.claim)
        self.compare_each = compare_each
        changed = [queue for step in steps for queue in self._changed_queues(step.queue, step.settlements)]
        self.after_write(*dict.fromkeys(changed))
        return [answer.claim for answer in answers]

    def _serve_alone(self, step: QueueStep, lease: str) -> ClaimResult:
        if step.limit:
            return self.settle_and_claim(step.queue, step.settlements, lease, step.limit)
        self.settle(step.queue, step.settlements)
        return ClaimResult(now=self.now)

    def finish(self, queue: str, id: str, end: End, revision: int) -> None:
        args = {"id": id, "end": end, "revision": revision}
        work = self.storage.finish(queue, id, end, revision, now=self.now)
        answer = self.call("finish", {"queue": queue, **args}, work)
        self.check_laws("finish", queue, args, answer)
        oracle_revision = self.numbering.expected("revision", (queue, id), revision)
        self.compare(queue, id, self.oracle.finish(queue, id, end, oracle_revision, self.now), answer)
        self.match_fail_jobs(queue + FAIL_SUFFIX)
        self.after_write(*self._changed_queues(queue, [Settlement(id=id, fence=0, action=end)]))
