"""Arguments with nodes: from the call of a task to the plan, and from the plan to the payload of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from dibs.client.calls.bound_job import KeptCall
from dibs.client.calls.task_payload import TaskPayload, decode_task_payload
from dibs.client.options.serde import JSON, Serde
from dibs.errors import Refused
from dibs.flow.context import Node
from dibs.flow.plan import Argument, PlannedCall
from dibs.model.limits import LIMITS

#: Returns the number of a node of the flow. Raises Refused for a node of another flow.
NumberOf = Callable[[Node[Any]], int]
#: Returns the encoded result of a node.
ResultOf = Callable[[int], bytes]


class _RawPayload(msgspec.Struct):
    """The payload of a task in the default serde, with its arguments as they are encoded."""

    args: tuple[Raw, ...] = ()
    kwargs: dict[str, Raw] = {}


# -- from a call to the plan ---------------------------------------------------------------------------------


def has_node(value: Any) -> bool:
    """Return whether a value is a node, or a list, tuple or dict that contains one."""
    if isinstance(value, Node):
        return True
    if isinstance(value, (list, tuple)):
        return any(map(has_node, value))
    return isinstance(value, dict) and any(map(has_node, value.values()))


def plan_call(kept: KeptCall, first: Node[Any] | None, number_of: NumberOf) -> PlannedCall:
    """Return the arguments of a call with nodes. `first` is put before the other arguments.

    Raises Refused naming the parameter at fault.
    """
    args = kept.args if first is None else (first, *kept.args)
    planned = [
        _plan_argument(kept, name, value, number_of)
        for name, value in kept.signature.name_arguments(args, kept.kwargs)
    ]
    return PlannedCall(
        args=tuple(planned[: len(args)]), kwargs=dict(zip(kept.kwargs, planned[len(args) :], strict=True))
    )


def plan_payload(serde: Serde, payload: bytes, first: int) -> PlannedCall:
    """Return the arguments of an encoded call, after the result of the node `first`.

    Raises Refused, PayloadMismatch.
    """
    if serde is JSON:
        try:
            raw = msgspec.json.decode(payload, type=_RawPayload)
        except ValueError as error:
            raise Refused(f"a chain takes calls of tasks, and this payload is none: {error}") from error
        args = [Argument(json=one) for one in raw.args]
        kwargs = {name: Argument(json=one) for name, one in raw.kwargs.items()}
    else:
        values, named = decode_task_payload(serde, payload)
        args = [encoded_argument(serde, serde.encode(value)) for value in values]
        kwargs = {name: encoded_argument(serde, serde.encode(value)) for name, value in named.items()}
    return PlannedCall(args=(Argument(node=first), *args), kwargs=kwargs)


def encoded_argument(serde: Serde, raw: bytes) -> Argument:
    """Return an encoded value as an argument of the plan."""
    return Argument(json=Raw(raw)) if serde is JSON else Argument(base64=raw)


def _plan_argument(kept: KeptCall, name: str, value: Any, number_of: NumberOf) -> Argument:
    if not has_node(value):
        return encoded_argument(kept.serde, kept.signature.encode_argument(kept.serde, name, value))
    return _plan_container(kept, name, value, number_of, LIMITS.depth)


def _plan_container(kept: KeptCall, name: str, value: Any, number_of: NumberOf, depth: int) -> Argument:
    """Return a value that is, or contains, a node. `depth` is the number of levels that may follow."""
    if depth == 0:
        raise Refused(f"argument {name!r} is nested deeper than {LIMITS.depth} levels", field=name)
    if isinstance(value, Node):
        return Argument(node=number_of(value))
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, Node) for item in value):
            return Argument(nodes=tuple(map(number_of, value)))
        return Argument(
            items=tuple(_plan_container(kept, name, item, number_of, depth - 1) for item in value)
        )
    if isinstance(value, dict):
        return Argument(fields=_plan_fields(kept, name, value, number_of, depth - 1))
    try:
        return encoded_argument(kept.serde, kept.serde.encode(value))
    except (ValueError, TypeError) as error:
        raise Refused(
            f"argument {name!r} of {kept.signature.function.__name__}: {error}", field=name
        ) from error


def _plan_fields(
    kept: KeptCall, name: str, value: Mapping[Any, Any], number_of: NumberOf, depth: int
) -> dict[str, Argument]:
    for key in value:
        if not isinstance(key, str):
            raise Refused(
                f"argument {name!r} has the key {key!r:.60}; a dict that contains nodes has text as keys",
                field=name,
            )
    return {key: _plan_container(kept, name, item, number_of, depth) for key, item in value.items()}


# -- from the plan to a payload ------------------------------------------------------------------------------


def encode_call(
    call: PlannedCall, serde: Serde, result_of: ResultOf, serde_of: Callable[[int], Serde]
) -> bytes:
    """Return the payload of a call, with results in the places of nodes.

    `serde` is that of the node's queue, `serde_of` returns the serde of a result. Results in the default
    serde are copied into a payload in the default serde without decoding. Raises ValueError.
    """
    raw = serde is JSON and all(serde_of(parent) is JSON for parent in call.parents())

    def value_of(number: int) -> Any:
        result = result_of(number)
        return Raw(result) if raw else serde_of(number).decode(result)

    def build(argument: Argument) -> Any:
        return _build_value(argument, serde, value_of, raw=raw)

    args = list(map(build, call.args))
    kwargs = {name: build(one) for name, one in call.kwargs.items()}
    if raw:
        return _encode_json({"args": args, "kwargs": kwargs})
    return serde.encode(TaskPayload(args, kwargs))


_encode_json: Final = msgspec.json.Encoder().encode


def _build_value(argument: Argument, serde: Serde, value_of: Callable[[int], Any], *, raw: bool) -> Any:
    """Return an argument as a value. If `raw`, encoded parts of it are left as they are."""
    if isinstance(argument.json, Raw):
        return argument.json if raw else JSON.decode(bytes(argument.json))
    if isinstance(argument.base64, bytes):
        return serde.decode(argument.base64)
    if isinstance(argument.node, int):
        return value_of(argument.node)
    if isinstance(argument.nodes, tuple):
        return list(map(value_of, argument.nodes))
    if isinstance(argument.items, tuple):
        return [_build_value(item, serde, value_of, raw=raw) for item in argument.items]
    if isinstance(argument.fields, dict):
        return {name: _build_value(one, serde, value_of, raw=raw) for name, one in argument.fields.items()}
    raise ValueError("an argument of the plan has no value")
