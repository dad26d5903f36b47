"""Cancel, amend, retry_failed and forget on both sides, and the verbs of a whole queue."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.model.requests import JobPatch, SettingsPatch
from dibs.model.results import PruneResult, State
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.sequential.lockstep.holding import LeaseVerbs


class IdVerbs(LeaseVerbs):
    """What is done by name, and what a queue is set to and tells."""

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
        self._pruned(queue, answer, limit)
        self.after_write(queue)

    def _pruned(self, queue: str, answer: PruneResult, limit: int) -> None:
        """Only what has expired may go, and no more than asked."""
        known = self.oracle.queue(queue).ids.values()
        expired = sum(one.outcome is not None and one.live_outcome(self.now) is None for one in known)
        if answer.outcomes > min(expired, limit) or answer.request_keys > limit:
            raise Mismatch(f"prune removed {answer}; {expired} outcomes have expired, the limit is {limit}")

    def list(self, queue: str, state: State, limit: int) -> None:
        """Read a whole listing, then in parts: each id of the state exactly once, with its slot."""
        items = self.read_listing(queue, state, limit)
        self._same_listing(queue, state, {"limit": limit}, [id for id, _ in items])
        for id, slot in items:
            self.compare_slot(queue, id, slot)
        parts = self.split(queue, limit, state)
        read = [id for part in parts for id, _ in self.read_listing(queue, state, limit, part)]
        self._same_listing(queue, state, {"limit": limit, "parts": limit}, read)

    def _same_listing(self, queue: str, state: State, said: dict[str, int], ids: Sequence[str]) -> None:
        self.record("list", {"queue": queue, "state": state, **said}, ids)
        expected = self.oracle.list(queue, state)
        if len(ids) != len(set(ids)) or set(ids) != expected:
            raise Mismatch(f"list {state} has {sorted(ids)}; the contract says {sorted(expected)}")

    def counts(self, queues: Sequence[str]) -> None:
        args = {"queues": queues}
        answers = self.call("counts", args, self.storage.counts(queues, now=self.now))
        for queue in queues:
            self.check_laws("counts", queue, args, answers[queue])
            self.compare(queue, "", self.oracle.counts(queue), answers[queue])

    def known_queues(self) -> None:
        """The queues told may lag, but none is made up, and the settings are those of now or before."""
        answer = self.call("queues", {}, self.storage.queues())
        made_up = [info.name for info in answer if info.name not in self.oracle.queues]
        if made_up:
            raise Mismatch(f"queues() tells of {made_up}, which nobody used")
