"""The steps of a run: their results are stored, and later runs of the job get them without a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from attrs import define

from dibs import Dibs, LeaseLost, PermanentError, Refused, StorageUnavailable
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.client.calls.run_steps import decode_memo, encode_memo, step_key
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.client.claim import Claim
from dibs.model.job import Job, JobData
from dibs.model.limits import LIMITS
from dibs.model.results import ReportStatus
from dibs.storage.capabilities import Capabilities
from tests.client.manual_claims import claimed

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


@define
class Receipt:
    order: int
    at: datetime


class Pay:
    """A function of a step that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def charge(self, order: int) -> Receipt:
        self.calls.append(order)
        return Receipt(order, MOMENT)

    async def charge_async(self, order: int) -> Receipt:
        return self.charge(order)


@pytest.fixture
def pay() -> Pay:
    return Pay()


@pytest.fixture
async def claim(app: Dibs) -> AsyncIterator[Claim]:
    await app.queue("q").enqueue(1, id="a")
    async with claimed(app.queue("q")) as claim:
        yield claim


@pytest.fixture
async def job(app: Dibs, claim: Claim) -> CurrentJob:
    return CurrentJob(RunEnvironment(app.storage, "q", asyncio.get_running_loop()), claim._job, None)


async def memo_of(app: Dibs, id: str = "a") -> bytes | None:
    [slot] = await app.storage.get("q", [id])
    return slot.current.data.memo if slot.current else None


async def run_again(app: Dibs, claim: Claim) -> CurrentJob:
    """Retry the job, claim it again, and return the CurrentJob of the new run."""
    await claim.retry()
    lease = (await app.storage.grant(["q"], 60_000, "test")).lease
    [job] = (await app.storage.claim("q", lease, 1)).jobs
    return CurrentJob(RunEnvironment(app.storage, "q", asyncio.get_running_loop()), job, None)


# -- results -----------------------------------------------------------------------------------------


async def test_a_step_runs_once_and_later_runs_get_its_result(
    app: Dibs, claim: Claim, job: CurrentJob, pay: Pay
) -> None:
    first = await job.step("charge", pay.charge_async, 7)
    again = await run_again(app, claim)
    second = await again.step("charge", pay.charge_async, 8)

    assert Receipt(7, MOMENT) == first == second
    assert [7] == pay.calls


async def test_a_def_function_of_an_async_handler_runs_on_a_thread(job: CurrentJob) -> None:
    assert threading.get_ident() != await job.step("where", threading.get_ident)


@pytest.mark.parametrize("name", ["charge", "charge_async"])
async def test_in_a_def_handler_a_step_blocks_and_returns_the_result(
    app: Dibs, claim: Claim, job: CurrentJob, pay: Pay, name: str
) -> None:
    first = await asyncio.to_thread(job.step, "charge", getattr(pay, name), 7)
    again = await run_again(app, claim)
    second = await asyncio.to_thread(again.step, "charge", getattr(pay, name), 7)

    assert Receipt(7, MOMENT) == first == second
    assert [7] == pay.calls


async def test_a_def_function_of_a_def_handler_runs_on_its_thread(job: CurrentJob) -> None:
    def handler() -> bool:
        return bool(threading.get_ident() == job.step("where", threading.get_ident))

    assert await asyncio.to_thread(handler)


async def test_a_handler_with_a_loop_of_its_own_may_await_a_step_there(
    app: Dibs, job: CurrentJob, pay: Pay
) -> None:
    async def inner() -> Any:
        return await job.step("charge", pay.charge_async, 7)

    assert Receipt(7, MOMENT) == await asyncio.to_thread(asyncio.run, inner())
    assert ["charge"] == list(decode_memo(await memo_of(app)))


async def test_the_first_run_gets_the_result_as_later_runs_get_it(job: CurrentJob) -> None:
    assert [1, 2] == await job.step("pair", lambda: (1, 2))
    assert await job.step("none", lambda: None) is None


async def test_a_stored_none_is_a_result(app: Dibs, claim: Claim, job: CurrentJob) -> None:
    calls: list[int] = []
    await job.step("note", calls.append, 1)
    await (await run_again(app, claim)).step("note", calls.append, 2)

    assert [1] == calls


