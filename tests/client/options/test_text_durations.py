"""A duration may be text wherever the client takes seconds. An error names the field of bad text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from dibs import Dibs, Exponential, Fixed, Queue, Refused, Retention, Retry, WaitTimeout
from dibs.client.options.arguments import duration_ms, duration_seconds


def handle(data: Any) -> Any:
    return data


@pytest.fixture
def queue() -> Queue:
    return Dibs("memory:").queue("q")


CALLS: dict[str, Callable[[Queue, str], Any]] = {
    "delay": lambda queue, text: queue.enqueue(1, delay=text),
    "timeout": lambda queue, text: queue.enqueue(1, timeout=text),
    "lease": lambda queue, text: queue.enqueue(1, lease=text),
    "retention.completed": lambda queue, text: queue.enqueue(1, retention=text),
    "retention.failed": lambda queue, text: queue.enqueue(1, retention=Retention(failed=text)),
    "log_age": lambda queue, text: queue.configure(log_age=text),
    "request_key_age": lambda queue, text: queue.configure(request_key_age=text),
    "wait": lambda queue, text: queue.ticket("a", 1).result(text),
}


@pytest.mark.parametrize(("field", "call"), CALLS.items(), ids=CALLS)
async def test_the_client_takes_text_and_refuses_bad_text(
    queue: Queue, field: str, call: Callable[[Queue, str], Awaitable[Any]]
) -> None:
    if field == "wait":
        queue = Dibs("memory:").queue("q")
        ticket = await queue.enqueue(1)
        with pytest.raises(WaitTimeout):
            await ticket.result("1ms")
    else:
        await call(queue, "1h30m")
    with pytest.raises(Refused, match="numbers with the units") as refused:
        await call(queue, "soon")

    assert field == refused.value.field


@pytest.mark.parametrize("name", ["grace", "lease", "heartbeat", "poll"])
async def test_work_takes_text_and_refuses_bad_text(name: str) -> None:
    app = Dibs("memory:")
    app.queue("q").handler(handle)
    times: dict[str, Any] = {"grace": "1m", "lease": "15s", "heartbeat": "5s", "poll": "500ms"}
    await app.work(until="empty", **times)
    with pytest.raises(Refused) as refused:
        await app.work(until="empty", **times | {name: "soon"})

    assert name == refused.value.field


def test_a_receiver_takes_text(queue: Queue) -> None:
    queue.receive(lease="1m", wait="10s")
    with pytest.raises(Refused, match="lease is 'soon'"):
        queue.receive(lease="soon")


def test_backoffs_and_retry_take_text() -> None:
    assert (Fixed(300), Exponential(10, 300)) == (Fixed("5m"), Exponential("10s", "5m"))
    assert 90 == Retry(delay="1m30s").delay
    for field, make in (("seconds", Fixed), ("first", Exponential)):
        with pytest.raises(Refused) as refused:
            make("soon")
        assert field == refused.value.field
    with pytest.raises(Refused, match="delay is 'soon'"):
        Retry(delay="soon")


def test_the_forms_of_a_duration_are_equal() -> None:
    assert {90_000} == {
        duration_ms("delay", form) for form in (90, 90.0, "90s", "1m30s", timedelta(seconds=90))
    }
    assert {90} == {duration_seconds("poll", form) for form in (90, 90.0, "1m30s", timedelta(seconds=90))}
