"""The values in the tables of types arrive as the tables say, in each place of a signature."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from datetime import date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dibs import BadHandler, Dibs, JsonSerde, MessagePackSerde, Refused, Serde
from dibs.client.calls.signature import CallSignature
from tests.client import handlers
from tests.client.calls.pydantic_type_table import NUMPY_ROWS, PYDANTIC_ROWS, Login
from tests.client.calls.type_runs import RECEIVED, by_position, changed, declare, make_function
from tests.client.calls.type_table import ANY_ROWS, NOON, REFUSED, ROWS, Circle, Point
from tests.suites import require

PROJECT = Path(__file__).parents[3]
SERDES: list[Serde] = [JsonSerde(), MessagePackSerde()]


@pytest.mark.long
@pytest.mark.parametrize("serde", SERDES, ids=lambda serde: serde.name)
async def test_values_arrive_as_the_types_of_their_hints(serde: Serde) -> None:
    async with Dibs("memory:") as app:
        trials = declare(app, serde, [*ROWS, *PYDANTIC_ROWS, *NUMPY_ROWS])

        assert [] == await changed(app, trials)


async def test_values_without_a_type_hint_arrive_as_json_types() -> None:
    async with Dibs("memory:") as app:
        trials = declare(app, JsonSerde(), ANY_ROWS, ["by position"])

        assert [] == await changed(app, trials)


WITHOUT_PYDANTIC = """
import sys
for name in ("pydantic", "pydantic_core", "annotated_types"):
    sys.modules[name] = None
import asyncio
from dibs import BadHandler, Dibs, JsonSerde
from tests.client.calls.type_runs import by_position, changed, declare, make_function
from tests.client.calls.type_table import ROWS

async def main():
    async with Dibs("memory:") as app:
        trials = declare(app, JsonSerde(), ROWS, ["by position", "in a list", "in a dataclass"])
        print(len(trials), await changed(app, trials))
        try:
            app.task(make_function(by_position, list[int] | list[str]))
        except BadHandler as error:
            print(error)

asyncio.run(main())
"""


def test_without_pydantic_only_types_that_need_it_are_refused() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYDANTIC], cwd=PROJECT, capture_output=True, text=True, check=False
    )

    assert (f"{len(ROWS) * 3} []", "") == (run.stdout.partition("\n")[0], run.stderr)
    assert "'value' cannot be sent. list[int] | list[str]: " in run.stdout
    assert "pydantic may have one, but is not installed" in run.stdout


@pytest.mark.parametrize("hint", REFUSED, ids=str)
def test_a_type_that_cannot_be_sent_is_refused_where_the_task_is_declared(hint: Any) -> None:
    with pytest.raises(BadHandler, match="the type of the parameter 'value' cannot be sent"):
        Dibs("memory:").task(make_function(by_position, hint))


def test_a_serde_of_the_application_decides_which_types_it_knows() -> None:
    class Pickled:
        name = "pickled"

        def encode(self, value: Any) -> bytes:
            return pickle.dumps(value)

        def decode(self, raw: bytes, type: Any = Any) -> Any:
            return pickle.loads(raw)

    call, serde = CallSignature(make_function(by_position, range)), Pickled()

    assert ((range(3),), {}) == call.decode_arguments(serde, call.encode_arguments(serde, (range(3),), {}))


def test_a_type_that_cannot_be_sent_is_allowed_for_a_default_that_no_call_passes() -> None:
    call = CallSignature(handlers.with_connection)

    assert b'{"args":[1],"kwargs":{}}' == call.encode_arguments(JsonSerde(), (1,), {})
    with pytest.raises(BadHandler, match="'connection' cannot be sent"):
        call.encode_arguments(JsonSerde(), (1, range(3)), {})


async def test_a_hint_that_does_not_exist_is_refused_when_a_worker_starts() -> None:
    async with Dibs("memory:") as app:
        app.task(handlers.unresolved)

        with pytest.raises(BadHandler, match=r"'Nowhere'.*TYPE_CHECKING"):
            await app.work(until="empty", handle_signals=False)


@pytest.mark.parametrize("name", ["with_self", "with_self_by_name"])
def test_a_parameter_named_self_is_refused(name: str) -> None:
    with pytest.raises(BadHandler, match=r"'self'.*rename"):
        Dibs("memory:").task(getattr(handlers, name))


def test_an_invalid_model_is_refused_without_its_values() -> None:
    call, args = CallSignature(make_function(by_position, Login)), ({"user": "sword" + "fish"},)

    with pytest.raises(Refused, match="password: Field required") as refused:
        call.encode_arguments(JsonSerde(), args, {})

    shown = "".join(traceback.format_exception(refused.value))
    assert "swordfish" not in shown


def test_payloads_of_other_programs_need_no_name_of_the_type() -> None:
    """A union takes a value of another program if one of its types does; text stays text."""
    call = CallSignature(make_function(by_position, UUID | date | Point | None))

    assert date(2026, 1, 31) == call.decode_arguments(JsonSerde(), b'{"args":["2026-01-31"]}')[0][0]
    assert Point(1) == call.decode_arguments(JsonSerde(), b'{"args":[{"x":1}]}')[0][0]


def test_a_stored_value_of_one_class_fits_a_union_that_begins_with_it() -> None:
    stored = CallSignature(make_function(by_position, Point)).encode_arguments(JsonSerde(), (Point(1),), {})
    wider = CallSignature(make_function(by_position, Point | Circle))

    assert ((Point(1),), {}) == wider.decode_arguments(JsonSerde(), stored)


async def test_data_and_result_of_a_queues_handler_are_converted() -> None:
    async with Dibs("memory:") as app:
        queue = app.queue("q")
        queue.handler(make_function(by_position, str | datetime))
        await queue.enqueue(NOON)

        await app.work(until="empty", handle_signals=False)

    assert NOON == RECEIVED.pop("q")


def test_the_tables_of_the_docs_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python tools/print_types.py` writes them."""
    require("numpy")
    monkeypatch.syspath_prepend(PROJECT / "tools")
    import print_types  # type: ignore[import-not-found]

    stands = (PROJECT / "docs/reference/values.md").read_text("utf-8")

    assert print_types.page(stands) == stands