async def test_a_function_that_raises_stores_nothing_and_may_be_tried_again(
    app: Dibs, job: CurrentJob, pay: Pay
) -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await job.step("charge", fails)
    with pytest.raises(ValueError, match="no"):
        await asyncio.to_thread(job.step, "charge", fails)
    assert await memo_of(app) is None
    assert Receipt(7, MOMENT) == await job.step("charge", pay.charge, 7)


async def test_steps_at_the_same_time_keep_each_others_results(app: Dibs, claim: Claim) -> None:
    reports: list[int] = []

    class Slow(Recorder):
        async def report(self, *args: Any, **kwargs: Any) -> ReportStatus:
            reports.append(len(decode_memo(kwargs["memo"])))
            await asyncio.sleep(0)
            return await app.storage.report(*args, **kwargs)

    job = CurrentJob(RunEnvironment(Slow(), "q", asyncio.get_running_loop()), claim._job, None)

    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    assert [0, 2, 4, 6] == await asyncio.gather(*(job.step(f"s{n}", double, n) for n in range(4)))
    assert {f"s{n}" for n in range(4)} == set(decode_memo(await memo_of(app)))
    assert sorted(reports) == reports, "a report never has less than the report before it"


async def test_a_later_report_keeps_a_result_whose_own_report_failed(app: Dibs, claim: Claim) -> None:
    """The storage may have stored the result before it failed, so no later report may remove it."""

    class Failing(Recorder):
        failures = 1

        async def report(self, *args: Any, **kwargs: Any) -> ReportStatus:
            if self.failures:
                self.failures -= 1
                raise StorageUnavailable
            return await app.storage.report(*args, **kwargs)

    job = CurrentJob(RunEnvironment(Failing(), "q", asyncio.get_running_loop()), claim._job, None)
    with pytest.raises(StorageUnavailable):
        await job.step("one", lambda: 1)
    await job.step("two", lambda: 2)

    assert {"one": b"1", "two": b"2"} == decode_memo(await memo_of(app))


# -- refused -----------------------------------------------------------------------------------------


