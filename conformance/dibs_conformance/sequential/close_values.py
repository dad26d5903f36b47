"""Fixed histories with close values: texts that differ late or little, far times, high counts, wide batches.

A storage that cuts, folds or rounds a value, or a number of items, gives another result than the oracle.
Random examples use few plain values, so that clients meet; these histories use each value of the tables once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from dibs.model.job import Error, Job, JobData, NewJob, OutcomeRetention, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs.model.results import ExportRecord
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.sequential.scripts import QUEUE, Player, RunRef, claim, enqueue, settle
from dibs_conformance.strategies import DAY, HOUR
from dibs_conformance.verbs import Lockstep, import_

KIB, MIB = 1024, 1024 * 1024
LONGEST, LATEST = 100_000 * DAY, 253_370_764_799_999
#: Lengths in bytes at which storages cut texts, hash them, or keep them elsewhere.
CUTS: Final = (63, 64, 127, 255, 256, 511)
#: Texts that differ by case, by Unicode form, by blanks, by a leading zero, and by signs that match others.
PAIRS: Final = (
    *("case", "Case", "CASE", "é", "e\u0301", "\ufb01", "fi", "ß", "ss", "İ", "i", "\u0131"),
    *("t", "t ", " t", "t\t", "t\n", "t\u00a0", "t\u200b", "t\x01", "1", "01", "1.0", "1e0", "+1"),
    *("t%", "t_", "t*", "t?", "[t]", "t\\", "t/", "t:", "t!", "null", "None", "true"),
)
#: Times beyond 2**31 and 2**32 s and ms, and the latest time; in ms since the epoch.
FAR_TIMES: Final = (
    *(2**31 * 1000 - 1, 2**31 * 1000, 2**31 * 1000 + 1, 2**32 * 1000, 2**32 * 1000 + 1),
    *(LATEST - 1, LATEST),
)
#: Durations around 2**31 and 2**32 ms, and the longest one.
FAR_DELAYS: Final = (2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, LONGEST - 1, LONGEST)
#: Counts below the largest number of one and two bytes and below round limits. The last one leaves room in
#: four bytes for the runs of a history.
HIGH_COUNTS: Final = (126, 254, 998, 9_998, 11_998, 32_766, 65_534, 2**31 - 100)
#: Sizes of payloads, results, memos and progress in bytes.
SIZES: Final = (0, 1, 255, 256, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1)
#: The most bytes of the text of an error, and sizes around it.
ERROR_SIZES: Final = (16 * KIB - 1, 16 * KIB, 16 * KIB + 1)
#: Numbers of items of wide batches.
BATCH, WIDE = 101, 1_001
KEPT: Final = OutcomeRetention(completed=LONGEST, failed=LONGEST, cancelled=LONGEST)


def close_texts(most: int) -> list[str]:
    """Return texts of at most `most` bytes. Each one differs from another by its end, a sign or its case."""
    long = [text for cut in CUTS if cut < most for text in ("x" * cut, "x" * cut + "a", "x" * cut + "b")]
    return list(dict.fromkeys((*long, "y" * (most - 1) + "a", "y" * (most - 1) + "b", *PAIRS)))


def keep_close_ids(lockstep: Lockstep) -> None:
    """Enqueue, run, end, update, cancel and forget close ids. Each has its own job and outcome."""
    ids, lease = close_texts(512), lockstep.grant([QUEUE], HOUR, "kit")
    enqueue_each(lockstep, ids)
    for number, run in enumerate(claim(lockstep, lease, len(ids))):
        settle(lockstep, run, ending(number))
    enqueue_each(lockstep, ids[::2])
    lockstep.list(QUEUE, "waiting", len(ids))
    lockstep.cancel(QUEUE, ids[::4], running=False)
    lockstep.retry_failed(QUEUE, ids[1::2])
    lockstep.forget(QUEUE, ids[::3])
    lockstep.counts([QUEUE])
    lockstep.read_export(QUEUE, len(ids))
    lockstep.compare_slots(QUEUE)


def enqueue_each(lockstep: Lockstep, ids: Sequence[str]) -> None:
    """Enqueue ids in one call, each with a payload of its own."""
    jobs = [NewJob(id=id, data=JobData(payload=str(at).encode())) for at, id in enumerate(ids)]
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])


def ending(number: int) -> SettleAction:
    """Return one of the ways to settle, with data that differ by the number."""
    text = str(number)
    ways: tuple[SettleAction, ...] = (
        Complete(result=text.encode()),
        Fail(error=Error(type="E", message=text)),
        Cancelled(error=Error(type="C", message=text)),
        RetryLater(error=Error(type="R", message=text)),
    )
    return ways[number % len(ways)]


def keep_close_request_keys(lockstep: Lockstep) -> None:
    """Enqueue with close request keys, and repeat each under another id. Each repeat has its own answer."""
    keys = close_texts(128)
    for prefix in ("first", "second"):
        requests = [
            EnqueueRequest(job=NewJob(id=f"{prefix} {at}"), request_key=k) for at, k in enumerate(keys)
        ]
        lockstep.enqueue(QUEUE, requests)


def keep_close_queues(lockstep: Lockstep) -> None:
    """Use queues with close names. Each has its own job, settings, lease, log and count."""
    queues = [name for name in close_texts(500) if not name.endswith("!")]
    for number, queue in enumerate(queues):
        lockstep.configure(queue, SettingsPatch(max_active=number + 1))
        job = NewJob(id="a", data=JobData(payload=str(number).encode()))
        lockstep.enqueue(queue, [EnqueueRequest(job=job)])
    lease = lockstep.grant(queues[1::2], HOUR, "kit")
    lockstep.renew(queues, lease, HOUR)
    for queue in queues:
        lockstep.claim(queue, lease, 1)
    lockstep.counts(queues)
    lockstep.drop(queues[1::4], lease, 1)
    lockstep.compare_slots(*queues)


def keep_close_names(lockstep: Lockstep) -> None:
    """Keep close names and values of attributes, and close keys, of one job, its run and its outcome."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    attributes = {name: f'"{at}"'.encode() for at, name in enumerate(close_texts(300))}
    for key in close_texts(128):
        data = JobData(payload=b"1", attributes=attributes, key=key)
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a", data=data))])
    [run] = claim(lockstep, lease)
    lockstep.amend(QUEUE, "a", JobPatch(attributes={"case": b"1", "t ": b"2", "e\u0301": b"3"}))
    settle(lockstep, run, Complete())


