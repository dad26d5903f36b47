"""Rehearsals with threads=False: handlers run on the thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dibs import Dibs
from dibs.testing import Rehearsal, using

app = Dibs("memory:")
ran: list[str] = []
#: Data of one thread, as the transaction of a Django test is.
local = threading.local()


@app.task
def read(name: str) -> str:
    ran.append(name)
    return str(getattr(local, "value", "nothing"))


@app.task
def read_by_another_job() -> str:
    return read.sync.enqueue_and_wait("inner")


@app.task
async def wait_for_a_job() -> str:
    return await read.enqueue_and_wait("inner")


@app.task
def fail() -> None:
    raise SystemExit


@pytest.fixture
def one_thread() -> Iterator[Rehearsal]:
    ran.clear()
    local.value = "mine"
    with using(app, threads=False) as rehearsal:
        yield rehearsal


def test_handlers_see_the_data_of_the_thread(one_thread: Rehearsal) -> None:
    tickets = [read.sync.enqueue(f"{number}") for number in range(20)]

    assert 20 == one_thread.sync.run_due().total("completed")
    assert ["mine"] * 20 == [ticket.result(wait=0) for ticket in tickets]


def test_without_it_they_do_not() -> None:
    local.value = "mine"
    with using(app) as rehearsal:
        ticket = read.sync.enqueue("a")
        rehearsal.sync.run_due()

        assert "nothing" == ticket.result(wait=0)


def test_a_handler_may_wait_for_another_job(one_thread: Rehearsal) -> None:
    tickets = [read_by_another_job.sync.enqueue() for _ in range(5)]
    one_thread.sync.run_until_empty()

    assert ["mine"] * 5 == [ticket.result(wait=0) for ticket in tickets]


def test_an_async_handler_may_wait_for_a_job_on_the_thread(one_thread: Rehearsal) -> None:
    ticket = wait_for_a_job.sync.enqueue()
    one_thread.sync.run_due()

    assert "mine" == ticket.result(wait=0)


def test_inline_jobs_run_on_the_thread() -> None:
    local.value = "mine"
    with using(app, inline=True, threads=False):
        assert "mine" == read.sync.enqueue("a").result(wait=0)


def test_other_threads_may_enqueue(one_thread: Rehearsal) -> None:
    thread = threading.Thread(target=lambda: read.sync.enqueue("a"))
    thread.start()
    thread.join()

    assert 1 == one_thread.sync.run_due().total("completed")


async def test_async_tests_run_handlers_on_threads() -> None:
    local.value = "mine"
    async with using(app, threads=False) as rehearsal:
        ticket = await read.enqueue("a")
        await rehearsal.run_due()

        assert "nothing" == await ticket.result(wait=0)


def test_an_error_of_a_handler_is_retried(one_thread: Rehearsal) -> None:
    fail.sync.enqueue()

    assert 1 == one_thread.sync.run_due().total("retried")
