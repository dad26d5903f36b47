"""The checks of the arguments of each storage verb. A storage calls them before it reads or writes.

With these checks, every storage raises the same errors for bad input (contract 4, promise 8). Storages of
other packages call them, too. Each function checks the verb of its name and raises Refused for the first bad
argument. The actions of settle are checked elsewhere, because one bad action must not fail its batch: the
storage checks each one with dibs.model.check_arguments.check_settle_action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, get_args

from msgspec import UNSET, UnsetType

from dibs.errors import Refused
from dibs.model import check_arguments, check_jobs, check_values
from dibs.model.check_jobs import CheckedBatch
from dibs.model.limits import CHUNK_OVERHEAD, LIMITS, SAFE_INTEGER, Limits
from dibs.model.requests import End, EnqueueRequest, JobPatch, QueueStep, SettingsPatch, Settlement
from dibs.model.results import ExportRecord, State
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.protocol import Watch

#: The reason for which a storage refuses output.
NO_OUTPUT: Final = "this storage keeps no output (it does not claim the capability `output`)"
#: The largest number of characters of a `claim_id`.
MOST_CLAIM_ID: Final = 64
#: The longest timeout of a blocking claim, in seconds.
MOST_TIMEOUT: Final = 3600
#: The most queues of a `serve` or a `claim_blocking_any`.
MOST_QUEUES: Final = 1000
STATES: Final = get_args(State)
WATCHES: Final = get_args(Watch)


def check_enqueue(queue: str, requests: Sequence[EnqueueRequest], within: Limits = LIMITS) -> CheckedBatch:
    """Return the requests as a CheckedBatch. Raise BatchRefused, with one Refused for each bad request.

    If `requests` is a CheckedBatch with the same limits, as the client passes it, return it unchanged.
    """
    check_jobs.check_enqueue_queue(queue, within)
    return check_jobs.check_batch(requests, within)


def check_queue(
    queue: str, limit: int | UnsetType = UNSET, *, ids: Sequence[str] = (), within: Limits = LIMITS
) -> None:
    """Raise Refused for a bad queue name, limit or id. Verbs such as reap and forget need no other check."""
    check_jobs.check_queue(queue, within)
    if ids != ():
        check_arguments.check_ids(ids)
    if limit is not UNSET:
        check_arguments.check_limit(limit)


def check_claim(queue: str, lease: object, limit: int, within: Limits = LIMITS) -> None:
    check_queue(queue, limit, within=within)
    check_values.check_is_text("lease", lease)


def check_settle(queue: str, settlements: Sequence[Settlement], within: Limits = LIMITS) -> None:
    """Check all but the actions: the storage checks each one, and answers `refused` for a bad one."""
    check_queue(queue, within=within)
    check_arguments.check_settlements(settlements)


def check_serve(steps: Sequence[QueueStep], lease: object, within: Limits = LIMITS) -> None:
    """Check all but the actions, as check_settle. Raise Refused also if a queue has two steps."""
    check_values.check_is_list("steps", steps)
    check_values.check_is_text("lease", lease)
    for step in steps:
        check_values.check_is_a("steps", step, QueueStep)
        check_settle(step.queue, step.settlements, within)
        check_values.check_whole_number("limit", step.limit, 0, SAFE_INTEGER)
    check_distinct_queues("steps", [step.queue for step in steps])


def check_distinct_queues(field: str, queues: Sequence[str]) -> None:
    """Raise Refused unless there are 1 to MOST_QUEUES queues, and each occurs once."""
    if not 1 <= len(queues) <= MOST_QUEUES:
        raise Refused(f"{field} has {len(queues)} queues; send 1 to {MOST_QUEUES}", field=field)
    if len(set(queues)) < len(queues):
        twice = next(queue for queue in queues if queues.count(queue) > 1)
        raise Refused(f"{field} has the queue {twice!r:.60} twice; send each queue once", field=field)


def check_claim_blocking_any(
    queues: Sequence[str],
    limit: int,
    claim_id: str,
    timeout: float,
    within: Limits = LIMITS,
    *,
    lease: object = "",
) -> None:
    check_arguments.check_queues(queues, within)
    check_distinct_queues("queues", queues)
    check_claim_blocking(queues[0], limit, claim_id, timeout, within, lease=lease)


def check_claim_blocking(
    queue: str, limit: int, claim_id: str, timeout: float, within: Limits = LIMITS, *, lease: object = ""
) -> None:
    check_claim(queue, lease, limit, within)
    check_values.check_is_text("claim_id", claim_id)
    check_timeout(timeout)
    if not (claim_id.isascii() and claim_id.isprintable() and 1 <= len(claim_id) <= MOST_CLAIM_ID):
        raise Refused(
            f"claim_id is {claim_id!r}; it must be 1 to {MOST_CLAIM_ID} printable ASCII characters",
            field="claim_id",
        )
    if not 0 < timeout <= MOST_TIMEOUT:
        raise Refused(
            f"timeout is {timeout!r}; it must be above 0 s and at most {MOST_TIMEOUT}", field="timeout"
        )


def check_timeout(timeout: object) -> None:
    """Raise Refused unless `timeout` is a number of seconds. A bool and NaN are refused."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or math.isnan(timeout):
        raise Refused(f"timeout is {timeout!r:.60}; it must be a number of seconds", field="timeout")


