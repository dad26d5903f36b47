"""Functions that cannot be handlers, and the default names of queues."""

from __future__ import annotations

import functools
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest

from dibs import BadHandler
from dibs.client.calls.handler_registry import check_function, default_queue_name
from tests.client import handlers
from tests.client.handlers import Crop


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