def keep_far_times(lockstep: Lockstep) -> None:
    """Use far times and long durations wherever a verb takes one: jobs, leases, outcomes and `next_due`."""
    player = Player(lockstep)
    player.play("set log_level=all", f"grant {LONGEST}")
    for number, when in enumerate((*FAR_TIMES, *FAR_TIMES)):
        rule = "later" if number % 2 else "earlier"
        player.play(f"enqueue {number % 9} run_at={when} on_conflict=run_at:{rule}")
    for delay in FAR_DELAYS:
        player.play("enqueue now", "claim 1", f"retry now delay={delay}")
        player.play(f"amend now delay={delay} lease={delay}", "amend now run_at=now", "claim 1")
        player.play(f"release now delay={delay}", f"enqueue now delay={delay}", "short = grant 1")
        player.play(f"renew {delay} lease=short", f"amend now retention=completed:{delay}+failed:{delay}")
        player.play("cancel now")
    player.play("counts")


def wait_for_far_times(lockstep: Lockstep) -> None:
    """Move the time 2**31 ms on, and beyond 2038. Claim 1 ms before each job is due, and when it is due."""
    player = Player(lockstep)
    lockstep.configure(QUEUE, SettingsPatch(retention=KEPT, request_key_age=2**31 + 1))
    player.play(f"grant {LONGEST}", f"enqueue a delay={2**31} request_key=k")
    player.play(f"enqueue b run_at={FAR_TIMES[1]}", f"enqueue c run_at={FAR_TIMES[3]}")
    for target in (lockstep.now + 2**31, FAR_TIMES[1], FAR_TIMES[3]):
        player.play(f"wait {target - 1 - lockstep.now}", "claim", f"enqueue d delay={LONGEST} request_key=k")
        player.play("wait 1", "claim", "complete last result=1")
    player.play("renew 1", "reap")


