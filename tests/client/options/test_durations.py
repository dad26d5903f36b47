"""Durations and datetimes become whole milliseconds, and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from dibs import Dibs, Exponential, Fixed, Queue, Rate, Refused, Retention, Retry, WaitTimeout
from dibs.client.options.arguments import build_key, duration_ms, duration_seconds, epoch_ms, utc_datetime
from dibs.client.options.queue_settings import build_rate
from dibs.model.requests import StartRate


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        (1, 1000),
        (0.1, 100),
        (0.0001, 1),
        (1.0000001, 1001),
        (0.3, 300),
        (timedelta(microseconds=1), 1),
        (0, 0),
        (-2, -2000),
    ],
)
def test_seconds_become_whole_ms_rounded_up(duration: float | timedelta, ms: int) -> None:
    """Rounding up keeps a job from running early (contract 2)."""
    assert duration_ms("delay", duration) == ms


def test_a_datetime_in_any_zone_is_the_same_number() -> None:
    noon = datetime(1970, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert epoch_ms("run_at", noon) == 10 * 3600 * 1000
    assert utc_datetime(10 * 3600 * 1000) == noon
    assert epoch_ms("run_at", noon + timedelta(microseconds=1)) == 10 * 3600 * 1000 + 1


def test_a_datetime_survives_the_round_trip() -> None:
    now = datetime(2026, 11, 20, 17, 0, 0, 123_000, tzinfo=UTC)

    assert utc_datetime(epoch_ms("run_at", now)) == now


# -- A duration may be text wherever the client takes seconds. An error names the field of bad text --


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


# -- `Rate` and the key of a job: the values that limits use -----------------------------------------


class Region(StrEnum):
    NORTH = "north"


class Tier(IntEnum):
    GOLD = 1


@pytest.mark.parametrize("per", [60, 60.0, "1m", timedelta(minutes=1)])
def test_the_period_is_any_duration(per: Any) -> None:
    assert StartRate(10, 60_000, 3) == Rate(10, per, 3).to_model()


def test_a_stored_rate_is_read_back() -> None:
    assert Rate(10, per=0.5, burst=2) == Rate.from_model(StartRate(10, 500, 2))


@pytest.mark.parametrize("text", ["5/s", "5/1s", "5/1000ms"])
def test_a_rate_may_be_text(text: str) -> None:
    assert StartRate(5, 1000) == build_rate("rate", text)
    assert StartRate(5, 1000, 9) == build_rate("rate", f"{text} burst 9")


@pytest.mark.parametrize("value", [5, (5, 1), StartRate(5, 1000)], ids=repr)
def test_only_a_rate_is_a_rate(value: Any) -> None:
    with pytest.raises(Refused, match=r"pass Rate\(10, per=60\), text such as '10/m'") as refused:
        build_rate("key_rate", value)

    assert "key_rate" == refused.value.field
    assert build_rate("key_rate", None) is None


@pytest.mark.parametrize(
    ("value", "key"),
    [("ada", "ada"), (0, "0"), (-7, "-7"), (10**40, "1" + "0" * 40), (None, None), ("é" * 64, "é" * 64),
     (Region.NORTH, "north"), (Tier.GOLD, "1")],
)  # fmt: skip
def test_text_and_whole_numbers_become_keys(value: Any, key: str | None) -> None:
    found = build_key(value)

    assert key == found
    assert type(found) in {str, type(None)}
