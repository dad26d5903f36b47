"""The changes that end a wait (contract 3, Wake-ups), as steps of a script.

Each case prepares its own queue. A client then waits, and the same or another client makes the change. A case
of LIMIT_CASES sets limits and makes a claim that takes what they admit; one job waits for a later start.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from dibs.storage.protocol import Storage, Watch
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps

#: The delay of a job that falls due during a wait, in ms.
SOON: Final = 300
#: The ms after which an expiring lease ends, once it is renewed.
SHORT: Final = 1


@frozen
class WaitCase:
    """A change that ends a wait: its name, what is waited for, the preparation and the change."""

    name: str
    watch: Watch
    preparation: str
    #: Without steps, the wait ends by itself.
    change: str
    #: False for a wait for progress that names no id: it waits for any id of the queue.
    names_id: bool = True

    @property
    def ids(self) -> list[str]:
        return ["a"] if self.watch in ("ids", "progress") and self.names_id else []

    async def prepare(self, storage: Storage, calls: HistoryCalls) -> None:
        """Make the calls of the preparation. A lease that is granted for 200 ms has expired afterwards."""
        await play_steps(storage, calls, self.preparation)
        while "grant 200" in self.preparation:
            if not (await storage.renew([calls.queue], calls.lease, SHORT))[calls.queue].alive:
                return


CLAIM = "enqueue a; grant 60000; claim 1"
EXPIRED = "enqueue a; grant 200; claim 1"
BLOCKED, HANDED_OFF = f"{CLAIM}; enqueue a", f"{CLAIM}; hand_off a"
AT_LIMIT = f"set max_active=1; {CLAIM}; enqueue b"
LOGGED = "set log_level=all"
CASES: Final = (
    WaitCase("enqueue", "work", "", "enqueue a"),
    WaitCase("retry", "work", CLAIM, "retry a"),
    WaitCase("release", "work", CLAIM, "release a"),
    WaitCase("reap", "work", EXPIRED, "reap 1"),
    WaitCase("drop", "work", CLAIM, "drop 1"),
    WaitCase("resume", "work", "set paused=yes; enqueue a", "set paused=no"),
    WaitCase("configure max_active", "work", AT_LIMIT, "set max_active=2"),
    WaitCase("the end of a run at max_active", "work", AT_LIMIT, "complete a"),
    WaitCase("hand-off of a run at max_active", "work", AT_LIMIT, "hand_off a"),
    WaitCase("the end of a run with a successor", "work", BLOCKED, "complete a"),
    WaitCase("retry_failed", "work", f"{CLAIM}; fail a", "retry_failed a"),
    WaitCase("amend run_at", "work", "enqueue a@60000", "amend a delay=0"),
    WaitCase("a due time", "work", f"enqueue a@{SOON}", ""),
    WaitCase("enqueue", "events", LOGGED, "enqueue a"),
    WaitCase("complete", "events", CLAIM, "complete a"),
    WaitCase("retry", "events", CLAIM, "retry a"),
    WaitCase("release", "events", CLAIM, "release a"),
    WaitCase("reap", "events", EXPIRED, "reap 1"),
    WaitCase("drop", "events", CLAIM, "drop 1"),
    WaitCase("cancel", "events", "enqueue a", "cancel a"),
    WaitCase("pause", "events", LOGGED, "set paused=yes"),
    WaitCase("amend", "events", f"{LOGGED}; {CLAIM}", "amend a attributes=b:1"),
    WaitCase("complete", "ids", CLAIM, "complete a"),
    WaitCase("fail", "ids", CLAIM, "fail a"),
    WaitCase("end as cancelled", "ids", CLAIM, "cancelled a"),
    WaitCase("cancel of a waiting job", "ids", "enqueue a", "cancel a"),
    WaitCase("cancel of a successor", "ids", BLOCKED, "cancel a"),
    WaitCase("cancel of a handed-off run", "ids", HANDED_OFF, "cancel a running=yes"),
    WaitCase("finish", "ids", HANDED_OFF, "finish complete a"),
    WaitCase("drop after a requested cancellation", "ids", f"{CLAIM}; cancel a running=yes", "drop 1"),
    WaitCase("report", "progress", CLAIM, "report a 0.5"),
    WaitCase("report of any id", "progress", CLAIM, "report a 0.5", names_id=False),
    WaitCase("report after another", "progress", f"{CLAIM}; report a 0.5", "report a 0.5"),
    WaitCase("report by a handed-off run", "progress", HANDED_OFF, "report a 0.5"),
    WaitCase("the end of a run", "progress", CLAIM, "complete a"),
    WaitCase("cancel of a waiting job", "progress", "enqueue a", "cancel a"),
)
START_ONE = "enqueue a:k b:k; grant 60000; claim"
FULL = f"set per_key=1; {START_ONE}"
LIMIT_CASES: Final = (
    WaitCase("the end of a run of a full key", "work", FULL, "complete a"),
    WaitCase("the failure of a run of a full key", "work", FULL, "fail a"),
    WaitCase("the end of a cancelled run of a full key", "work", FULL, "cancelled a"),
    WaitCase("hand-off of a run of a full key", "work", FULL, "hand_off a"),
    WaitCase("a later retry of a run of a full key", "work", FULL, "retry a delay=60000"),
    WaitCase("a later release of a run of a full key", "work", FULL, "release a delay=60000"),
    WaitCase("reap of a run of a full key", "work", FULL.replace("60000", "200"), "reap 1"),
    WaitCase("drop of a run of a full key", "work", FULL, "drop 1"),
    WaitCase("forget of a run of a full key", "work", FULL, "forget a"),
    WaitCase(
        "the end of a run before a scheduled job", "work", FULL.replace("b:k", "b:k@60000"), "complete a"
    ),
    WaitCase("an update with another key", "work", FULL, "enqueue b:m"),
    WaitCase("a higher per_key", "work", FULL, "set per_key=2"),
    WaitCase("the end of per_key", "work", FULL, "set per_key=none"),
    WaitCase("a change of rate", "work", f"set rate=1/60000; {START_ONE}", "set rate=2/60000"),
    WaitCase("the end of rate", "work", f"set rate=1/60000; {START_ONE}", "set rate=none"),
    WaitCase("the end of key_rate", "work", f"set key_rate=1/60000; {START_ONE}", "set key_rate=none"),
    WaitCase("a start that the rate allows", "work", f"set rate=1/{SOON}; {START_ONE}", ""),
    WaitCase("a start that the key_rate allows", "work", f"set key_rate=1/{SOON}; {START_ONE}", ""),
)
