"""Bulk tasks, for the tests in test_bulk_tasks.py."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

from dibs import BulkFailed, Dibs, Exponential, Immediate, current_job, current_jobs
from dibs.errors import NotRunning

app = Dibs("file:./jobs")
#: The items of each call, in the order of the calls.
calls: list[list[str]] = []
#: Calls of `hold` that have begun and ended.
began, ended = threading.Event(), threading.Event()


@app.bulk_task(most=10, wait=0.2)
async def shout(words: list[str]) -> list[str]:
    calls.append(words)
    return [word.upper() for word in words]


@app.bulk_task(most=10, wait=0.2)
def count(words: list[str]) -> None:
    calls.append(words)


@app.bulk_task(wait=0.2, max_retries=1, backoff=Immediate())
async def judge(words: list[str]) -> list[str]:
    calls.append(words)
    errors = {index: ValueError(f"{word} is bad") for index, word in enumerate(words) if word == "bad"}
    if errors:
        raise BulkFailed(errors, [word.upper() for word in words])
    return words


@app.bulk_task(wait=0.2, max_retries=0)
async def break_all(words: list[str]) -> list[str]:
    if words[0] == "short":
        return words[1:]
    if words[0] == "text":
        raise BulkFailed({"a": ValueError("nobody")})  # type: ignore[dict-item]
    if words[0] == "no error":
        raise BulkFailed({0: "nobody"})  # type: ignore[dict-item]
    if words[0] == "stop":
        raise BulkFailed({0: StopIteration("all of them"), 1: asyncio.CancelledError("all of them")})
    if words[0] == "index":
        raise BulkFailed({7: ValueError("nobody")})
    raise SystemExit("all of them")


@app.bulk_task(wait=0.2)
async def look(words: list[str]) -> list[str]:
    jobs = current_jobs()
    for job in jobs:
        await job.progress({"of": len(words)})
    try:
        return [current_job().id]
    except NotRunning:
        return [job.id for job in jobs]


@app.bulk_task(wait=0.2, timeout=1, max_timeouts=0)
def hold(words: list[str]) -> None:
    """Hold a thread for longer than the timeout."""
    began.set()
    time.sleep(3)
    ended.set()


@app.bulk_task(wait=0.1, timeout=None)
async def sleep(words: list[str]) -> list[str]:
    calls.append(words)
    began.set()
    try:
        await asyncio.sleep(60 if "long" in words else 1.5)
    finally:
        ended.set()
    return words


@app.bulk_task(wait=0.5, backoff=Exponential(0.01, 0.01), max_stalls=1)
async def die(words: list[str]) -> list[str]:
    with Path("calls.txt").open("a") as file:
        file.write(f"{' '.join(sorted(words))}\n")
    if "poison" in words:
        os._exit(1)
    return words
