"""Hooks of msgspec: how a value of a type that msgspec does not know is encoded and decoded.

A module that only some programs import (pathlib, pydantic, numpy, ipaddress) is never imported here: if it is
not in `sys.modules`, no value and no type hint can be of its types.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Iterable, KeysView, Reversible, ValuesView
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from types import ModuleType
from typing import Any, Final, get_args, get_origin

import msgspec

from dibs.model.plain_values import to_plain

#: Types that are sent as a list, with the function that makes one from the decoded list.
_LISTS: Final[dict[Any, Callable[[Any], Any]]] = {
    deque: deque,
    Iterable: list,
    Container: list,
    Reversible: list,
}
#: Types that are sent as an object. msgspec encodes them itself, because they are subclasses of dict.
_DICTS: Final[dict[Any, Callable[[Any], Any]]] = {Counter: Counter, OrderedDict: OrderedDict}
#: Base class -> the function that copies an instance of a subclass to the base class. msgspec encodes these
#: classes and refuses their subclasses, such as those of pandas and freezegun. `datetime` stands before
#: `date`, its own base class.
_STANDARD_BASES: Final[dict[type, Callable[[Any], Any]]] = {
    datetime: lambda value: datetime.combine(value.date(), value.timetz()),
    date: lambda value: date(value.year, value.month, value.day),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    Decimal: Decimal,
}
_PLAIN_BASES: Final = (str, bytes, int, float)
#: Types of pydantic without instances, with the class of their values. msgspec accepts only instances.
_PYDANTIC_NAMES: Final[dict[str, Any]] = {
    **dict.fromkeys(("AwareDatetime", "NaiveDatetime", "PastDatetime", "FutureDatetime"), datetime),
    **dict.fromkeys(("PastDate", "FutureDate"), date),
    **dict.fromkeys(("IPvAnyAddress", "IPvAnyInterface", "IPvAnyNetwork", "ImportString", "Json"), object),
    "EmailStr": str,
}
_PYDANTIC_MODULES: Final = ("pydantic.types", "pydantic.networks")


def enc_hook(value: Any) -> Any:
    """Return a value of a type that msgspec does not encode as one that msgspec encodes.

    Raises TypeError for a type without a plain form.
    """
    # __class__, because a proxy, such as a lazy text of Django, reports there the class that it stands for.
    return _encoder(value.__class__, sys.modules.get("pydantic"))(value)


def dec_hook(kind: Any, value: Any) -> Any:
    """Return decoded plain data as the type `kind`, for the types of `is_hooked`. Raises ValueError."""
    return _decoder(kind, sys.modules.get("pydantic"))(value)


# The functions for a type are found once. They may change when the program imports pydantic.
@lru_cache(maxsize=1024)
def _encoder(kind: type, _imported: ModuleType | None, /) -> Callable[[Any], Any]:
    if issubclass(kind, _text_types()):
        return str
    if issubclass(kind, (deque, range, KeysView, ValuesView)):
        return list
    if has_pydantic_schema(kind):
        return _pydantic().find_encoder(kind)  # type: ignore[no-any-return]
    return next((make for base, make in _STANDARD_BASES.items() if issubclass(kind, base)), to_plain)


@lru_cache(maxsize=1024)
def _decoder(kind: Any, _imported: ModuleType | None, /) -> Callable[[Any], Any]:
    if kind is object:
        return _unchanged
    origin = get_origin(kind) or kind
    if origin in _LISTS:
        return _make_from(_LISTS[origin], list[get_args(kind) or Any])  # type: ignore[misc]
    if origin in _DICTS:
        return _make_from(_DICTS[origin], _dict_type(origin, get_args(kind)))
    if not is_hooked(kind):
        raise NotImplementedError(f"dibs cannot decode the type {kind!r}")
    if issubclass(origin, _text_types()):
        return _make_from(kind, str)
    if has_pydantic_schema(kind):
        return _pydantic().find_decoder(kind)  # type: ignore[no-any-return]
    return _make_from(kind, next(base for base in _PLAIN_BASES if issubclass(kind, base)))


def _make_from(make: Callable[[Any], Any], plain: Any) -> Callable[[Any], Any]:
    """Return a function that converts data to the type `plain` and passes it to `make`."""
    return lambda value: make(_convert(value, plain))


def is_hooked(kind: Any) -> bool:
    """Return whether dec_hook decodes the type, which msgspec does not know."""
    if kind is object or (get_origin(kind) or kind) in (*_LISTS, *_DICTS):
        return True
    return isinstance(kind, type) and (
        issubclass(kind, (*_text_types(), *_PLAIN_BASES)) or has_pydantic_schema(kind)
    )


def value_class(kind: Any) -> Any:
    """Return the class of the values of a type: datetime for pydantic's AwareDatetime, else `kind` itself."""
    module = getattr(kind, "__module__", "")
    return _PYDANTIC_NAMES.get(kind.__name__, kind) if module in _PYDANTIC_MODULES else kind


def has_pydantic_schema(kind: Any) -> bool:
    """Return whether pydantic is imported and the type has a method that returns its pydantic schema."""
    return "pydantic" in sys.modules and hasattr(kind, "__get_pydantic_core_schema__")


def _unchanged(value: Any) -> Any:
    return value


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=dec_hook, str_keys=True)


def _dict_type(origin: Any, arguments: tuple[Any, ...]) -> Any:
    key, value = (*arguments, Any, Any)[:2]
    return dict[key, int] if origin is Counter else dict[key, value]  # type: ignore[valid-type]


def _text_types() -> tuple[type, ...]:
    """Return the types of paths and IP addresses that may have values; they are sent as text."""
    paths, addresses = sys.modules.get("pathlib"), sys.modules.get("ipaddress")
    found: tuple[type, ...] = () if paths is None else (paths.PurePath,)
    if addresses is None:
        return found
    # IPv4Interface is a subclass of IPv4Address, and IPv6Interface of IPv6Address.
    versions = (addresses.IPv4Address, addresses.IPv4Network, addresses.IPv6Address, addresses.IPv6Network)
    return (*found, *versions)


def _pydantic() -> Any:
    from dibs.client.options import pydantic_values  # noqa: PLC0415 - imports pydantic, which is optional

    return pydantic_values
