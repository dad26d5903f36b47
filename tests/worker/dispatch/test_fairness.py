"""Who is served next, and with how much."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as some

from dibs.worker.dispatch.fairness import Capacity, run_size, share_out


@dataclass
class Queue:
    name: str
    size: int = 10
    priority: int = 100
    last_served: int = 0
    startable: int | None = None


@dataclass
class Busy(Queue):
    """A queue with so many jobs left."""

    left: int = 0


def busy_queues(priorities: some.SearchStrategy[int]) -> some.SearchStrategy[list[Busy]]:
    queue = some.builds(
        Busy,
        name=some.text("abcdef", min_size=3, max_size=3),
        size=some.integers(1, 100),
        priority=priorities,
        left=some.integers(1, 30),
    )
    return some.lists(queue, min_size=1, max_size=6, unique_by=lambda queue: queue.name)


class Process:
    """Runs what it is granted; whenever it is full, one of its runs ends."""

    def __init__(self, queues: list[Busy]) -> None:
        self.queues = queues
        self.capacity = Capacity()
        self.running: list[Busy] = []
        self.turns = 0
        #: Which queues were served in each turn.
        self.served: list[list[str]] = []

    def settle_and_claim(self) -> None:
        self.turns += 1
        granted, _ = share_out([queue for queue in self.queues if queue.left], self.capacity.free)
        for queue, number in granted:
            queue.last_served = self.turns
            begun = min(number, queue.left)
            queue.left -= begun
            self.capacity.take(begun * queue.size)
            self.running += [queue] * begun
        self.served.append([queue.name for queue, _ in granted])

    def end(self, number: int) -> None:
        self.capacity.give(self.running.pop(number % len(self.running)).size)


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
    granted, _ = shared(
        Queue("a", last_served=7), Queue("b", last_served=3), Queue("c", last_served=5), free=10
    )

    assert {"b": 1} == granted


def test_a_queue_whose_job_does_not_fit_keeps_the_room_from_those_behind() -> None:
    assert (
        {},
        "large",
    ) == shared(Queue("large", size=100, last_served=1), Queue("small", size=1, last_served=2), free=99)


def test_a_queue_whose_job_does_not_fit_keeps_the_room_from_lower_priorities() -> None:
    assert ({}, "large") == shared(Queue("large", size=50), Queue("low", priority=1), free=40)


def test_those_before_it_are_served() -> None:
    large, small = Queue("large", size=60, last_served=2), Queue("small", size=10, last_served=1)

    assert ({"small": 2}, "large") == shared(small, large, free=50)


def test_every_queue_is_served_in_turn() -> None:
    """A queue never drops out, whatever the sizes."""
    queues = [Queue("a", size=100), Queue("b", size=1), Queue("c", size=30), Queue("d", size=99)]
    served: dict[str, int] = {}
    for turn in range(1, 41):
        for queue, number in share_out(queues, 100)[0]:
            queue.last_served = turn
            served[queue.name] = served.get(queue.name, 0) + number

    assert {"a", "b", "c", "d"} == set(served)
    assert all(number >= 10 for number in served.values())


def test_nothing_is_shared_when_nothing_is_free() -> None:
    assert {} == shared(Queue("a"), free=0)[0]


def test_a_run_larger_than_the_process_has_it_for_itself() -> None:
    assert (100, 1, 10) == (run_size(250), run_size(0), run_size(10))


def test_what_is_taken_comes_back() -> None:
    capacity = Capacity()
    capacity.take(30)
    assert 70 == capacity.free
    capacity.give(30)

    assert capacity.units == capacity.free


@given(busy_queues(some.integers(1, 3)), some.randoms(use_true_random=False))
def test_all_that_waits_is_served_and_never_more_at_once_than_fits(queues: list[Busy], luck: Random) -> None:
    process, jobs = Process(queues), sum(queue.left for queue in queues)
    for _ in range(2 * jobs):
        process.settle_and_claim()
        assert 0 <= process.capacity.free <= process.capacity.units
        if not process.running:
            break
        process.end(luck.randrange(1000))

    assert 0 == sum(queue.left for queue in queues)


@given(busy_queues(some.just(1)), some.randoms(use_true_random=False))
def test_no_equal_is_passed_over_twice_whatever_its_size(queues: list[Busy], luck: Random) -> None:
    """A huge handler is not starved by small ones, and no queue drops out."""
    process = Process(queues)
    since: dict[str, Counter[str]] = {queue.name: Counter() for queue in queues}
    while any(queue.left for queue in queues):
        waiting = {queue.name for queue in queues if queue.left}
        process.settle_and_claim()
        for name in process.served[-1]:
            since[name].clear()
        for name in waiting - set(process.served[-1]):
            since[name].update(process.served[-1])
            assert not [other for other, times in since[name].items() if times > 1]
        process.end(luck.randrange(1000))


@given(busy_queues(some.integers(1, 3)), some.integers(0, 100))
def test_nobody_is_served_before_a_higher_priority(queues: list[Busy], free: int) -> None:
    granted, stuck = share_out(queues, free)
    served = [queue.priority for queue, _ in granted]
    passed = [queue.priority for queue in queues if queue not in [one for one, _ in granted]]

    assert served == sorted(served, reverse=True)
    assert not served or not passed or min(served) >= max(passed)
    assert stuck is None or stuck.size > free - sum(queue.size * number for queue, number in granted)