def check_export(queue: str, after: object, until: object, limit: int, within: Limits = LIMITS) -> None:
    check_queue(queue, limit, within=within)
    for field, cursor in (("after", after), ("until", until)):
        if cursor is not None:
            check_values.check_is_text(field, cursor)


def check_list(
    queue: str,
    state: str,
    limit: int,
    within: Limits = LIMITS,
    *,
    after: object = None,
    until: object = None,
) -> None:
    check_export(queue, after, until, limit, within)
    check_arguments.check_choice("state", state, STATES)


def check_split(queue: str, parts: int, state: str | None, within: Limits = LIMITS) -> None:
    check_queue(queue, within=within)
    check_arguments.check_parts(parts)
    if state is not None:
        check_arguments.check_choice("state", state, STATES)


def check_cancel(queue: str, ids: Sequence[str], running: object, within: Limits = LIMITS) -> None:
    check_queue(queue, ids=ids, within=within)
    check_values.check_flag("running", running)


def check_retry_failed(queue: str, ids: Sequence[str], delay: int, within: Limits = LIMITS) -> None:
    check_queue(queue, ids=ids, within=within)
    check_values.check_duration("delay", delay)


def check_finish(
    queue: str, end: End, within: Limits = LIMITS, *, id: object = "", revision: object = 0
) -> None:
    check_queue(queue, within=within)
    check_values.check_is_text("id", id)
    check_arguments.check_revision("revision", revision)
    check_values.check_is_a("end", end, *get_args(End))
    check_arguments.check_settle_action(end, within)


def check_grant(queues: Sequence[str], ttl: int, holder: str, within: Limits = LIMITS) -> None:
    check_renew(queues, ttl, within)
    check_arguments.check_holder(holder, within)


def check_renew(queues: Sequence[str], ttl: int, within: Limits = LIMITS, *, lease: object = "") -> None:
    check_arguments.check_queues(queues, within)
    check_values.check_is_text("lease", lease)
    check_arguments.check_ttl(ttl)


def check_drop(queues: Sequence[str], limit: int, within: Limits = LIMITS, *, lease: object = "") -> None:
    check_arguments.check_queues(queues, within)
    check_values.check_is_text("lease", lease)
    check_arguments.check_limit(limit)


def check_report(
    queue: str,
    progress: bytes | None,
    memo: bytes | None = None,
    within: Limits = LIMITS,
    *,
    id: object = "",
    fence: object = 0,
    output: Sequence[bytes] = (),
    keeps_output: bool = False,
) -> None:
    """Check the values of a report. `keeps_output` is whether the storage has the capability `output`."""
    check_queue(queue, within=within)
    check_values.check_is_text("id", id)
    check_arguments.check_revision("fence", fence)
    if output != ():
        check_output(output, within, keeps_output=keeps_output)
    if progress is None and memo is None and not output:
        raise Refused(
            "progress and memo are None, and output is empty; set at least one of them", field="progress"
        )
    if progress is not None:
        check_values.check_bytes("progress", progress, within.progress)
        check_values.check_json("progress", progress, within.depth)
    if memo is not None:
        check_values.check_bytes("memo", memo, within.memo)


