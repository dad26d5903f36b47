"""Turns of a part of the queues."""

from __future__ import annotations

from dibs.maintenance.rotation import Rotation


def test_few_queues_are_in_every_turn() -> None:
    rotation = Rotation(["a", "b"], 2)

    assert [["a", "b"]] * 2 == [list(rotation.next_turn()) for _ in range(2)]


def test_each_queue_has_its_turn() -> None:
    queues = [f"q{n}" for n in range(25)]
    rotation = Rotation(queues, 10)
    turns = [rotation.next_turn() for _ in range(5)]

    assert [10] * 5 == [len(set(turn)) for turn in turns]
    assert set(queues) == {queue for turn in turns[:3] for queue in turn}
    assert dict.fromkeys(queues, 2) == {queue: sum(turn.count(queue) for turn in turns) for queue in queues}


def test_without_queues_a_turn_is_empty() -> None:
    assert [] == list(Rotation([], 10).next_turn())
