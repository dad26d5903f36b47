"""Cancel, amend, retry_failed and forget on both sides, and the verbs of a whole queue."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.model.requests import JobPatch, SettingsPatch
from dibs.model.results import PruneResult, State
from dibs_conformance.oracle.numbering import Differs
from dibs_conformance.sequential.lockstep.holding import Holding


class ById(Holding):
    """What is done by name, and what a queue is set to and tells."""

    def cancel(self, queue: str, ids: Sequence[str], *, running: bool) -> None:
        args = {"ids": ids, "running": running}
        work = self.storage.cancel(queue, ids, running=running, now=self.now)
        answers = self.run("cancel", {"queue": queue, **args}, work)
        self.saw("cancel", queue, args, answers)
        self.agree(
            queue, "", tuple(self.oracle.cancel(queue, ids, self.now, running=running)), tuple(answers)
        )
        self.settled_down(queue)

    def amend(self, queue: str, id: str, patch: JobPatch) -> None:
        args = {"id": id, "patch": patch}
        answer = self.run(
            "amend", {"queue": queue, **args}, self.storage.amend(queue, id, patch, now=self.now)
        )
        self.saw("amend", queue, args, answer)
        self.agree(queue, id, self.oracle.amend(queue, id, patch, self.now), answer)
        self.settled_down(queue)

    def retry_failed(self, queue: str, ids: Sequence[str]) -> None:
        args = {"ids": ids}
        work = self.storage.retry_failed(queue, ids, now=self.now)
        answers = self.run("retry_failed", {"queue": queue, **args}, work)
        self.saw("retry_failed", queue, args, answers)
        self.agree(queue, "", tuple(self.oracle.retry_failed(queue, ids, self.now)), tuple(answers))
        self.settled_down(queue)

    def forget(self, queue: str, ids: Sequence[str]) -> None:
        args = {"ids": ids}
        answers = self.run("forget", {"queue": queue, **args}, self.storage.forget(queue, ids, now=self.now))
        self.saw("forget", queue, args, answers)
        self.agree(queue, "", tuple(self.oracle.forget(queue, ids, self.now)), tuple(answers))
        self.settled_down(queue)

    def configure(self, queue: str, patch: SettingsPatch) -> None:
        args = {"patch": patch}
        work = self.storage.configure(queue, patch, now=self.now)
        answer = self.run("configure", {"queue": queue, **args}, work)
        self.saw("configure", queue, args, answer)
        self.agree(queue, "", self.oracle.configure(queue, patch, self.now), answer)

    def prune(self, queue: str, limit: int) -> None:
        args = {"limit": limit}
        answer = self.run("prune", {"queue": queue, **args}, self.storage.prune(queue, limit, now=self.now))
        self.saw("prune", queue, args, answer)
        self._pruned(queue, answer, limit)
        self.settled_down(queue)

    def _pruned(self, queue: str, answer: PruneResult, limit: int) -> None:
        """Only what has expired may go, and no more than asked."""
        known = self.oracle.queue(queue).ids.values()
        expired = sum(one.outcome is not None and one.alive(self.now) is None for one in known)
        if answer.outcomes > min(expired, limit) or answer.request_keys > limit:
            raise Differs(f"prune removed {answer}; {expired} outcomes have expired, the limit is {limit}")

    def list(self, queue: str, state: State, limit: int) -> None:
        """Read a whole listing, then in parts: each id of the state exactly once, with its slot."""
        items = self.listed(queue, state, limit)
        self._same_listing(queue, state, {"limit": limit}, [id for id, _ in items])
        for id, slot in items:
            self.same_slot(queue, id, slot)
        parts = self.parts(queue, limit, state)
        read = [id for part in parts for id, _ in self.listed(queue, state, limit, part)]
        self._same_listing(queue, state, {"limit": limit, "parts": limit}, read)

    def _same_listing(self, queue: str, state: State, said: dict[str, int], ids: Sequence[str]) -> None:
        self.note("list", {"queue": queue, "state": state, **said}, ids)
        expected = self.oracle.list(queue, state)
        if len(ids) != len(set(ids)) or set(ids) != expected:
            raise Differs(f"list {state} has {sorted(ids)}; the contract says {sorted(expected)}")

    def counts(self, queues: Sequence[str]) -> None:
        args = {"queues": queues}
        answers = self.run("counts", args, self.storage.counts(queues, now=self.now))
        for queue in queues:
            self.saw("counts", queue, args, answers[queue])
            self.agree(queue, "", self.oracle.counts(queue), answers[queue])

    def known_queues(self) -> None:
        """The queues told may lag, but none is made up, and the settings are those of now or before."""
        answer = self.run("queues", {}, self.storage.queues())
        made_up = [info.name for info in answer if info.name not in self.oracle.queues]
        if made_up:
            raise Differs(f"queues() tells of {made_up}, which nobody used")
