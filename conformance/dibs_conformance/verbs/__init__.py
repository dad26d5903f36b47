"""The verbs of the storage protocol, one module each, which all engines of the kit read.

To add a verb, write its module and list it here. verbs/verb.py says what a module holds.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any, Final

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Settlement
from dibs.storage.protocol import Storage
from dibs_conformance.lockstep import DEFAULTS
from dibs_conformance.verbs import (
    amend,
    cancel,
    claim,
    compact,
    configure,
    counts,
    drop,
    enqueue,
    events,
    export,
    finish,
    forget,
    get,
    grant,
    import_,
    list,
    prune,
    queues,
    reap,
    renew,
    report,
    retry_failed,
    serve,
    settle,
    settle_and_claim,
)
from dibs_conformance.verbs.actions import ClientCall, ClientState
from dibs_conformance.verbs.verb import Verb as Verb
from dibs_conformance.verbs.verb import compare_call

#: All verbs by name, in the order in which the races and the scenes are tried.
VERBS: Final[dict[str, Verb]] = {
    verb.name: verb
    for verb in (
        claim.VERB,
        enqueue.VERB,
        claim.BLOCKING,
        settle.VERB,
        settle_and_claim.VERB,
        serve.VERB,
        finish.VERB,
        grant.VERB,
        renew.VERB,
        drop.VERB,
        reap.VERB,
        report.VERB,
        cancel.VERB,
        amend.VERB,
        retry_failed.VERB,
        forget.VERB,
        configure.VERB,
        prune.VERB,
        import_.VERB,
        get.VERB,
        list.VERB,
        export.VERB,
        export.SPLIT,
        counts.VERB,
        events.VERB,
        compact.VERB,
    )
}


class Lockstep(
    serve.ServeCalls,
    grant.GrantCalls,
    renew.RenewCalls,
    drop.DropCalls,
    reap.ReapCalls,
    configure.ConfigureCalls,
    prune.PruneCalls,
    list.ListCalls,
    counts.CountsCalls,
    events.EventsCalls,
    queues.QueuesCalls,
):
    """A storage and the oracle in lockstep, with all verbs."""

    def __getattr__(self, name: str) -> Any:
        """Return the lockstep call of a verb that has none of its own."""
        if name not in VERBS:
            raise AttributeError(name)
        return partial(self.call_verb, VERBS[name])

    def call_verb(self, verb: Verb, queue: str, *given: Any, **named: Any) -> Any:
        """Call a verb of one queue, compare its answer with that of the oracle, and return it."""
        bound = signature(getattr(Storage, verb.name)).bind(self, queue, *given, **named)
        bound.apply_defaults()
        args = {name: one for name, one in bound.arguments.items() if name not in ("self", "queue", "now")}
        options = {name: one for name, one in args.items() if name in DEFAULTS[verb.name]}
        required = [one for name, one in args.items() if name not in options]
        call = getattr(self.storage, verb.name)
        work = call(queue, *required, **self.options(verb.name, **options), now=self.now)
        answer = self.call(verb.name, {"queue": queue, **args}, work)
        compare_call(self, verb, queue, args, answer)
        ends = [Settlement(id="", fence=0, action=args["end"])] if "end" in args else []
        if ends:
            self.match_fail_jobs(queue + FAIL_SUFFIX)
        self.after_write(*(settle.changed_queues(queue, ends) if ends else [queue]))
        return answer


class VerbRules(
    enqueue.EnqueueRules,
    claim.ClaimRules,
    settle.SettleRules,
    settle_and_claim.SettleAndClaimRules,
    serve.ServeRules,
    finish.FinishRules,
    grant.GrantRules,
    renew.RenewRules,
    drop.DropRules,
    reap.ReapRules,
    report.ReportRules,
    cancel.CancelRules,
    amend.AmendRules,
    retry_failed.RetryFailedRules,
    forget.ForgetRules,
    configure.ConfigureRules,
    prune.PruneRules,
    list.ListRules,
    events.EventsRules,
):
    """The random rules of all verbs."""


def remember(state: ClientState, call: ClientCall) -> None:
    """Add the runs, revisions, leases and offsets that the answer of a call contains."""
    if call.completion == "answered":
        VERBS[call.operation].remember(state, call)
