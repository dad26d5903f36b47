"""Typed columns for `read`: payloads and results by a schema or a task, and attributes as plain texts.

Spark computes the typed columns, so they also work for streams and for warehouses. A value that does not fit
its type is null, as in `from_json`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_type_hints

import msgspec
from attrs import frozen
from msgspec import inspect as hints

from dibs.client.task import Task
from dibs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    Schema = str | DataType | Task[..., Any]

#: The type of a value without a simpler type: a string with its JSON text.
TEXT: Final = "string"

_SCALARS: Final[dict[type[hints.Type], str]] = {
    hints.BoolType: "boolean",
    hints.IntType: "bigint",
    hints.FloatType: "double",
    hints.BytesType: "binary",
    hints.ByteArrayType: "binary",
    hints.DateTimeType: "timestamp",
    hints.DateType: "date",
    hints.DecimalType: "decimal(38,18)",
}
_ARRAYS: Final = (hints.ListType, hints.SetType, hints.FrozenSetType, hints.VarTupleType)
_OBJECTS: Final = (hints.StructType, hints.DataclassType, hints.TypedDictType)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def spark_type(hint: Any) -> str:
    """Return the Spark type of a type hint.

    Objects with named fields become a struct, lists and sets an array, and dicts a map. A hint without such
    a type, for example a union of two classes or a class of your own, becomes `string`, with the JSON text
    of the value.
    """
    try:
        return _ddl(hints.type_info(hint), ())
    except (TypeError, NameError, msgspec.ValidationError):
        return TEXT


def parameter_types(function: Callable[..., Any]) -> dict[str, tuple[int | None, str]]:
    """Return the parameters of a function: name -> position (None: only by name) and Spark type.

    `*args` and `**kwargs` are left out.
    """
    resolved = get_type_hints(function)
    found: dict[str, tuple[int | None, str]] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in _VARIADIC:
            continue
        by_position = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        kind = spark_type(resolved.get(parameter.name, Any))
        found[parameter.name] = (position if by_position else None, kind)
    return found


def result_type(function: Callable[..., Any]) -> str:
    """Return the Spark type of a function's result."""
    return spark_type(get_type_hints(function).get("return", Any))


def _ddl(kind: hints.Type, inside: tuple[type, ...]) -> str:
    """Return the DDL of a type. `inside` are the classes around it: a struct cannot contain itself."""
    if (scalar := _SCALARS.get(type(kind))) is not None:
        return scalar
    if isinstance(kind, _ARRAYS):
        return f"array<{_ddl(kind.item_type, inside)}>"
    if isinstance(kind, hints.DictType):
        return f"map<string,{_ddl(kind.value_type, inside)}>"
    if isinstance(kind, _OBJECTS):
        return _object_ddl(kind, inside)
    if isinstance(kind, hints.UnionType):
        return _union_ddl(kind, inside)
    if isinstance(kind, (hints.LiteralType, hints.EnumType)):
        return _values_ddl(kind.values if isinstance(kind, hints.LiteralType) else kind.cls)
    return TEXT


def _object_ddl(
    kind: hints.StructType | hints.DataclassType | hints.TypedDictType, inside: tuple[type, ...]
) -> str:
    if kind.cls in inside or not kind.fields or getattr(kind, "array_like", False):
        return TEXT
    around = (*inside, kind.cls)
    fields = (f"{quote_name(field.encode_name)}: {_ddl(field.type, around)}" for field in kind.fields)
    return f"struct<{', '.join(fields)}>"


def _union_ddl(kind: hints.UnionType, inside: tuple[type, ...]) -> str:
    found = {_ddl(part, inside) for part in kind.types if not isinstance(part, hints.NoneType)}
    if found == {"bigint", "double"}:
        return "double"
    return found.pop() if len(found) == 1 else TEXT


def _values_ddl(values: Iterable[Any]) -> str:
    plain = [getattr(value, "value", value) for value in values]
    return "bigint" if all(type(value) is int for value in plain) else TEXT


def quote_name(name: str) -> str:
    """Return the name of a field as Spark's DDL quotes it."""
    return f"`{name.replace('`', '``')}`"


AttributeForm = Literal["json", "text"]

#: A task's payload: the arguments by position and by name, each a text or the JSON of another value.
_CALL: Final = "struct<args: array<string>, kwargs: map<string,string>>"