def check_output(output: Sequence[bytes], within: Limits = LIMITS, *, keeps_output: bool) -> None:
    """Raise Refused unless `output` is a list of chunks that a storage keeps together."""
    check_values.check_is_list("output", output)
    if output and not keeps_output:
        raise Refused(f"output has chunks, and {NO_OUTPUT}; leave it out", field="output")
    if len(output) > within.chunks:
        raise Refused(
            f"output has {len(output):,} chunks; a report takes {within.chunks:,}; send several reports",
            field="output",
        )
    for chunk in output:
        check_values.check_bytes("output", chunk, within.chunk)
    size = sum(len(chunk) + CHUNK_OVERHEAD for chunk in output)
    if size > within.output:
        raise Refused(
            f"output counts {size:,} bytes with {CHUNK_OVERHEAD} for each chunk; an id keeps "
            f"{within.output:,}; send less in one report",
            field="output",
        )


def check_events(
    queue: str,
    limit: int,
    within: Limits = LIMITS,
    *,
    id: object = None,
    keeps_output: bool = False,
) -> None:
    """Check all but the offset. `keeps_output` is whether the storage has the capability `output`."""
    check_queue(queue, limit, within=within)
    if id is None:
        return
    check_values.check_is_text("id", id)
    if not keeps_output:
        raise Refused(f"id is {id!r:.60}, and {NO_OUTPUT}; leave it out to read the log", field="id")


def check_amend(queue: str, patch: JobPatch, within: Limits = LIMITS, *, id: object = "") -> None:
    """Check the patch alone. The merged attributes may still be too large.

    The storage checks them at the merge, with dibs.model.check_values.check_attributes.
    """
    check_queue(queue, within=within)
    check_values.check_is_text("id", id)
    check_arguments.check_patch(patch, within)


def check_configure(
    queue: str, patch: SettingsPatch, within: Limits = LIMITS, *, limits: bool = False, fair: bool = False
) -> None:
    """Check the patch. `limits` and `fair` are whether the storage has the capabilities of these names.

    The merged shares may still be too many. The storage checks them at the merge, with
    dibs.model.rules.changed_settings.
    """
    check_queue(queue, within=within)
    check_arguments.check_settings(patch, limits=limits, fair=fair)
    bounds = patch.max_waiting is not UNSET and patch.max_waiting is not None
    if bounds and queue in (FLOWS, EVALUATIONS):
        raise Refused(
            f"max_waiting is {patch.max_waiting}, but queue {queue!r} holds flows that run; a bound would "
            "stop them; bound the queues of their nodes",
            field="max_waiting",
        )


def check_import(queue: str, records: Sequence[ExportRecord], within: Limits = LIMITS) -> None:
    check_queue(queue, within=within)
    check_values.check_is_list("records", records)
    for record in records:
        check_values.check_is_a("records", record, ExportRecord)
        check_arguments.check_import_record(record.id, record.slot, within)


def check_counts(queues: Sequence[str], within: Limits = LIMITS) -> None:
    check_arguments.check_queues(queues, within)


def check_wait(
    queues: Sequence[str],
    for_: str,
    ids: Sequence[str],
    within: Limits = LIMITS,
    *,
    since: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    check_arguments.check_queues(queues, within)
    check_arguments.check_ids(ids)
    check_arguments.check_choice("for_", for_, WATCHES)
    if since is not None:
        check_values.check_is_a("since", since, Mapping)
        for queue, token in since.items():
            check_values.check_is_text("since", queue)
            check_values.check_is_text("since", token)
    if timeout is not None:
        check_timeout(timeout)


def check_now(now: int | None, *, manual: bool) -> None:
    """Raise Refused for a bad `now`, and for any `now` unless the storage has the clock "manual"."""
    if now is None:
        return
    if not manual:
        raise Refused(
            'now= is taken only by a storage opened with clock="manual"; leave now= out',
            field="now",
        )
    check_arguments.check_now(now)
