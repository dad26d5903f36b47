"""The loop of `wait`: the times at which it reads the state again, and the events that end it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from dibs.errors import NotRunning
from dibs.storage.protocol import Watch
from dibs.storage.wait_loop import QueueWait

#: Far beyond any of the times here.
LONG = 60.0


class CountingWait(QueueWait[int]):
    """A wait for a number to change; each look returns the next of `states`, the last one again and again."""

    def __init__(
        self,
        states: list[int],
        *,
        known: int | None = None,
        due: float | None = None,
        poll: float = LONG,
        ends_on_message: bool = False,
        message_during_look: bool = False,
        watch: Watch = "work",
        was_subscribed: bool = True,
        since: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(["q"], watch, ("a",), {"q": "0"} if since is None else since)
        self.states, self.known, self.due, self.poll = states, known, due, poll
        self.ending, self.message_during_look = ends_on_message, message_during_look
        self.was_subscribed = was_subscribed
        self.calls: list[str] = []
        self.is_open = True

    async def subscribe(self) -> bool:
        self.calls.append("subscribe")
        return self.was_subscribed

    def unsubscribe(self) -> None:
        self.calls.append("unsubscribe")

    def check_open(self) -> None:
        if not self.is_open:
            raise NotRunning("closed")

    async def read_state(self) -> int:
        self.calls.append("look")
        if self.message_during_look:
            self.wake()
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def known_state(self) -> int | None:
        return self.known

    def ends_on_message(self) -> bool:
        return self.ending

    def has_changed(self, state: int, *, was_woken: bool) -> bool:
        return str(state) != self.since.get("q", "0")

    def tokens(self, state: int) -> Mapping[str, str]:
        return {"q": str(state)}

    def seconds_until_due(self, state: int) -> float | None:
        return self.due

    def seconds_until_poll(self, state: int) -> float:
        return self.poll


async def test_a_change_before_the_first_look_ends_the_wait_at_once() -> None:
    wait = CountingWait([1])
    result = await wait.run(LONG)

    assert (True, {"q": "1"}) == (result.woken, result.since)
    assert ["subscribe", "look", "unsubscribe"] == wait.calls


@pytest.mark.parametrize(
    ("watch", "was_subscribed", "since", "woken"),
    [
        ("ids", False, {}, True),
        ("ids", True, {}, False),
        ("ids", False, {"q": "0"}, False),
        ("work", False, {}, False),
    ],
)
async def test_an_end_before_the_subscription_is_not_missed(
    *, watch: Watch, was_subscribed: bool, since: Mapping[str, str], woken: bool
) -> None:
    """A wait for ids without a token may have missed an end if its messages began during the call."""
    wait = CountingWait([0], watch=watch, was_subscribed=was_subscribed, since=since)

    assert woken == (await wait.run(0.01)).woken


async def test_a_known_state_saves_the_first_look() -> None:
    wait = CountingWait([1], known=0, poll=0.01)

    assert (await wait.run(LONG)).woken
    assert 1 == wait.calls.count("look")


async def test_a_poll_finds_a_change_without_a_message() -> None:
    wait = CountingWait([0, 0, 1], poll=0.01)

    assert (await wait.run(LONG)).woken
    assert 3 == wait.calls.count("look")


@pytest.mark.parametrize(("ends_on_message", "looks"), [(True, 1), (False, 2)])
async def test_a_message_ends_the_sleep(*, ends_on_message: bool, looks: int) -> None:
    wait = CountingWait([0, 1], ends_on_message=ends_on_message)
    waiting = asyncio.create_task(wait.run(LONG))
    await asyncio.sleep(0)
    wait.wake()

    assert (await asyncio.wait_for(waiting, LONG)).woken
    assert looks == wait.calls.count("look")


async def test_a_message_during_the_look_ends_the_next_sleep() -> None:
    wait = CountingWait([0, 1], message_during_look=True)

    assert (await asyncio.wait_for(wait.run(LONG), LONG)).woken


@pytest.mark.parametrize("ends_on_message", [True, False])
async def test_a_message_during_the_last_look_is_not_lost(*, ends_on_message: bool) -> None:
    """With ends_on_message the token already includes the message, so the result must report it."""
    wait = CountingWait([0], message_during_look=True, ends_on_message=ends_on_message)

    assert ends_on_message == (await wait.run(0.0)).woken


async def test_a_job_that_falls_due_ends_the_wait() -> None:
    assert (await CountingWait([0], due=0.01).run(LONG)).woken


async def test_the_timeout_ends_the_wait_after_a_last_look() -> None:
    wait = CountingWait([0])

    assert not (await wait.run(0.01)).woken
    assert ["subscribe", "look", "look", "unsubscribe"] == wait.calls


async def test_a_closed_storage_ends_the_wait_with_an_error() -> None:
    wait = CountingWait([0])
    waiting = asyncio.create_task(wait.run(None))
    await asyncio.sleep(0)
    wait.is_open = False
    wait.wake()

    with pytest.raises(NotRunning):
        await waiting
    assert "unsubscribe" == wait.calls[-1]