@frozen(kw_only=True)
class TypedColumns:
    """The columns to add to a table."""

    payload_schema: Schema | None = None
    result_schema: Schema | None = None
    attributes: AttributeForm = "json"

    def check(self, table: str, names: Collection[str]) -> None:
        """Raise Refused for an invalid schema, and for a table without the column that it is about.

        `names` are the columns of the table.
        """
        for option, schema, needed in (
            ("payload_schema", self.payload_schema, "payload"),
            ("result_schema", self.result_schema, "result"),
        ):
            if schema is None:
                continue
            if needed not in names:
                raise Refused(f"table {table} has no {needed}, so it takes no {option}", field=option)
            if not isinstance(schema, Task):
                _data_type(option, schema)
        if self.attributes not in ("json", "text"):
            raise Refused(f"attributes is {self.attributes!r}; it must be json or text", field="attributes")
        if self.attributes == "text" and "attributes" not in names:
            raise Refused(f"table {table} has no attributes", field="attributes")

    def sources(self) -> Iterator[str]:
        """Yield the columns that the added columns are made of."""
        if self.payload_schema is not None:
            yield "payload"
        if self.result_schema is not None:
            yield "result"

    def add(self, frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
        """Return a frame with `columns`, by default all, and the added columns behind them."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

        added: dict[str, Column] = {}
        if self.payload_schema is not None:
            text = _text_of("payload")
            if isinstance(self.payload_schema, Task):
                added["arguments"] = _arguments(text, self.payload_schema)
            else:
                added["data"] = _parse(text, _data_type("payload_schema", self.payload_schema))
        if self.result_schema is not None:
            schema = self.result_schema
            kind = result_type(schema.function) if isinstance(schema, Task) else schema
            added["result_data"] = _parse(_text_of("result"), _data_type("result_schema", kind))
        kept = frame.columns if columns is None else [*columns]
        if self.attributes == "text" and "attributes" in kept:
            frame = frame.withColumn("attributes", f.transform_values("attributes", _plain_text))
        if not added and kept == frame.columns:
            # A projection of all columns costs Spark 30 ms of CPU to plan and to compile.
            return frame
        return frame.withColumns(added).select(*kept, *added)


def _data_type(option: str, schema: str | DataType) -> DataType:
    from pyspark.errors import ParseException  # noqa: PLC0415 - takes a second
    from pyspark.sql.types import DataType  # noqa: PLC0415

    if isinstance(schema, DataType):
        return schema
    try:
        return DataType.fromDDL(schema)
    except ParseException as error:
        reason = str(error).strip().partition("\n")[0]
        raise Refused(
            f'{option} is {schema!r:.80}; write it as DDL such as "to string, lines array<int>": {reason}',
            field=option,
        ) from None


def _text_of(column: str) -> Column:
    """Return a column of bytes as text; null for bytes that are not UTF-8."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    return f.when(f.is_valid_utf8(f.col(column).cast("string")), f.col(column).cast("string"))


def _parse(text: Column, kind: DataType | str) -> Column:
    """Return a JSON text as a value of any type. `from_json` itself takes only structs, arrays and maps."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    schema = f"value {kind}" if isinstance(kind, str) else StructType([StructField("value", kind)])
    return f.from_json(f.concat(f.lit('{"value":'), text, f.lit("}")), schema)["value"]


def _arguments(text: Column, task: Task[..., Any]) -> Column:
    """Return a struct with the argument of each parameter; null for a payload that is no call."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    call = _parse(text, _CALL)
    parameters = parameter_types(task.function)
    if not parameters:
        raise Refused(f"task {task.function.__name__} has no parameters", field="payload_schema")
    fields = []
    for name, (position, kind) in parameters.items():
        value = f.try_element_at(call["kwargs"], f.lit(name))
        if position is not None:
            value = f.coalesce(f.get(call["args"], f.lit(position)), value)
        fields.append(_convert(value, kind).alias(name))
    return f.when(call.isNotNull(), f.struct(*fields))


def _convert(text: Column, kind: str) -> Column:
    """Return an argument: a text, or the JSON of another value, converted to the type of its parameter."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    if kind == "binary":
        return f.try_to_binary(text, f.lit("base64"))
    if kind == "timestamp":
        return f.try_to_timestamp(text)
    if kind.startswith(("struct<", "array<", "map<")):
        return _parse(text, kind)
    return text.try_cast(kind)


def _plain_text(_name: Column, json: Column) -> Column:
    """Return the text of a JSON string, and the JSON text of any other value."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    unquoted = f.get_json_object(f.concat(f.lit("["), json, f.lit("]")), "$[0]")
    return f.when(json.startswith('"'), f.coalesce(unquoted, json)).otherwise(json)
