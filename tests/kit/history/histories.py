"""Correct histories to test the checker: random calls on the memory storage, with artificial overlap.

The calls are made one after the other, so an order that explains every answer exists. Then each call is moved
to begin earlier and end later, and some answers are removed. Any violation that the checker finds in such a
history is a false alarm.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from random import Random

from msgspec.structs import replace

from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs_conformance.concurrent.client import run_program
from dibs_conformance.history import RecordedStep
from dibs_conformance.history.free_run import SHARED_IDS, WEIGHTS, random_calls
from dibs_conformance.history.recorder import Recorder
from dibs_conformance.verbs.actions import LONG_TTL, START, ClientAction, ClientState, Program

QUEUE, FAILED = "q", "q!fail"
IDS = SHARED_IDS
#: Time between two calls. `with_overlaps` stretches a call by up to four of them on each side.
TIME_STEP = 100
#: The operations of recorded runs, and those that leave open what happened to a job.
ALL_WEIGHTS = {**WEIGHTS, "finish": 3, "amend": 2, "retry_failed": 1, "forget": 1}
#: The ms that pass before a call, and the share of calls that are followed by a claim of fail jobs.
PAUSES, FAILED_SHARE = (0, 0, 0, 0, 1, 5, 20, 40), 0.05


#: Fields of a step that are known before the answer.
REQUEST_FIELDS = (
    *("op", "client", "began", "queue", "id", "how", "key", "payload", "replaces", "resets", "creates"),
    "supersedes",
    *("memo", "running", "lease", "limit", "result", "patch", "after"),
)


async def run_random_calls(storage: Storage, random: Random, length: int) -> list[RecordedStep]:
    """Make random calls one after the other, and return their steps."""
    steps: list[RecordedStep] = []
    ticks = iter(range(TIME_STEP, 10**12, TIME_STEP))
    recorder = Recorder(steps.append, lambda: next(ticks))
    recorded, state, now = recorder.wrap(storage, "c"), ClientState(), START
    lease = (await recorded.grant([FAILED], LONG_TTL, "fail", now=now)).lease
    calls = random_calls(random, "c", Capabilities(), ALL_WEIGHTS)
    for action in islice((one for one in calls if not changes_log_level(one)), length):
        now += random.choice(PAUSES)
        await run_program(recorded, "c", Program((action,), QUEUE, state, now), time.monotonic)
        if random.random() < FAILED_SHARE:
            await recorded.claim(FAILED, lease, 10, now=now)
    await recorded.get(QUEUE, IDS, now=now)
    return steps


def changes_log_level(action: ClientAction) -> bool:
    return action.operation == "configure" and action.configure_to == "all events"


def with_overlaps(steps: list[RecordedStep], random: Random) -> list[RecordedStep]:
    """Stretch the calls so that they overlap, and remove some answers. The last read is unchanged."""
    calls = sorted({step.call for step in steps})
    last = calls[-1]
    early = {call: random.choice((0, 0, 50, 150, 400)) for call in calls}
    late = {call: random.choice((0, 0, 50, 150, 400)) for call in calls}
    # A client without the answer to its claim has no fence to settle with.
    settled = {(step.id, step.fence) for step in steps if step.op == "settle"}
    used = {step.call for step in steps if step.op == "claim" and (step.id, step.fence) in settled}
    lost = {call for call in calls if random.random() < 0.05 and call not in used | {last}}
    steps_out = []
    for step in steps:
        if step.ended is None or step.call == last:
            steps_out.append(step)
            continue
        began, ended = step.began - early[step.call], step.ended + late[step.call]
        moved = replace(step, began=began, ended=ended, client=f"c{step.call}")
        steps_out.append(without_answer(moved) if step.call in lost else moved)
    return steps_out


def without_answer(step: RecordedStep) -> RecordedStep:
    """Return the step as a client without the answer would record it."""
    fields = {name: getattr(step, name) for name in REQUEST_FIELDS}
    if step.op in ("settle", "report"):
        fields["fence"] = step.fence
    if step.op == "finish":
        fields["revision"] = step.revision
    if step.op == "import":
        fields |= {"first": step.first, "revision": step.revision}
    if step.op in ("claim", "reap"):
        fields |= {"id": "", "payload": ""}
    if step.op == "grant":
        fields["lease"] = ""
    return RecordedStep(**{**fields, "status": "unknown", "ended": None, "call": 0})


def make_history(seed: int, length: int = 40) -> list[RecordedStep]:
    """Return one correct history with overlapping calls."""
    random = Random(seed)
    steps = asyncio.run(run_in_memory(random, length))
    return with_overlaps(steps, random)


async def run_in_memory(random: Random, length: int) -> list[RecordedStep]:
    async with open_storage("memory:", "manual") as storage:
        return await run_random_calls(storage, random, length)
