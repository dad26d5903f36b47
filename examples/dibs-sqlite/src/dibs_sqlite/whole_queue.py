"""The methods that change a queue as a whole: configure and prune."""

from __future__ import annotations

from msgspec.structs import replace

from dibs.model import events, rules
from dibs.model.job import EMPTY
from dibs.model.requests import Settings, SettingsPatch
from dibs.model.results import PruneResult
from dibs.storage.indexed.output import without_outcome
from dibs_sqlite import limits
from dibs_sqlite.transaction import Transaction


def configure(tx: Transaction, name: str, patch: SettingsPatch) -> Settings:
    """Change the settings that a patch contains, and return the new settings."""
    queue = tx.queue(name)
    before = queue.settings
    after = rules.changed_settings(before, patch)
    if after == before:
        return before
    # A change of the log level is logged if the old or the new level includes it.
    if after.log_level == "all":
        queue.configure(after)
    if before.paused != after.paused:
        queue.log_event(events.note_event("paused" if after.paused else "resumed", "", tx.now))
    if replace(before, paused=after.paused) != after:
        queue.log_event(events.note_event("configured", "", tx.now))
    queue.configure(after)
    limits.change_limits(tx, queue, before, after)
    return after


def prune(tx: Transaction, name: str, limit: int) -> PruneResult:
    """Remove up to `limit` expired outcomes, up to `limit` expired request keys, and old events.

    Events are old beyond the settings log_age and log_bytes.
    """
    queue = tx.queue(name)
    ids = [id for (id,) in queue.execute("expired_ids", now=tx.now, limit=limit).fetchall()]
    for id in ids:
        slot = queue.get(id)
        queue.put(id, slot, EMPTY if slot.current is None else replace(slot, outcome=None))
        queue.change_output(id, without_outcome)
    keys = queue.execute("prune_request_keys", now=tx.now, limit=limit).rowcount
    queue.execute("prune_clocks", now=tx.now)
    return PruneResult(
        outcomes=len(ids),
        request_keys=keys,
        events=queue.trim_log(oldest_at=tx.now - queue.settings.log_age),
        more=limit in (len(ids), keys),
    )
