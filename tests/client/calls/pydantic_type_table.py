"""Rows as in type_table.py, for type hints that need pydantic, and for numbers of numpy."""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from typing import Annotated, Any, Literal

import pydantic
from annotated_types import Ge
from pydantic import BaseModel, Field, RootModel, SecretBytes, SecretStr

from tests.client.calls.type_table import Row
from tests.suites import is_missing


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    lives: int = 1


class Aliased(BaseModel):
    number: int = Field(0, alias="no")


class TwoAliases(BaseModel):
    number: int = Field(0, validation_alias="num", serialization_alias="no")


class Login(BaseModel):
    user: str
    password: SecretStr
    old: dict[str, list[SecretStr]] = {}
    address: TwoAliases | None = None


class Tokens(RootModel[list[SecretStr]]):
    pass


@pydantic.dataclasses.dataclass
class Account:
    number: Annotated[int, Field(ge=3, alias="no")]
    password: SecretStr


SECRET, OLD_SECRET = SecretStr("swordfish"), SecretStr("trout")
TWO_ALIASES = TwoAliases.model_validate({"num": 3})
LOGIN = Login(user="ada", password=SECRET, old={"2025": [OLD_SECRET]}, address=TWO_ALIASES)

PYDANTIC_ROWS: list[Row] = [
    Row(Cat, Cat(lives=3)),
    Row(Aliased, Aliased(no=3)),
    Row(TwoAliases, TWO_ALIASES),
    Row(SecretStr, SECRET),
    Row(SecretBytes, SecretBytes(b"swordfish")),
    Row(pydantic.Secret[date], pydantic.Secret[date](date(2026, 1, 31))),
    Row(Login, LOGIN),
    Row(Tokens, Tokens([OLD_SECRET])),
    Row(Account, Account(no=3, password=OLD_SECRET)),  # type: ignore[call-arg]
    Row(pydantic.HttpUrl, pydantic.HttpUrl("https://example.org/")),
    Row(Annotated[int, Field(ge=3)], 3),
    Row(Annotated[bytes, Ge(b"a")], b"\xff"),
    Row(pydantic.PositiveInt, 3),
    Row(Cat | Dog, Dog()),
    Row(Annotated[Cat | Dog, Field(discriminator="kind")], Dog()),
    Row(Cat | str, Cat()),
    Row(str | SecretStr, OLD_SECRET),
    Row(defaultdict[str, list[int]], defaultdict(list, a=[1])),
    Row(list[int] | list[str], ["a"]),
]


def numpy_rows() -> list[Row]:
    """Return the rows for numbers of numpy; none if numpy is not installed."""
    if is_missing("numpy"):
        return []
    import numpy as np

    return [
        Row(int, np.int64(3), 3),
        Row(float, np.float64(1.5), 1.5),
        Row(float, np.float32(0.5), 0.5),
        Row(hint=bool, sent=np.bool_(1), arrives=True),
        Row(Any, np.uint8(3), 3),
    ]


NUMPY_ROWS = numpy_rows()
