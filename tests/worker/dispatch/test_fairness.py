"""Sharing out the capacity of a process over queues."""

from __future__ import annotations

from collections import Counter
from random import Random

from attrs import define
from hypothesis import given
from hypothesis import strategies as some

from dibs.worker.dispatch.fairness import Capacity, run_size, share_capacity


@define
class Queue:
    name: str
    size: int = 10
    priority: int = 100
    last_served: int = 0
    startable: int | None = None
    only_starts: bool = False


@define
class BusyQueue(Queue):
    """A queue with a number of jobs that are not started yet."""

    left: int = 0


def busy_queues(priorities: some.SearchStrategy[int]) -> some.SearchStrategy[list[BusyQueue]]:
    queue = some.builds(
        BusyQueue,
        name=some.text("abcdef", min_size=3, max_size=3),
        size=some.integers(1, 100),
        priority=priorities,
        left=some.integers(1, 30),
    )
    return some.lists(queue, min_size=1, max_size=6, unique_by=lambda queue: queue.name)


class Process:
    """A process that starts the jobs of its shares, and ends runs when a test asks for it."""

    def __init__(self, queues: list[BusyQueue]) -> None:
        self.queues = queues
        self.capacity = Capacity()
        self.running: list[BusyQueue] = []
        self.turns = 0
        #: The names of the queues served in each turn.
        self.served: list[list[str]] = []

    def take_turn(self) -> None:
        self.turns += 1
        granted, _ = share_capacity([queue for queue in self.queues if queue.left], self.capacity.free)
        for queue, number in granted:
            queue.last_served = self.turns
            begun = min(number, queue.left)
            queue.left -= begun
            self.capacity.take(begun * queue.size)
            self.running += [queue] * begun
        self.served.append([queue.name for queue, _ in granted])

    def end(self, number: int) -> None:
        self.capacity.give_back(self.running.pop(number % len(self.running)).size)


def shared(*queues: Queue, free: int = 100) -> tuple[dict[str, int], str | None]:
    grants, stuck = share_capacity(queues, free)
    return {queue.name: number for queue, number in grants}, stuck.name if stuck else None


def test_a_single_queue_gets_all_units() -> None:
    assert ({"a": 10}, None) == shared(Queue("a"))


def test_the_higher_priority_is_served_first() -> None:
    assert ({"high": 2}, None) == shared(Queue("low", priority=1), Queue("high"), free=20)


def test_equal_priorities_share() -> None:
    assert ({"a": 5, "b": 10}, None) == shared(Queue("a"), Queue("b", size=5))


def test_the_least_recently_served_comes_first_if_only_one_run_fits() -> None:
    granted, _ = shared(
        Queue("a", last_served=7), Queue("b", last_served=3), Queue("c", last_served=5), free=10
    )

    assert {"b": 1} == granted


def test_a_queue_whose_job_does_not_fit_stops_the_queues_behind_it() -> None:
    assert (
        {},
        "large",
    ) == shared(Queue("large", size=100, last_served=1), Queue("small", size=1, last_served=2), free=99)


def test_a_queue_whose_job_does_not_fit_stops_lower_priorities() -> None:
    assert ({}, "large") == shared(Queue("large", size=50), Queue("low", priority=1), free=40)


def test_the_queues_before_one_that_does_not_fit_are_served() -> None:
    large, small = Queue("large", size=60, last_served=2), Queue("small", size=10, last_served=1)

    assert ({"small": 2}, "large") == shared(small, large, free=50)


def test_every_queue_is_served_in_turn() -> None:
    """Every queue is served, for all sizes."""
    queues = [Queue("a", size=100), Queue("b", size=1), Queue("c", size=30), Queue("d", size=99)]
    served: dict[str, int] = {}
    for turn in range(1, 41):
        for queue, number in share_capacity(queues, 100)[0]:
            queue.last_served = turn
            served[queue.name] = served.get(queue.name, 0) + number

    assert {"a", "b", "c", "d"} == set(served)
    assert all(number >= 10 for number in served.values())


