"""The output of a run: `current_job().write`, and `output` of tickets and queues."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from dibs import Chunk, Dibs, EncryptedSerde, Immediate, LeaseLost, Refused, current_job
from dibs.client.calls import run_output
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.client.calls.run_output import RunOutput
from dibs.storage.capabilities import Capabilities
from dibs.testing import using
from tests.client.manual_claims import claimed

app_of_handlers = Dibs("memory:")


@app_of_handlers.task(queue="twice", max_retries=1, backoff=Immediate())
async def write_twice() -> str:
    job = current_job()
    await job.write({"attempt": job.attempt})
    if job.attempt == 1:
        raise ValueError("again")
    await job.write("last")
    return "done"


@app_of_handlers.task(queue="blocking")
def write_blocking() -> None:
    for number in range(3):
        assert not inspect.iscoroutine(current_job().write(number))


@app_of_handlers.task(queue="secret", serde=EncryptedSerde([EncryptedSerde.new_key()]))
async def write_secret() -> None:
    await current_job().write("secret")


def note(left_out: int) -> bytes:
    return b"%d chunks are left out" % left_out


async def values(chunks: Any) -> list[Any]:
    return [chunk.value async for chunk in chunks]


async def test_a_ticket_gets_what_each_run_writes_until_its_end() -> None:
    async with using(app_of_handlers) as rehearsal:
        ticket = await write_twice.enqueue()
        reading = asyncio.ensure_future(_read(ticket.output()))
        await rehearsal.run_until_empty()

        chunks = await asyncio.wait_for(reading, 5)

    assert [({"attempt": 1}, 1), ({"attempt": 2}, 2), ("last", 2)] == [(c.value, c.attempt) for c in chunks]
    assert {"value"} == {c.kind for c in chunks}
    assert sorted(c.offset for c in chunks) == [c.offset for c in chunks]


async def _read(chunks: Any) -> list[Chunk]:
    return [chunk async for chunk in chunks]


def test_a_def_handler_blocks_and_blocking_code_reads() -> None:
    with using(app_of_handlers, inline=True):
        ticket = write_blocking.sync.enqueue()

        assert [0, 1, 2] == [chunk.value for chunk in ticket.output()]
        assert [1, 2] == [chunk.value for chunk in ticket.output(after=next(iter(ticket.output())).offset)]
        assert [0, 1, 2] == [
            chunk.value for chunk in app_of_handlers.queue("blocking").sync.output(ticket.id)
        ]


async def test_a_ticket_of_a_later_enqueue_gets_its_own_output(app: Dibs) -> None:
    queue = app.queue("q")
    tickets = []
    for value in ("one", "two"):
        tickets.append(await queue.enqueue(1, id="a"))
        async with claimed(queue) as claim:
            await app.storage.report("q", "a", claim.fence, output=[b'v"%s"' % value.encode()])
            if value == "two":
                assert ["one", "two"] == await values(queue.output("a", follow=False))
            await claim.complete()

    assert [] == await values(tickets[0].output())
    assert ["two"] == await values(tickets[1].output())


async def test_a_reader_is_told_of_removed_chunks(app: Dibs) -> None:
    queue = app.queue("q")
    ticket = await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        for _ in range(3):
            await app.storage.report("q", "a", claim.fence, output=[b'v"%s"' % (b"x" * 60_000)] * 10)
        chunks = await _read(ticket.output(follow=False))

    assert [True] + [False] * (len(chunks) - 1) == [chunk.missing for chunk in chunks]


async def test_output_is_encrypted_as_arguments_are() -> None:
    async with using(app_of_handlers, inline=True):
        ticket = await write_secret.enqueue()
        page = await app_of_handlers.storage.events("secret", id=ticket.id)

        assert ["secret"] == await values(ticket.output())
        assert b"secret" not in (page.events[0][1].result or b"")


# -- the buffer ----------------------------------------------------------------------------------------


class Sent:
    """Takes the place of a storage: it keeps the reports, and answers that the run is alive."""

    def __init__(self, *, alive: bool = True) -> None:
        self.reports: list[list[bytes]] = []
        self.alive = alive
        self.one = asyncio.Event()

    async def __call__(self, chunks: Any) -> bool:
        await asyncio.sleep(0)
        self.reports.append(list(chunks))
        self.one.set()
        return self.alive


async def test_chunks_are_sent_together_and_in_order() -> None:
    sent = Sent()
    output = RunOutput("q/a", sent, note)
    for number in range(5):
        await output.write(b"%d" % number)
    assert [] == sent.reports

    await output.finish()

    assert [[b"0", b"1", b"2", b"3", b"4"]] == sent.reports
    assert output.is_sent


async def test_a_chunk_waits_50_ms_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_output, "LONGEST_BUFFERED", 0.001)
    sent = Sent()
    output = RunOutput("q/a", sent, note)

    await output.write(b"one")
    await asyncio.wait_for(sent.one.wait(), 5)

    assert [[b"one"]] == sent.reports


async def test_a_full_buffer_is_sent_at_once() -> None:
    sent = Sent()
    output = RunOutput("q/a", sent, note)

    await output.write(b"x" * 20_000)
    await output.write(b"y" * 20_000)

    assert [2] == [len(report) for report in sent.reports]


async def test_a_cancelled_writer_loses_no_chunk() -> None:
    sent = Sent()
    output = RunOutput("q/a", sent, note)
    writing = asyncio.ensure_future(output.write(b"x" * 40_000))
    await asyncio.sleep(0)
    writing.cancel()

    await output.finish()

    assert 1 == len(sent.reports)


async def test_a_run_without_a_lease_is_told() -> None:
    output = RunOutput("q/a", Sent(alive=False), note)

    with pytest.raises(LeaseLost, match="output was not stored"):
        await output.write(b"x" * 40_000)
    with pytest.raises(LeaseLost):
        await output.write(b"more")
    await output.finish()


# -- refused -------------------------------------------------------------------------------------------


async def test_a_value_above_64_kib_is_refused(app: Dibs) -> None:
    queue = app.queue("q")
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        job = CurrentJob(RunEnvironment(app.storage, "q", asyncio.get_running_loop()), claim._job, None)

        with pytest.raises(Refused, match="65,536") as refused:
            await job.write("x" * 65_535)
        await job.write("x" * 65_533)

    assert "value" == refused.value.field


class NoOutput:
    capabilities = Capabilities()

    async def report(self, *_: Any, **__: Any) -> Any: ...


async def test_a_storage_without_output_is_named(app: Dibs) -> None:
    queue = app.queue("q")
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        job = CurrentJob(RunEnvironment(NoOutput(), "q", asyncio.get_running_loop()), claim._job, None)

        with pytest.raises(Refused, match="capability `output`"):
            await job.write("x")


async def test_a_bad_offset_is_refused(app: Dibs) -> None:
    with pytest.raises(Refused) as refused:
        await values(app.queue("q").output("a", after="x"))

    assert "after" == refused.value.field
