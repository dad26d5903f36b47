"""The transitions of contract 3 as a table. The contract page prints the table; a test executes each row."""

from __future__ import annotations

from typing import Final, NamedTuple


class Row(NamedTuple):
    """One transition: the operation `verb` takes an id from `source` to `target`, and returns `answer`.

    The states are nothing, waiting, active and active+blocked. Where an outcome matters, its kind follows
    after a comma. `effect` names the other changes.
    """

    verb: str
    source: str
    target: str
    answer: str
    effect: str


#: The state of an active job whose successor has only update-only requests.
BLOCKED_UPDATES: Final = "active+blocked (creates nothing)"
JOINED: Final = "the outcome's range takes in the successor's"
ASKED: Final = "sets cancel_requested of the current"
REPLACED: Final = "the run ends as cancelled; the successor is promoted"
PARKED: Final = "waiting (parked)"
HANDED_OFF: Final = "active (handed off)"
HANDED_OFF_BLOCKED: Final = "active+blocked (handed off)"

TABLE: Final = (
    Row("enqueue Update", "nothing", "waiting", "queued", "counts 0; an older outcome stays readable"),
    Row("enqueue Update", "waiting", "waiting", "updated", "in place; seq kept"),
    Row("enqueue Update", "active", "active+blocked", "blocked", "becomes the successor"),
    Row("enqueue Update", "active+blocked", "active+blocked", "blocked", "folded into the successor"),
    Row("enqueue Update(create=False)", "nothing", "nothing", "absent", "unchanged; no revision is drawn"),
    Row("enqueue Update(create=False)", "waiting", "waiting", "updated", "run_at and counts; seq kept"),
    Row("enqueue Update(create=False)", "active", "active+blocked", "blocked", "joins the list of updates"),
    Row(
        "enqueue Update(create=False)",
        "active+blocked",
        "active+blocked",
        "blocked",
        "joins the list of updates",
    ),
    Row("enqueue Update(wake)", "nothing", "nothing", "absent", "unchanged; no revision is drawn"),
    Row(
        "enqueue Update(wake)", "waiting", "waiting", "updated", "attributes and counts; run_at and seq kept"
    ),
    Row("enqueue Update(wake)", PARKED, "waiting", "updated", "due now; the seq is the revision"),
    Row(
        "enqueue Update(wake)",
        "active",
        "active+blocked",
        "blocked",
        "attributes now; joins the list of updates",
    ),
    Row(
        "enqueue Update(wake)",
        "active+blocked",
        "active+blocked",
        "blocked",
        "attributes now; joins the list of updates",
    ),
    Row("enqueue Update(supersede)", "nothing", "waiting", "queued", "as without supersede"),
    Row("enqueue Update(supersede)", "waiting", "waiting", "updated", "as without supersede"),
    Row("enqueue Update(supersede)", "active", "active+blocked", "blocked", ASKED),
    Row("enqueue Update(supersede)", "active+blocked", "active+blocked", "blocked", ASKED),
    Row("enqueue Update(supersede)", HANDED_OFF, "waiting, cancelled", "blocked", REPLACED),
    Row("enqueue Update(supersede)", HANDED_OFF_BLOCKED, "waiting, cancelled", "blocked", REPLACED),
    Row("enqueue Reject", "nothing", "waiting", "queued", "also with an outcome failed or cancelled"),
    Row("enqueue Reject", "nothing, completed", "nothing, completed", "completed", "unchanged"),
    Row("enqueue Reject(failed)", "nothing, failed", "nothing, failed", "failed", "unchanged"),
    Row("enqueue Reject", "waiting", "waiting", "duplicate", "unchanged"),
    Row("enqueue Reject", "active", "active", "duplicate", "unchanged"),
    Row("enqueue Reject", "active+blocked", "active+blocked", "duplicate", "unchanged"),
    Row("claim", "waiting", "active", "the job", "a new fence; attempts + 1"),
    Row("settle Complete", "active", "nothing, completed", "done", "then: follow-ups in the same step"),
    Row("settle Complete", "active+blocked", "waiting, completed", "done", "the successor is promoted"),
    Row("settle Complete", BLOCKED_UPDATES, "nothing, completed", "done", JOINED),
    Row("settle Fail", "active", "nothing, failed", "done", "fail_handler: the fail job in the same step"),
    Row("settle Fail", "active+blocked", "waiting, failed", "done", "the successor is promoted"),
    Row("settle Fail", BLOCKED_UPDATES, "nothing, failed", "done", JOINED),
    Row("settle Cancelled", "active", "nothing, cancelled", "done", ""),
    Row("settle Cancelled", "active+blocked", "waiting, cancelled", "done", "the successor is promoted"),
    Row("settle Cancelled", BLOCKED_UPDATES, "nothing, cancelled", "done", JOINED),
    Row("settle RetryLater", "active", "waiting", "returned", "one count up; a fresh seq"),
    Row("settle RetryLater", "active+blocked", "waiting", "returned", "the successor is folded in"),
    Row("settle Release", "active", "waiting", "returned", "attempts - 1; seq kept"),
    Row("settle Release", "active+blocked", "waiting", "returned", "the successor is folded in"),
    Row("settle Release(delay)", "active", "waiting", "returned", "attempts - 1; a fresh seq"),
    Row("settle Release(delay)", "active+blocked", "waiting", "returned", "the successor is folded in"),
    Row("settle Release(parked)", "active", PARKED, "returned", "attempts - 1; seq 0"),
    Row(
        "settle Release(parked)",
        "active+blocked",
        "waiting",
        "returned",
        "due now; the successor is folded in",
    ),
    Row("settle HandOff", "active", "active", "handed_off", "leaves its lease; can only end"),
    Row("settle HandOff", "active+blocked", "active+blocked", "handed_off", "leaves its lease; can only end"),
    Row("reap", "active", "waiting", "stalled", "stalls + 1; a fresh seq; due now"),
    Row("reap", "active+blocked", "waiting", "stalled", "the successor is folded in"),
    Row("cancel", "nothing", "nothing", "not_found", "with an outcome: its kind"),
    Row("cancel", "waiting", "nothing, cancelled", "cancelled", ""),
    Row("cancel", "active", "active", "active", "unchanged"),
    Row("cancel", "active+blocked", "active", "cancelled", "the successor is dropped"),
    Row("cancel running", "active", "active", "requested", "sets cancel_requested"),
    Row("cancel running", "active+blocked", "active", "requested", "the successor is dropped"),
    Row("retry_failed", "nothing, failed", "waiting", "queued", "counts 0; a fresh revision"),
    Row("retry_failed", "waiting", "waiting", "live", "unchanged"),
    Row("retry_failed", "active", "active", "live", "unchanged"),
    Row("retry_failed", "active+blocked", "active+blocked", "live", "unchanged"),
    Row("forget", "waiting", "nothing", "forgotten", "removes everything of the id"),
    Row("forget", "active", "nothing", "forgotten", "its holder finds the fence lost"),
    Row("forget", "active+blocked", "nothing", "forgotten", "its holder finds the fence lost"),
)


def markdown() -> str:
    """Return the table in Markdown, as the contract page prints it."""
    lines = ["| verb | the id is | then it is | answer | also |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in TABLE]
    return "\n".join(lines) + "\n"
