"""The verb `prune`."""

from __future__ import annotations

import time

from hypothesis import strategies as st
from hypothesis.stateful import rule

from dibs.model.results import PruneResult
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.verbs.verb import CallEncoding, Verb, answered, read_races, read_scenes

#: A prune of n expired entries may take this number of calls more than n divided by the limit.
MORE_PRUNES = 4
#: Seconds for which an expired entry may stay because another call needs it, and between two prunes.
PATIENCE, PAUSE = 2.0, 0.05


class PruneCalls(LockstepCore):
    """`prune`, called in lockstep. The oracle does nothing for it: no read shows what has expired."""

    def prune(self, queue: str, limit: int) -> PruneResult:
        args = {"limit": limit}
        answer = self.call("prune", {"queue": queue, **args}, self.storage.prune(queue, limit, now=self.now))
        self._check_pruned(queue, answer, limit)
        self.after_write(queue)
        return answer

    def _check_pruned(self, queue: str, answer: PruneResult, limit: int) -> None:
        """Raise Mismatch if prune removed more outcomes than have expired, or more than the limit."""
        known = self.oracle.queue(queue).ids.values()
        expired = sum(one.outcome is not None and one.live_outcome(self.now) is None for one in known)
        if answer.outcomes > min(expired, limit) or answer.request_keys > limit:
            raise Mismatch(f"prune removed {answer}; {expired} outcomes have expired, the limit is {limit}")

    def prune_all(self, queue: str, limit: int, *, patience: float = PATIENCE) -> None:
        """Prune until `more` is False. Raise Mismatch if that takes too long, or if something is left.

        Within `patience` seconds, a prune is repeated if an entry is left.
        """
        most = MORE_PRUNES + self.oracle.queue(queue).expired_entries(self.now) // limit
        until = time.monotonic() + patience
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
        work = self.storage.events(queue, limit=1, now=self.now)
        for _, event in self.call("events", {"queue": queue, "limit": 1}, work).events:
            if event.at < self.now - known.settings.log_age:
                return f"the log still has an event of {event.at}, {self.now - event.at} ms old"
        # This prune would also remove what the checks above find.
        if keys := self.prune(queue, limit).request_keys:
            raise Mismatch(f"prune answered without `more`, and left {keys} expired request_keys")
        return None


class PruneRules(MachineBase):
    @rule(queue=some.every_queue, limit=some.limits, whole=st.booleans())
    def prune(self, queue: str, limit: int, *, whole: bool) -> None:
        (self.lockstep.prune_all if whole else self.lockstep.prune)(queue, limit)


VERB = Verb(
    name="prune",
    section="3, Queues as a whole; 3, Retention",
    weight=2,
    # The search for an order leaves it out: it removes only what each read already hides.
    arguments=lambda action, _, __: {"limit": action.limit},
    races=read_races("prune beside enqueue (4.1): short outcome / prune late / enqueue late"),
    scenes=read_scenes("prune: short outcome / prune late"),
    encoding=CallEncoding(lambda queue, *_, **__: [{"op": "prune", "queue": queue}], answered("pruned")),
)
