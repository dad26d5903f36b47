"""A function as something to be called later, elsewhere."""

from __future__ import annotations

import functools
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from uuid import UUID

import pytest

from dibs import BadHandler, PermanentError, Refused
from dibs.client.serde import JsonSerde, MessagePackSerde, Serde
from dibs.client.signature import Call, check_function, name_of
from tests.client import handlers
from tests.client.handlers import Crop, Size

JSON = JsonSerde()


@pytest.mark.parametrize("serde", [JSON, MessagePackSerde()], ids=lambda one: one.name)
def test_arguments_come_back_as_the_types_of_their_parameters(serde: Serde) -> None:
    call = Call(handlers.typed)
    args: tuple[Any, ...] = (
        datetime(2026, 1, 1, tzinfo=UTC),
        UUID(int=1),
        Decimal("0.1"),
        Size.SMALL,
        "png",
        Crop(1),
        Path("a"),
        Crop(2),
        Crop(3),
    )

    payload = call.payload(serde, args, {"more": Size.SMALL})

    assert call.arguments(serde, payload) == (args, {"more": Size.SMALL})


@pytest.mark.parametrize("serde", [JSON, MessagePackSerde()], ids=lambda one: one.name)
def test_keys_come_back_as_numbers(serde: Serde) -> None:
    call = Call(handlers.keyed)

    assert call.arguments(serde, call.payload(serde, ({5: Crop(1)},), {})) == (({5: Crop(1)},), {})


def test_defaults_stay_the_functions_own() -> None:
    """A default is not enqueued: the handler that runs says what it is."""
    call = Call(handlers.thumbnail)

    assert call.payload(JSON, ("a",), {}) == b'{"args":["a"],"kwargs":{}}'


WRONG = {
    "missing": ((), {}, "path"),
    "unknown": (("a",), {"wide": 1}, "wide"),
    "twice": (("a",), {"path": "b"}, "path"),
    "too many": (("a", 1, 2), {}, ""),
}


@pytest.mark.parametrize(("args", "kwargs", "field"), WRONG.values(), ids=WRONG)
def test_what_the_function_would_not_take_is_refused(args: Any, kwargs: Any, field: str) -> None:
    with pytest.raises(Refused, match="thumbnail") as refused:
        Call(handlers.thumbnail).payload(JSON, args, kwargs)

    assert refused.value.field == field


def test_a_value_of_another_type_fails_the_job_for_good_and_names_the_argument() -> None:
    with pytest.raises(PermanentError, match="'width' of thumbnail"):
        Call(handlers.thumbnail).arguments(JSON, b'{"args":["a"],"kwargs":{"width":"x"}}')


@pytest.mark.parametrize("payload", [b"", b"[1]", b'"x"', b'{"arg":[]}', b'{"args":[1],"kwargs":{"none":1}}'])
def test_a_payload_of_another_form_fails_the_job_for_good(payload: bytes) -> None:
    with pytest.raises(PermanentError):
        Call(handlers.only).arguments(JSON, payload)


def test_a_payload_may_leave_out_what_is_empty() -> None:
    assert Call(handlers.only).arguments(JSON, b'{"args":[5]}') == ((5,), {})


def test_a_type_that_cannot_be_found_says_what_to_do() -> None:
    with pytest.raises(BadHandler, match=r"'Nowhere'.*TYPE_CHECKING"):
        Call(handlers.unresolved).arguments(JSON, b'{"args":[5]}')


def nested() -> FunctionType:
    def inner() -> None: ...

    return inner  # type: ignore[return-value]


BAD: dict[str, tuple[Any, str]] = {
    "lambda": (lambda: 1, "write a `def`"),
    "nested": (nested(), "move it to the module's top"),
    "method": (handlers.Service.method, "makes the object and calls it"),
    "bound method": (handlers.Service().method, "write a function"),
    "object": (handlers.Service(), "write a function"),
    "partial": (functools.partial(handlers.thumbnail, "a"), "write a function"),
    "class": (Crop, "write a function"),
    "generator": (handlers.generate, "return it"),
    "async generator": (handlers.generate_later, "return it"),
}


@pytest.mark.parametrize(("function", "advice"), BAD.values(), ids=BAD)
def test_what_a_worker_could_not_import_or_call_is_refused_with_advice(function: Any, advice: str) -> None:
    with pytest.raises(BadHandler, match=advice):
        check_function(function)


def test_a_name_is_module_and_function() -> None:
    assert name_of(handlers.thumbnail) == f"{handlers.__name__}.thumbnail"


def program(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> FunctionType:
    main = ModuleType("__main__")
    vars(main).update(attributes)
    monkeypatch.setitem(sys.modules, "__main__", main)
    function = FunctionType(handlers.thumbnail.__code__, {}, "job")
    function.__module__ = "__main__"
    return function


def test_in_a_program_the_stem_of_the_file_stands_for_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(program(monkeypatch, __file__="/x/jobs.py")) == "jobs.job"


def test_a_module_run_with_m_keeps_its_full_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = type("Spec", (), {"name": "shop.jobs"})

    assert name_of(program(monkeypatch, __file__="/x/jobs.py", __spec__=spec)) == "shop.jobs.job"


def test_in_a_notebook_the_queue_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadHandler, match="queue="):
        name_of(program(monkeypatch))
