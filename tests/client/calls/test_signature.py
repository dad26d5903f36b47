"""Signatures: arguments to payloads and back."""

from __future__ import annotations

import functools
import socket
import sys
from datetime import UTC, datetime
from decimal import Decimal
from types import FunctionType, ModuleType
from typing import Any, NoReturn
from uuid import UUID

import pytest
from pydantic import RootModel

from dibs import BadHandler, Dibs, PermanentError, Refused
from dibs.client.calls.handler_registry import check_function, default_queue_name
from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_payload import Args, Kwargs
from dibs.client.options.serde import JsonSerde, MessagePackSerde, Serde
from tests.client import handlers
from tests.client.handlers import Crop, Line, Order

JSON = JsonSerde()


@pytest.mark.parametrize("serde", [JSON, MessagePackSerde()], ids=lambda one: one.name)
def test_keys_come_back_as_numbers(serde: Serde) -> None:
    call = CallSignature(handlers.keyed)

    assert call.decode_arguments(serde, call.encode_arguments(serde, ({5: Crop(1)},), {})) == (
        ({5: Crop(1)},),
        {},
    )


def test_defaults_stay_the_functions_own() -> None:
    """The payload has no defaults: the worker uses the defaults of its own code."""
    call = CallSignature(handlers.thumbnail)

    assert call.encode_arguments(JSON, ("a",), {}) == b'{"args":["a"],"kwargs":{}}'


WRONG = {
    "missing": ((), {}, "path"),
    "unknown": (("a",), {"wide": 1}, "wide"),
    "twice": (("a",), {"path": "b"}, "path"),
    "too many": (("a", 1, 2), {}, ""),
}


@pytest.mark.parametrize(("args", "kwargs", "field"), WRONG.values(), ids=WRONG)
def test_what_the_function_would_not_take_is_refused(args: Any, kwargs: Any, field: str) -> None:
    with pytest.raises(Refused, match="thumbnail") as refused:
        CallSignature(handlers.thumbnail).encode_arguments(JSON, args, kwargs)

    assert refused.value.field == field


ORDER = Order(
    no=1, placed=datetime(2026, 1, 1, tzinfo=UTC), price=Decimal("0.10"), lines=[Line(article=UUID(int=1))]
)


def test_a_model_may_be_sent_as_plain_data() -> None:
    call = CallSignature(handlers.modelled)
    plain = {
        "no": 1,
        "placed": "2026-01-01T00:00:00Z",
        "price": "0.10",
        "lines": [{"article": str(UUID(int=1))}],
    }

    assert ((ORDER,), {}) == call.decode_arguments(JSON, call.encode_arguments(JSON, (plain,), {}))


MISFITS: dict[str, tuple[Any, Args, Kwargs, str]] = {
    "text for a number": (handlers.thumbnail, ("a", "wide"), {}, "width"),
    "a truth for a number": (handlers.thumbnail, ("a", True), {}, "width"),
    "nothing for text": (handlers.thumbnail, (None,), {}, "path"),
    "one of many": (handlers.counted, (1, 2, "3"), {}, "numbers"),
    "one of many by name": (handlers.counted, (), {"a": 1, "b": "x"}, "named"),
    "no member of an Enum": (handlers.modelled, (ORDER,), {"frame": {"size": "xl"}}, "frame"),
    "a field that is missing": (handlers.modelled, (ORDER,), {"frame": {"crop": {}}}, "frame"),
    "a model of another kind": (handlers.modelled, (Line(article=UUID(int=1)),), {}, "order"),
    "a model that is invalid": (handlers.modelled, ({"no": 0, "placed": "x", "price": 1},), {}, "order"),
    "no member of a union": (handlers.two_models, ({"other": 1},), {}, "either"),
}


@pytest.mark.parametrize(("function", "args", "kwargs", "field"), MISFITS.values(), ids=MISFITS)
def test_what_its_type_hint_does_not_take_is_refused_before_it_is_sent(
    function: Any, args: Any, kwargs: Any, field: str
) -> None:
    with pytest.raises(Refused, match=f"'{field}' of {function.__name__}") as refused:
        CallSignature(function).encode_arguments(JSON, args, kwargs)

    assert refused.value.field == field


