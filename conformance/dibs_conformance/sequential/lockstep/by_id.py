"""The verbs on ids by name (cancel, amend, retry_failed, forget) and on whole queues, called in lockstep."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dibs.model.requests import JobPatch, SettingsPatch
from dibs.model.results import PruneResult, State
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.sequential.lockstep.holding import LeaseVerbs

#: A prune of n expired entries may take this number of calls more than n divided by the limit.
MORE_PRUNES = 4
#: Seconds for which an expired entry may stay because another call needs it, and between two prunes.
PATIENCE, PAUSE = 2.0, 0.05


class IdVerbs(LeaseVerbs):
    """The verbs on ids by name, and on the settings, listings and counts of a queue."""

    def cancel(self, queue: str, ids: Sequence[str], *, running: bool) -> None:
        args = {"ids": ids, "running": running}
        options = self.options("cancel", running=running)
        work = self.storage.cancel(queue, ids, **options, now=self.now)
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
        self.check_token(queue)

    def prune(self, queue: str, limit: int) -> PruneResult:
        args = {"limit": limit}
        answer = self.call("prune", {"queue": queue, **args}, self.storage.prune(queue, limit, now=self.now))
        self.check_laws("prune", queue, args, answer)
        self._check_pruned(queue, answer, limit)
        self.after_write(queue)
        return answer

    def _check_pruned(self, queue: str, answer: PruneResult, limit: int) -> None:
        """Raise Mismatch if prune removed more outcomes than have expired, or more than the limit."""
        known = self.oracle.queue(queue).ids.values()
        expired = sum(one.outcome is not None and one.live_outcome(self.now) is None for one in known)
        if answer.outcomes > min(expired, limit) or answer.request_keys > limit:
            raise Mismatch(f"prune removed {answer}; {expired} outcomes have expired, the limit is {limit}")

    def prune_all(self, queue: str, limit: int) -> None:
        """Prune until `more` is False. Raise Mismatch if that takes too long, or if something is left."""
        most = MORE_PRUNES + self.oracle.queue(queue).expired_entries(self.now) // limit
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._prune_to_the_end(queue, limit, most)
            left = self._find_unpruned(queue, limit)
            if not left:
                break
            # A storage may keep an entry that another call still needs, such as a transaction of any client
            # of its server. Such an entry goes soon. It is not the reason if the limit stopped the prune.
            if answer.outcomes >= limit or time.monotonic() > until:
                raise Mismatch(f"after prune answered {answer}, {left}")
            time.sleep(PAUSE)
        self.oracle.queue(queue).prune(self.now)

    def _prune_to_the_end(self, queue: str, limit: int, most: int) -> PruneResult:
        for _ in range(most):
            answer = self.prune(queue, limit)
            if not answer.more:
                return answer
        raise Mismatch(f"prune of {queue!r} with the limit {limit} says `more` after {most} calls")

    def _find_unpruned(self, queue: str, limit: int) -> str | None:
        """Return a description of an entry that has expired and is still there, or None.

        No verb shows an expired request_key. Only the answer of another prune tells that some were left.
        """
        known = self.oracle.queue(queue)
        if any(one.outcome and not one.live_outcome(self.now) for one in known.ids.values()):
            for record in self.read_export(queue)[0]:
                ended = record.slot.outcome
                if ended is not None and ended.expires_at is not None and ended.expires_at <= self.now:
                    return f"the expired outcome of {record.id!r} is still there"
        if keys := self.prune(queue, limit).request_keys:
            raise Mismatch(f"prune answered without `more`, and left {keys} expired request_keys")
        work = self.storage.events(queue, limit=1, now=self.now)
        for _, event in self.call("events", {"queue": queue, "limit": 1}, work).events:
            if event.at < self.now - known.settings.log_age:
                return f"the log still has an event of {event.at}, {self.now - event.at} ms old"
        return None

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