class Recorder:
    """A storage that counts the reports, and answers them as a lost run's."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self.memos: list[bytes | None] = []

    async def report(
        self, queue: str, id: str, fence: int, progress: bytes | None = None, memo: bytes | None = None
    ) -> ReportStatus:
        self.memos.append(memo)
        return "lost"


@pytest.mark.parametrize("blocking", [False, True])
async def test_the_steps_of_a_lost_run_are_refused(
    app: Dibs, claim: Claim, job: CurrentJob, pay: Pay, *, blocking: bool
) -> None:
    await app.queue("q").forget("a")

    async def step(name: str) -> Any:
        if blocking:
            return await asyncio.to_thread(job.step, name, pay.charge, 1)
        return await job.step(name, pay.charge, 1)

    with pytest.raises(LeaseLost, match="charge"):
        await step("charge")
    with pytest.raises(LeaseLost, match="ship"):
        await step("ship")
    assert [1] == pay.calls, "after a refused report no other step is called"


async def test_a_stale_run_cannot_store_over_its_successor(app: Dibs, claim: Claim, job: CurrentJob) -> None:
    again = await run_again(app, claim)
    await again.step("charge", lambda: "new")

    with pytest.raises(LeaseLost):
        await job.step("charge", lambda: "old")
    assert {"charge": b'"new"'} == decode_memo(await memo_of(app))


async def test_a_name_used_twice_in_a_run_is_refused(job: CurrentJob, pay: Pay) -> None:
    await job.step("charge", pay.charge, 1)

    with pytest.raises(Refused, match="used before") as caught:
        await job.step("charge", pay.charge, 2)
    with pytest.raises(Refused, match="used before"):
        await asyncio.to_thread(job.step, "charge", pay.charge, 2)
    assert "name" == caught.value.field
    assert [1] == pay.calls


async def test_a_name_that_runs_already_is_refused(job: CurrentJob, pay: Pay) -> None:
    steps = [job.step("charge", pay.charge_async, n) for n in range(2)]
    first, second = await asyncio.gather(*steps, return_exceptions=True)

    assert isinstance(first, Receipt)
    assert isinstance(second, Refused)


@pytest.mark.parametrize("name", ["", "x" * 129, 5, None, "a\0b"])
async def test_a_bad_name_is_refused(job: CurrentJob, pay: Pay, name: Any) -> None:
    with pytest.raises(Refused, match="name"):
        await job.step(name, pay.charge, 1)
    with pytest.raises(Refused, match="name"):
        job.step_key(name)
    assert [] == pay.calls


async def test_results_above_the_limit_of_a_memo_are_refused_and_the_others_stay(
    app: Dibs, job: CurrentJob
) -> None:
    await job.step("half", lambda: "x" * (LIMITS.memo // 2))
    with pytest.raises(Refused, match=r"'more'.* at most 1,048,576 are stored") as caught:
        await job.step("more", lambda: "x" * (LIMITS.memo // 2))
    await job.step("little", lambda: "x")

    assert "result" == caught.value.field
    assert ["half", "little"] == list(decode_memo(await memo_of(app)))


@pytest.mark.parametrize("function", [object, lambda: float("nan")])
async def test_a_result_that_cannot_be_stored_is_refused(
    job: CurrentJob, function: Callable[[], Any]
) -> None:
    with pytest.raises(Refused, match="cannot be stored"):
        await job.step("odd", function)


async def test_a_refused_step_fails_the_job_without_a_retry(job: CurrentJob) -> None:
    with pytest.raises(PermanentError):
        await job.step("odd", object)


async def test_a_stored_result_of_another_type_is_a_mismatch(
    app: Dibs, claim: Claim, job: CurrentJob
) -> None:
    def changed() -> Receipt:
        return Receipt(1, MOMENT)

    await job.step("charge", lambda: "text")
    with pytest.raises(PayloadMismatch, match="charge"):
        await (await run_again(app, claim)).step("charge", changed)


# -- the memo ----------------------------------------------------------------------------------------


def test_a_memo_is_a_mapping_with_a_version() -> None:
    memo = encode_memo({"charge": b"1"})

    assert {"version": 1, "steps": {"charge": b"1"}} == msgspec.msgpack.decode(memo)
    assert {"charge": b"1"} == decode_memo(memo)
    assert {} == decode_memo(None) == decode_memo(b"")


@pytest.mark.parametrize(
    ("memo", "message"),
    [
        (b"\xc1", "was not written by job.step"),
        (b"text", "was not written by job.step"),
        (msgspec.msgpack.encode({"version": 1, "steps": [1]}), "was not written by job.step"),
        (msgspec.msgpack.encode({"steps": {}}), "was not written by job.step"),
        (msgspec.msgpack.encode({"version": 2, "results": 5}), "version 2, and this dibs reads version 1"),
    ],
)
async def test_another_format_is_a_mismatch(
    app: Dibs, claim: Claim, pay: Pay, memo: bytes, message: str
) -> None:
    await app.storage.report("q", "a", claim.fence, memo=memo)
    job = await run_again(app, claim)

    with pytest.raises(PayloadMismatch, match=message):
        await job.step("charge", pay.charge, 1)
    assert [] == pay.calls


# -- keys for other systems --------------------------------------------------------------------------


async def test_a_key_is_the_same_in_each_run_of_a_job(app: Dibs, claim: Claim, job: CurrentJob) -> None:
    again = await run_again(app, claim)

    assert 32 == len(job.step_key("charge"))
    assert job.step_key("charge") == again.step_key("charge")
    assert job.step_key("charge") != job.step_key("ship")


def test_a_key_differs_for_each_queue_id_job_payload_and_name() -> None:
    job = Job(id="a", data=JobData(payload=b"1"), run_at=0, enqueued_at=0, seq=1, first=1, revision=1)
    retried = msgspec.structs.replace(job, seq=5, retries=3, revision=9, run_at=77, attempts=4)
    others = [
        step_key("r", job, "s"),
        step_key("q", msgspec.structs.replace(job, id="b"), "s"),
        step_key("q", msgspec.structs.replace(job, first=2), "s"),
        step_key("q", msgspec.structs.replace(job, data=JobData(payload=b"2")), "s"),
        step_key("q", job, "t"),
    ]

    assert step_key("q", job, "s") == step_key("q", retried, "s")
    assert 6 == len({step_key("q", job, "s"), *others})