def test_what_its_type_hint_takes_in_another_form_is_sent() -> None:
    """The check decodes as a worker does, by the rules of JSON: an int fits a float, text may be a date."""
    assert CallSignature(handlers.counted).encode_arguments(JSON, (), {"a": 1})
    assert CallSignature(handlers.take_object).encode_arguments(JSON, ([1, {"any": "thing"}],), {})
    assert CallSignature(handlers.keyed).encode_arguments(JSON, ({5: Crop(1)},), {})


def test_a_value_of_another_type_fails_the_job_for_good_and_names_the_argument() -> None:
    with pytest.raises(PermanentError, match="'width' of thumbnail"):
        CallSignature(handlers.thumbnail).decode_arguments(JSON, b'{"args":["a"],"kwargs":{"width":"x"}}')


@pytest.mark.parametrize("payload", [b"", b"[1]", b'"x"', b'{"arg":[]}', b'{"args":[1],"kwargs":{"none":1}}'])
def test_a_payload_of_another_form_fails_the_job_for_good(payload: bytes) -> None:
    with pytest.raises(PermanentError):
        CallSignature(handlers.only).decode_arguments(JSON, payload)


def test_a_payload_may_leave_out_what_is_empty() -> None:
    assert CallSignature(handlers.only).decode_arguments(JSON, b'{"args":[5]}') == ((5,), {})


def test_a_type_that_cannot_be_found_says_what_to_do() -> None:
    with pytest.raises(BadHandler, match=r"'Nowhere'.*TYPE_CHECKING"):
        CallSignature(handlers.unresolved).decode_arguments(JSON, b'{"args":[5]}')


# -- Functions that cannot be handlers, and the default names of queues ------------------------------


def nested() -> FunctionType:
    def inner() -> None: ...

    return inner  # type: ignore[return-value]


BAD: dict[str, tuple[Any, str]] = {
    "lambda": (lambda: 1, "write a `def`"),
    "nested": (nested(), "move it to the module level"),
    "method": (handlers.Service.method, "creates the object and calls the method"),
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
    assert default_queue_name(handlers.thumbnail) == f"{handlers.__name__}.thumbnail"


def program(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> FunctionType:
    main = ModuleType("__main__")
    vars(main).update(attributes)
    monkeypatch.setitem(sys.modules, "__main__", main)
    function = FunctionType(handlers.thumbnail.__code__, {}, "job")
    function.__module__ = "__main__"
    return function


def test_in_a_program_the_stem_of_the_file_stands_for_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_queue_name(program(monkeypatch, __file__="/x/jobs.py")) == "jobs.job"


def test_a_module_run_with_m_keeps_its_full_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = type("Spec", (), {"name": "shop.jobs"})

    assert default_queue_name(program(monkeypatch, __file__="/x/jobs.py", __spec__=spec)) == "shop.jobs.job"


def test_in_a_notebook_the_queue_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadHandler, match="queue="):
        default_queue_name(program(monkeypatch))


# -- A return type whose values no serde of dibs can store is refused at the declaration -------------


def opens() -> socket.socket:
    raise NotImplementedError


async def opens_later(data: Any) -> list[socket.socket]:
    raise NotImplementedError


def never() -> NoReturn:
    raise NotImplementedError


def anything() -> object:
    raise NotImplementedError


def test_a_return_type_that_cannot_be_stored_is_refused() -> None:
    app = Dibs("memory:")
    with pytest.raises(BadHandler, match=r"opens: its return type cannot be stored\. socket"):
        app.task(opens)
    with pytest.raises(BadHandler, match="opens_later: its return type cannot be stored"):
        app.queue("q").handler(opens_later)


@pytest.mark.parametrize("function", [never, anything])
def test_a_return_type_without_values_or_with_any_is_accepted(function: Any) -> None:
    assert Dibs("memory:").task(function).queue.name == f"{function.__module__}.{function.__name__}"


# -- Unions with a model of pydantic whose JSON is a single value, which looks like a value of another type


class Celsius(RootModel[float]): ...


async def heat(degrees: Celsius | float) -> str:
    return type(degrees).__name__


@pytest.mark.parametrize(("given", "arrived"), [(Celsius(20.5), "Celsius"), (20.5, "float")])
async def test_a_root_model_and_a_plain_value_arrive_as_given(given: Celsius | float, arrived: str) -> None:
    async with Dibs("memory:") as app:
        ticket = await app.task(heat).enqueue(given)
        await app.work(until="empty")

        assert arrived == await ticket.result()
