"""The option `capture_logs`: records of `logging` in the output of the run that emits them."""

from __future__ import annotations

import asyncio
import logging
import logging.config
import threading
from collections.abc import Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from dibs import Chunk, Dibs, EncryptedSerde, Immediate, current_job
from dibs.client.calls import run_output
from dibs.client.calls.current_job import RUN_LOGS
from dibs.client.calls.run_logs import RunLogs, describe_record, record_text
from dibs.client.calls.run_output import RunOutput
from dibs.testing import using

app = Dibs("memory:")
logger = logging.getLogger("orders")


@pytest.fixture(autouse=True)
def root_level() -> Iterator[None]:
    """Let records of all levels pass, and detach the handler after the test."""
    before = logging.root.level
    logging.root.setLevel(logging.DEBUG)
    yield
    logging.root.setLevel(before)
    logging.root.removeHandler(RUN_LOGS)


@app.task(queue="logged", capture_logs="INFO", max_retries=1, backoff=Immediate())
async def logged() -> None:
    job = current_job()
    logger.debug("too low")
    logger.info("order %d", job.attempt)
    await job.write("between")
    await asyncio.to_thread(logger.warning, "on a thread")
    logging.getLogger("dibs.worker").error("of dibs")
    if job.attempt == 1:
        raise ValueError("again")


@app.task(queue="blocking", capture_logs="WARNING")
def blocking() -> None:
    logger.info("too low")
    logger.warning("first")
    current_job().write("between")
    try:
        int("order")
    except ValueError:
        logger.exception("failed")


@app.task(queue="plain")
async def plain() -> None:
    logger.error("not captured")
    await current_job().write("only this")


@app.task(queue="many", capture_logs="INFO")
def log_many() -> None:
    for number in range(2_000):
        logger.info("%d", number)


@app.task(queue="secret", capture_logs="INFO", serde=EncryptedSerde([EncryptedSerde.new_key()]))
async def secret() -> None:
    logger.info("order")


@app.task(queue="threads", capture_logs="INFO")
def log_on_threads() -> None:
    def log(number: int) -> None:
        for at in range(50):
            logger.info("%d/%d", number, at)

    threads = [threading.Thread(target=copy_context().run, args=(log, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def output_of(task: Any) -> list[Chunk]:
    async with using(app, inline=True):
        ticket = await task.enqueue()
        return [chunk async for chunk in ticket.output()]


def note(left_out: int) -> bytes:
    return b"%d chunks are left out" % left_out


def messages(chunks: list[Chunk]) -> list[Any]:
    return [chunk.value["message"] if chunk.kind == "log" else chunk.value for chunk in chunks]


async def test_a_run_s_records_are_in_its_output_in_order_with_what_it_writes() -> None:
    chunks = await output_of(logged)

    assert ["order 1", "between", "on a thread", "order 2", "between", "on a thread"] == messages(chunks)
    assert [1, 1, 1, 2, 2, 2] == [chunk.attempt for chunk in chunks]
    assert {"time", "level", "logger", "message"} == set(chunks[0].value)
    assert ("INFO", "orders") == (chunks[0].value["level"], chunks[0].value["logger"])


async def test_a_def_handler_s_records_have_the_text_of_an_exception() -> None:
    first, between, failed = await output_of(blocking)

    assert ["first", "between"] == messages([first, between])
    assert failed.value["exception"].endswith("with base 10: 'order'")
    text = record_text(failed.value)
    assert text is not None
    assert text.startswith("ERROR    orders: failed\nTraceback")


def test_texts_are_cut_and_have_no_character_that_a_storage_refuses() -> None:
    record = logging.LogRecord("orders", logging.INFO, "", 1, "\0 \ud800 %s", ("x" * 100_000,), None)

    value = describe_record(record)

    assert value["message"].startswith("\\0 \\ud800 xxx")
    assert 8_192 >= len(value["message"])


async def test_each_run_gets_its_own_records() -> None:
    async with using(app, inline=False) as rehearsal:
        tickets = [await task.enqueue() for task in (logged, plain, blocking, plain)]
        await rehearsal.run_until_empty()
        found = [messages([chunk async for chunk in ticket.output()]) for ticket in tickets]

    assert [6, 1, 3, 1] == [len(one) for one in found]
    assert ["only this"] == found[1] == found[3]


async def test_a_thousand_records_at_once_are_all_there() -> None:
    chunks = await output_of(log_many)

    assert [str(number) for number in range(2_000)] == messages(chunks)


async def test_a_handler_that_dict_config_removes_is_there_at_the_next_run() -> None:
    await output_of(blocking)
    logging.config.dictConfig({"version": 1, "root": {"level": "INFO"}, "disable_existing_loggers": False})
    assert RUN_LOGS not in logging.root.handlers

    assert "first" in messages(await output_of(blocking))


async def test_records_of_an_encrypted_queue_are_encrypted() -> None:
    async with using(app, inline=True):
        ticket = await secret.enqueue()
        storage = await secret.queue._client.storage()
        ((_, event),) = (await storage.events("secret", id=ticket.id)).events
        assert b"order" not in (event.result or b"")
        assert ["order"] == messages([chunk async for chunk in ticket.output()])


async def test_what_the_storage_logs_while_it_takes_output_is_no_output() -> None:
    """A driver that logs each request would otherwise write for ever."""
    sent: list[list[bytes]] = []
    current: ContextVar[Any] = ContextVar("current", default=None)

    class Run:
        log_level = logging.DEBUG

        def add_record(self, value: dict[str, str]) -> None:
            output.add(value["message"].encode())

    async def send(chunks: Any) -> bool:
        logger.debug("the driver sends")
        sent.append(list(chunks))
        return True

    output, handler = RunOutput("q/a", send, note), RunLogs(current.get)
    current.set(Run())
    handler.attach()
    try:
        logger.info("mine")
        await output.finish()
        await output.finish()
    finally:
        logging.root.removeHandler(handler)

    assert [[b"mine"]] == sent


async def test_records_that_exceed_what_an_id_keeps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    gate = asyncio.Event()

    async def send(chunks: Any) -> bool:
        await gate.wait()
        sent.extend(chunks)
        return True

    output = RunOutput("q/a", send, note)
    for _ in range(40):
        output.add(b"x" * 60_000)
    await asyncio.sleep(0)
    gate.set()
    await output.finish()

    assert 17 + 1 == len(sent)
    assert b"23 chunks are left out" == sent[-1]


@pytest.mark.parametrize("size", [10, 3_000])
async def test_a_report_has_at_most_32_kib_and_a_chunk(size: int) -> None:
    reports: list[list[bytes]] = []

    async def send(chunks: Any) -> bool:
        reports.append(list(chunks))
        await asyncio.sleep(0)
        return True

    output = RunOutput("q/a", send, note)
    chunks = [b"%0*d" % (size, number) for number in range(1_200)][: 1_000_000 // (size + 64)]
    for chunk in chunks:
        output.add(chunk)
    await output.finish()

    assert chunks == [chunk for report in reports for chunk in report]
    assert max(map(len, reports)) <= run_output.MOST_BUFFERED // (size + 64) + 1


async def test_records_of_many_threads_are_all_there() -> None:
    found = messages(await output_of(log_on_threads))

    assert 400 == len(found)
    for number in range(8):
        mine = [message for message in found if message.startswith(f"{number}/")]
        assert [f"{number}/{at}" for at in range(50)] == mine