def count_further(lockstep: Lockstep) -> None:
    """Import jobs with high counts, and let them run, fail, stall and be updated: each count goes on."""
    for at, count in enumerate(HIGH_COUNTS):
        import_job(lockstep, str(at), count)
    player = Player(lockstep)
    player.play("queues")
    causes = [f"retry last cause={cause}" for cause in ("error", "timeout", "stall")]
    player.play("grant")
    for step in (*causes, *causes, "release last"):
        player.play("claim", step)
    again = " ".join(map(str, range(len(HIGH_COUNTS))))
    player.play(*[f"enqueue {again} on_conflict=reset_counts:no+data:no"] * 2)
    for number, run in enumerate(claim(lockstep, player.calls.lease, len(HIGH_COUNTS))):
        settle(lockstep, run, ending(number))


def import_job(lockstep: Lockstep, id: str, count: int) -> None:
    """Import a waiting job whose counts, and the number of its enqueues, are `count`."""
    actual = Job(
        id=id, data=JobData(payload=b"1"), run_at=lockstep.now, enqueued_at=lockstep.now, seq=count,
        first=count, revision=count, enqueues=count, attempts=count, retries=count, stalls=count,
        timeouts=count,
    )  # fmt: skip
    work = lockstep.storage.import_(QUEUE, [ExportRecord(id=id, slot=Slot(actual))], now=lockstep.now)
    lockstep.call("import_", {"queue": QUEUE, "id": id, "counts": count}, work)
    numbers, call = lockstep.oracle.numbers, lockstep.oracle.numbers.call
    seq, revision = numbers.draw(), numbers.draw()
    lockstep.numbering.add_imported("seq", (QUEUE, id), seq, count, call)
    lockstep.numbering.add_imported("revision", (QUEUE, id), revision, count, call)
    known = replace(actual, seq=seq, first=revision, revision=revision)
    import_.step(lockstep.oracle, QUEUE, id, IdRecord(known), lockstep.now)
    lockstep.compare_slots(QUEUE)


