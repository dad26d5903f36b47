"""The kit finds storages that accept bad input, raise another error, or write before they have checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dibs.model.requests import JobPatch
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import open_storage
from dibs_conformance import certify
from dibs_conformance.sequential.bad_calls import check_bad_calls, verbs
from dibs_conformance.sequential.bad_input import wrong_arguments
from dibs_conformance.sequential.walkthrough import use_subclasses
from dibs_conformance.target import OpenStorage
from tests.kit.mutants.lenient import LENIENT, ConvertsText, Lenient, RefusesSubclasses
from tests.kit.play import play_fixed


def opening(wrap: type[Lenient]) -> OpenStorage:
    @asynccontextmanager
    async def open_lenient(location: str, clock: Clock) -> AsyncIterator[Any]:
        async with open_storage(f"memory:{location}", clock) as storage:
            yield wrap(storage)

    return open_lenient


@pytest.mark.parametrize("wrap", LENIENT, ids=lambda wrap: wrap.__name__)
async def test_a_storage_with_wrong_checks_is_found(wrap: type[Lenient]) -> None:
    async with open_storage("memory:", "manual") as storage:
        _, wrong = await check_bad_calls(wrap(storage))

    assert LENIENT[wrap] in "\n".join(wrong), wrong


@pytest.mark.parametrize(("wrap", "law"), [(ConvertsText, "cancel"), (RefusesSubclasses, "report")])
def test_a_storage_that_does_not_take_subclasses_is_found(wrap: type[Lenient], law: str) -> None:
    failure = play_fixed(use_subclasses, opening(wrap))

    assert failure is not None
    assert law in (failure.law, failure.why.partition("(")[0])


def test_a_storage_with_wrong_checks_is_not_certified() -> None:
    report = certify(opening(next(iter(LENIENT))), examples=1, seed=1)

    assert not report.certified
    assert {"every verb refuses bad arguments"} == {one.law for one in report.levels[0].failures}


def test_each_argument_of_each_verb_has_wrong_values() -> None:
    """`queues` has no arguments. The check of `now` has rows of its own."""
    for name, function in verbs(Capabilities(blocking_claim=True, many_queues=True)):
        found = {argument for argument, _ in wrong_arguments(function, {})}
        taken = {one for one in Storage.__dict__.get(name, function).__annotations__ if one != "return"}

        assert taken - {"now"} == found, name


def test_a_field_of_a_patch_is_replaced() -> None:
    configure = dict(verbs(Capabilities()))["amend"]
    paths = {
        wrong.path for _, wrong in wrong_arguments(configure, {"patch": JobPatch(attributes={"a": b"1"})})
    }

    assert {"patch", "patch.priority", "patch.attributes['x']", "a key of patch.attributes"} <= paths