def prefetched(name: str, jobs: int, last_served: int, size: int = 1) -> Queue:
    return Queue(name, size=size, last_served=last_served, startable=jobs, only_starts=True)


def test_prefetched_short_runs_start_queue_by_queue() -> None:
    """The runs of one queue end together, so one request settles them."""
    queues = [prefetched("a", 80, 3), prefetched("b", 80, 1), prefetched("c", 80, 2)]

    assert ({"b": 80, "c": 20}, None) == shared(*queues, free=100)
    assert ({"b": 50}, None) == shared(*queues, free=50)


def test_prefetched_short_runs_of_each_queue_start_in_turn() -> None:
    queues = [prefetched(name, 1000, 0, size) for name, size in (("a", 1), ("b", 1), ("c", 3))]
    served: Counter[str] = Counter()
    for turn in range(1, 13):
        for queue, number in share_capacity(queues, 10)[0]:
            queue.last_served = turn
            served[queue.name] += number * queue.size

    assert {"a", "b", "c"} == set(served)
    assert min(served.values()) >= 30


def test_prefetched_short_runs_share_with_a_queue_that_may_claim() -> None:
    queues = [prefetched("a", 80, 1), prefetched("b", 80, 2), Queue("c", size=1, last_served=3)]

    assert ({"a": 30, "b": 30, "c": 30}, None) == shared(*queues, free=90)


def test_prefetched_short_runs_of_a_higher_priority_come_first() -> None:
    low = Queue("low", priority=1, size=1, startable=80, only_starts=True)

    assert {"high": 80, "low": 20} == shared(low, prefetched("high", 80, 9), free=100)[0]


def test_without_free_units_there_are_no_shares() -> None:
    assert {} == shared(Queue("a"), free=0)[0]


def test_a_run_larger_than_the_process_takes_all_units() -> None:
    assert (100, 1, 10) == (run_size(250), run_size(0), run_size(10))


def test_units_are_taken_and_given_back() -> None:
    capacity = Capacity()
    capacity.take(30)
    assert 70 == capacity.free
    capacity.give_back(30)

    assert capacity.units == capacity.free


@given(busy_queues(some.integers(1, 3)), some.randoms(use_true_random=False))
def test_every_job_is_served_and_the_capacity_is_never_exceeded(
    queues: list[BusyQueue], random: Random
) -> None:
    process, jobs = Process(queues), sum(queue.left for queue in queues)
    for _ in range(2 * jobs):
        process.take_turn()
        assert 0 <= process.capacity.free <= process.capacity.units
        if not process.running:
            break
        process.end(random.randrange(1000))

    assert 0 == sum(queue.left for queue in queues)


@given(busy_queues(some.just(1)), some.randoms(use_true_random=False))
def test_no_queue_of_equal_priority_is_passed_over_twice(queues: list[BusyQueue], random: Random) -> None:
    """Small handlers do not starve a huge one, and every queue is served."""
    process = Process(queues)
    since: dict[str, Counter[str]] = {queue.name: Counter() for queue in queues}
    while any(queue.left for queue in queues):
        waiting = {queue.name for queue in queues if queue.left}
        process.take_turn()
        for name in process.served[-1]:
            since[name].clear()
        for name in waiting - set(process.served[-1]):
            since[name].update(process.served[-1])
            assert not [other for other, times in since[name].items() if times > 1]
        process.end(random.randrange(1000))


@given(busy_queues(some.integers(1, 3)), some.integers(0, 100))
def test_no_queue_is_served_before_a_higher_priority(queues: list[BusyQueue], free: int) -> None:
    granted, stuck = share_capacity(queues, free)
    served = [queue.priority for queue, _ in granted]
    passed = [queue.priority for queue in queues if queue not in [one for one, _ in granted]]

    assert served == sorted(served, reverse=True)
    assert not served or not passed or min(served) >= max(passed)
    assert stuck is None or stuck.size > free - sum(queue.size * number for queue, number in granted)
