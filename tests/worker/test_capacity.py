"""Who is served next, and with how much."""

from __future__ import annotations

from dataclasses import dataclass

from dibs.worker.capacity import Capacity, fitted, share_out


@dataclass
class Queue:
    name: str
    size: int = 10
    priority: int = 100
    served: int = 0
    most: int | None = None


def shared(*queues: Queue, free: int = 100) -> tuple[dict[str, int], str | None]:
    grants, stuck = share_out(queues, free)
    return {queue.name: number for queue, number in grants}, stuck.name if stuck else None


def test_one_queue_has_it_all() -> None:
    assert ({"a": 10}, None) == shared(Queue("a"))


def test_the_higher_priority_is_served_first() -> None:
    assert ({"high": 2}, None) == shared(Queue("low", priority=1), Queue("high"), free=20)


def test_equals_share() -> None:
    assert ({"a": 5, "b": 10}, None) == shared(Queue("a"), Queue("b", size=5))


def test_the_least_recently_served_comes_first_when_there_is_room_for_one() -> None:
    granted, _ = shared(Queue("a", served=7), Queue("b", served=3), Queue("c", served=5), free=10)

    assert {"b": 1} == granted


def test_a_queue_whose_job_does_not_fit_keeps_the_room_from_those_behind() -> None:
    assert (
        {},
        "large",
    ) == shared(Queue("large", size=100, served=1), Queue("small", size=1, served=2), free=99)


def test_a_queue_whose_job_does_not_fit_keeps_the_room_from_lower_priorities() -> None:
    assert ({}, "large") == shared(Queue("large", size=50), Queue("low", priority=1), free=40)


def test_those_before_it_are_served() -> None:
    large, small = Queue("large", size=60, served=2), Queue("small", size=10, served=1)

    assert ({"small": 2}, "large") == shared(small, large, free=50)


def test_every_queue_is_served_in_turn() -> None:
    """A queue never drops out, whatever the sizes."""
    queues = [Queue("a", size=100), Queue("b", size=1), Queue("c", size=30), Queue("d", size=99)]
    served: dict[str, int] = {}
    for turn in range(1, 41):
        for queue, number in share_out(queues, 100)[0]:
            queue.served = turn
            served[queue.name] = served.get(queue.name, 0) + number

    assert {"a", "b", "c", "d"} == set(served)
    assert all(number >= 10 for number in served.values())


def test_nothing_is_shared_when_nothing_is_free() -> None:
    assert {} == shared(Queue("a"), free=0)[0]


def test_a_run_larger_than_the_process_has_it_for_itself() -> None:
    assert (100, 1, 10) == (fitted(250), fitted(0), fitted(10))


def test_what_is_taken_comes_back() -> None:
    capacity = Capacity()
    capacity.take(30)
    assert 70 == capacity.free
    capacity.give(30)

    assert capacity.units == capacity.free
