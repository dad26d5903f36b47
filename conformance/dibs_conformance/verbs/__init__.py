"""The verbs of the storage protocol, one module each, which all engines of the kit read.

To add a verb, write its module and list it here. verbs/verb.py says what a module holds.
"""

from __future__ import annotations

from typing import Final

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
    enqueue.EnqueueCalls,
    serve.ServeCalls,
    finish.FinishCalls,
    grant.GrantCalls,
    renew.RenewCalls,
    drop.DropCalls,
    reap.ReapCalls,
    report.ReportCalls,
    cancel.CancelCalls,
    amend.AmendCalls,
    retry_failed.RetryFailedCalls,
    forget.ForgetCalls,
    configure.ConfigureCalls,
    prune.PruneCalls,
    list.ListCalls,
    counts.CountsCalls,
    events.EventsCalls,
    queues.QueuesCalls,
):
    """A storage and the oracle in lockstep, with all verbs."""


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
