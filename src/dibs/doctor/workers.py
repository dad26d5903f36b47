"""The checks of workers: those that cannot claim, and versions and settings that differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dibs.client.worker_info import WorkerInfo
from dibs.doctor.facts import Facts
from dibs.model.findings import Finding, Rule

#: Seconds that a worker may take until it can claim.
START_SECONDS: Final = 60

NOT_READY: Final = Rule(
    "worker-not-ready",
    "warning",
    "The worker lives and claims no jobs: it has no lease, or its processes do not start.",
    "Read its log.",
)
VERSIONS: Final = Rule(
    "worker-versions",
    "note",
    "A rolling upgrade is under way, or some workers were forgotten.",
    "Restart the workers with the older version.",
)
SETTINGS: Final = Rule(
    "worker-settings",
    "warning",
    "Each worker writes the settings that its tasks declare when it starts, so the last start decides.",
    "Deploy the same code to all workers of the queue.",
)
RULES: Final = (NOT_READY, VERSIONS, SETTINGS)


def check_workers(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the workers that live."""
    for worker in facts.workers:
        if not worker.ready and not worker.stopping and _age(worker) > START_SECONDS:
            yield NOT_READY.finding(f"it has been up for {_age(worker):.0f} s and cannot claim", worker.name)
    versions = sorted({worker.version for worker in facts.workers})
    if len(versions) > 1:
        yield VERSIONS.finding(f"live workers have the versions {', '.join(versions)}")
    yield from _settings(facts)


def _age(worker: WorkerInfo) -> float:
    """Return the seconds from the start of a worker to its last record, both by the clock of the storage."""
    if worker.seen_at is None or worker.started_at is None:
        return 0.0
    return (worker.seen_at - worker.started_at).total_seconds()


def _settings(facts: Facts) -> Iterator[Finding]:
    declared: dict[tuple[str, str], dict[bytes, str]] = {}
    for worker in facts.workers:
        for queue in worker.queues:
            for name, value in worker.settings.get(queue, {}).items():
                declared.setdefault((queue, name), {})[_key(value)] = worker.name
    for (queue, name), values in declared.items():
        if len(values) > 1:
            found = "; ".join(f"{worker}: {value.decode()}" for value, worker in sorted(values.items()))
            yield SETTINGS.finding(f"workers declare different values of {name}: {found}", queue)


def _key(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
