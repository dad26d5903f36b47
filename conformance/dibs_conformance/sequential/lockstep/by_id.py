"""The verbs on ids by name (cancel, amend, retry_failed, forget) and on whole queues, called in lockstep."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.model.requests import JobPatch, SettingsPatch
from dibs.model.results import PruneResult, State
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.sequential.lockstep.holding import LeaseVerbs


class IdVerbs(LeaseVerbs):
    """The verbs on ids by name, and on the settings, listings and counts of a queue."""

    def cancel(self, queue: str, ids: Sequence[str], *, running: bool) -> None:
        args = {"ids": ids, "running": running}
        work = self.storage.cancel(queue, ids, running=running, now=self.now)
        answers = self.call("cancel", {"queue": queue, **args}, work)
        self.check_laws("cancel", queue, args, answers)
        self.compare(
            queue, "", tuple(self.oracle.cancel(queue, ids, self.now, running=running)), tuple(answers)
        )
        self.after_write(queue)

    def amend(self, queue: str, id: str, patch: JobPatch) -> None:
        args = {"id": id, "patch": patch}
        answer = self.call(
            "amend", {"queue": queue, **args}, self.storage.amend(queue, id, patch, now=self.now)
        )
        self.check_laws("amend", queue, args, answer)
        self.compare(queue, id, self.oracle.amend(queue, id, patch, self.now), answer)
        self.after_write(queue)

    def retry_failed(self, queue: str, ids: Sequence[str]) -> None:
        args = {"ids": ids}
        work = self.storage.retry_failed(queue, ids, now=self.now)
        answers = self.call("retry_failed", {"queue": queue, **args}, work)
        self.check_laws("retry_failed", queue, args, answers)
        self.compare(queue, "", tuple(self.oracle.retry_failed(queue, ids, self.now)), tuple(answers))
        self.after_write(queue)

    def forget(self, queue: str, ids: Sequence[str]) -> None:
        args = {"ids": ids}
        answers = self.call("forget", {"queue": queue, **args}, self.storage.forget(queue, ids, now=self.now))
        self.check_laws("forget", queue, args, answers)
        self.compare(queue, "", tuple(self.oracle.forget(queue, ids, self.now)), tuple(answers))
        self.after_write(queue)

    def configure(self, queue: str, patch: SettingsPatch) -> None:
        args = {"patch": patch}
        work = self.storage.configure(queue, patch, now=self.now)
        answer = self.call("configure", {"queue": queue, **args}, work)
        self.check_laws("configure", queue, args, answer)
        self.compare(queue, "", self.oracle.configure(queue, patch, self.now), answer)

    def prune(self, queue: str, limit: int) -> None:
        args = {"limit": limit}
        answer = self.call("prune", {"queue": queue, **args}, self.storage.prune(queue, limit, now=self.now))
        self.check_laws("prune", queue, args, answer)
        self._check_pruned(queue, answer, limit)
        self.after_write(queue)

    def _check_pruned(self, queue: str, answer: PruneResult, limit: int) -> None:
        """Raise Mismatch if prune removed more outcomes than have expired, or more than the limit."""
        known = self.oracle.queue(queue).ids.values()
        expired = sum(one.outcome is not None and one.live_outcome(self.now) is None for one in known)
        if answer.outcomes > min(expired, limit) or answer.request_keys > limit:
            raise Mismatch(f"prune removed {answer}; {expired} outcomes have expired, the limit is {limit}")

    def list(self, queue: str, state: State, limit: int) -> None:
        """Read a whole listing, then the same listing in parts. In both, each id must appear once."""
        items = self.read_listing(queue, state, limit)
        self._compare_listing(queue, state, {"limit": limit}, [id for id, _ in items])
        for id, slot in items:
            self.compare_slot(queue, id, slot)
        parts = self.split(queue, limit, state)
        read = [id for part in parts for id, _ in self.read_listing(queue, state, limit, part)]
        self._compare_listing(queue, state, {"limit": limit, "parts": limit}, read)

    def _compare_listing(self, queue: str, state: State, options: dict[str, int], ids: Sequence[str]) -> None:
        self.record("list", {"queue": queue, "state": state, **options}, ids)
        expected = self.oracle.list(queue, state)
        if len(ids) != len(set(ids)) or set(ids) != expected:
            raise Mismatch(f"list {state} has {sorted(ids)}; expected {sorted(expected)}")

    def counts(self, queues: Sequence[str]) -> None:
        args = {"queues": queues}
        answers = self.call("counts", args, self.storage.counts(queues, now=self.now))
        for queue in queues:
            self.check_laws("counts", queue, args, answers[queue])
            self.compare(queue, "", self.oracle.counts(queue), answers[queue])

    def known_queues(self) -> None:
        """Raise Mismatch if `queues()` names a queue that was never used.

        A recent queue may be missing, because the contract lets the list lag behind.
        """
        answer = self.call("queues", {}, self.storage.queues())
        made_up = [info.name for info in answer if info.name not in self.oracle.queues]
        if made_up:
            raise Mismatch(f"queues() names {made_up}; expected only queues that were used")