def keep_each_size(lockstep: Lockstep) -> None:
    """Store payloads, results, memos, progress and errors of each size."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    lockstep.configure(QUEUE, SettingsPatch(retention=OutcomeRetention(keep_payload=("completed", "failed"))))
    for size in SIZES:
        data = b"\xff" * size
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a", data=JobData(payload=data)))])
        [run] = claim(lockstep, lease)
        lockstep.report(QUEUE, *run, b'"' + b"p" * max(0, size - 2) + b'"', data)
        settle(lockstep, run, Complete(result=data))
    for size in ERROR_SIZES:
        for message, traceback in (("m" * (size - 1), ""), ("é" * 2_000, "t" * (size - 4_001))):
            error = Error(type="E", message=message, traceback=traceback)
            enqueue(lockstep, "a")
            for action in (RetryLater(error=error), Fail(error=error)):
                [run] = claim(lockstep, lease)
                settle(lockstep, run, action)


#: Valid settings exactly at a limit of the contract, and those that need the capability `limits` or `fair`.
SETTINGS_AT_LIMITS: Final = (SettingsPatch(log_age=LONGEST, request_key_age=LONGEST, retention=KEPT),)
LIMITS_AT_LIMITS: Final = (
    SettingsPatch(per_key=1_000_000, rate=StartRate(1, 31 * DAY, 11)),
    SettingsPatch(key_rate=StartRate(1_000_000, 1_000, 1_000_000), rate=StartRate(1_000, 1)),
    SettingsPatch(per_key=None, rate=None, key_rate=None),
    SettingsPatch(max_waiting=1_000_000_000, when_full="drop_new"),
)
TURNS_AT_LIMITS: Final = (
    SettingsPatch(fair=True, shares={"k" * 128: 1_000, "é" * 64: 0}),
    SettingsPatch(shares={f"k{n}": n for n in range(998)}),
    SettingsPatch(shares={"k0": None, "k2": None, "k1": 1, "K1": 2, "k 1": 3, "\\": None}),
    SettingsPatch(shares={"k0": 1, "K1": None, "k 1": None}),
    SettingsPatch(fair=False, shares={f"k{n}": None for n in range(998)}),
)
#: Data of jobs exactly at a limit.
DATA_AT_LIMITS: Final = (
    JobData(payload=b"x" * MIB, priority=1000, key="é" * 64),
    JobData(priority=-1000, attributes={"a": b"[" * 64 + b"]" * 64, "b": b"-9007199254740992"}),
)


def keep_values_at_limits(lockstep: Lockstep) -> None:
    """Store settings, jobs, a queue and a batch that are exactly at a limit."""
    limits = LIMITS_AT_LIMITS if lockstep.storage.capabilities.limits else ()
    turns = TURNS_AT_LIMITS if lockstep.storage.capabilities.fair else ()
    for patch in (*SETTINGS_AT_LIMITS, *limits, *turns):
        lockstep.configure(QUEUE, patch)
    for data in DATA_AT_LIMITS:
        job = NewJob(id="é" * 256, data=data)
        lockstep.enqueue("é" * 250, [EnqueueRequest(job=job, request_key="é" * 64)])
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=job)])
    lockstep.compare_slots(QUEUE, "é" * 250)
    enqueue_each(lockstep, [str(number) for number in range(1_000)])
    lockstep.compare_slots(QUEUE)


def use_wide_batches(lockstep: Lockstep) -> None:
    """Pass 101 and 1,001 items to each verb that takes a batch."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    for size in (BATCH, WIDE):
        ids = [f"{size}/{number}" for number in range(size)]
        for start in range(0, size, 1_000):
            enqueue_each(lockstep, ids[start : start + 1_000])
        runs = claim(lockstep, lease, size)
        lockstep.settle(QUEUE, [settlement(run, at) for at, run in enumerate(runs)])
        lockstep.retry_failed(QUEUE, ids)
        lockstep.cancel(QUEUE, ids, running=True)
        lockstep.compare_slots(QUEUE)
        lockstep.list(QUEUE, "cancelled", 100)
        lockstep.counts([QUEUE])
        lockstep.forget(QUEUE, ids)
        lockstep.compare_slots(QUEUE)


def settlement(run: RunRef, number: int) -> Settlement:
    """Return a settlement of a run: a hand-off for each seventh one."""
    action = HandOff() if number % 7 == 6 else ending(number)
    return Settlement(id=run[0], fence=run[1], action=action)


def return_a_wide_batch(lockstep: Lockstep) -> None:
    """Reap and drop 101 jobs in one call, and use 101 queues at once."""
    queues = [f"wide {number}" for number in range(BATCH)]
    lease = lockstep.grant([*queues, QUEUE], 10, "kit")
    lockstep.renew([*queues, QUEUE], lease, 20)
    lockstep.counts(queues)
    ids = [str(number) for number in range(BATCH)]
    enqueue_each(lockstep, ids)
    claim(lockstep, lease, BATCH)
    lockstep.drop([QUEUE], lease, BATCH)
    lease = lockstep.grant([QUEUE], 10, "kit")
    claim(lockstep, lease, BATCH)
    lockstep.pass_time(10)
    lockstep.reap(QUEUE, BATCH)
    lockstep.compare_slots(QUEUE)


CLOSE_VALUES: tuple[Callable[[Lockstep], None], ...] = (
    keep_close_ids,
    keep_close_request_keys,
    keep_close_queues,
    keep_close_names,
    keep_far_times,
    wait_for_far_times,
    count_further,
    keep_each_size,
    keep_values_at_limits,
    use_wide_batches,
    return_a_wide_batch,
)
#: The histories that compare the state only where they say so.
UNCOMPARED: Final = (keep_values_at_limits, use_wide_batches, return_a_wide_batch)
