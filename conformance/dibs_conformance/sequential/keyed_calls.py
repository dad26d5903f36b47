"""Short forms of the calls of fixed histories about keys and limits. All calls are in one queue."""

from __future__ import annotations

from typing import Any

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, FollowUp, SettingsPatch, SettleAction, Settlement
from dibs_conformance.strategies import HOUR
from dibs_conformance.verbs import Lockstep

QUEUE = "q"
#: The fence of each claimed id.
Fences = dict[str, int]


class KeyedCalls:
    """The calls of one history, under one lease. A job is written as "id" or "id:key"."""

    def __init__(self, lockstep: Lockstep, **limits: Any) -> None:
        self.lockstep = lockstep
        self.lease = lockstep.grant([QUEUE], HOUR, "kit")
        if limits:
            self.limit(**limits)

    def limit(self, **limits: Any) -> None:
        self.lockstep.configure(QUEUE, SettingsPatch(**limits))

    def enqueue(self, *jobs: str, priority: int = 0, delay: int | None = None) -> None:
        requests = [EnqueueRequest(job=new_job(job, priority, delay)) for job in jobs]
        self.lockstep.enqueue(QUEUE, requests)

    def claim(self, limit: int = 10, lease: str = "") -> Fences:
        jobs = self.lockstep.claim(QUEUE, lease or self.lease, limit).jobs
        return {job.id: job.run.fence for job in jobs if job.run is not None}

    def settle(self, runs: Fences, action: SettleAction) -> None:
        """Settle all these runs in one call."""
        self.lockstep.settle(QUEUE, settlements(runs, action))

    def settle_and_claim(self, runs: Fences, action: SettleAction, limit: int = 10) -> Fences:
        answer = self.lockstep.settle_and_claim(QUEUE, settlements(runs, action), self.lease, limit)
        return {job.id: job.run.fence for job in answer.jobs if job.run is not None}

    def pass_time(self, ms: int) -> None:
        self.lockstep.pass_time(ms)


def settlements(runs: Fences, action: SettleAction) -> list[Settlement]:
    return [Settlement(id=id, fence=fence, action=action) for id, fence in runs.items()]


def new_job(text: str, priority: int = 0, delay: int | None = None) -> NewJob:
    id, _, key = text.partition(":")
    return NewJob(id=id, data=JobData(payload=id.encode(), key=key or None, priority=priority), delay=delay)


def follow_up(text: str) -> FollowUp:
    return FollowUp(queue=QUEUE, job=new_job(text))
