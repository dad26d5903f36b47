"""Rows of Postgres that are read as Arrow columns, with all numbers of a row in one column.

One column of bytes holds the numbers row by row, so the driver copies a row of numbers at once. Strided
copies and the change of the byte order are done in C, without numpy, which is no dependency.

The rows never become Python objects, apart from the JSON texts. ADBC's driver for Postgres makes Arrow of the
binary COPY format in C++; psycopg would make a Python object of each value first.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from dibs.errors import StorageError
from dibs.model.error_text import summarize_exception
from dibs.model.job import Error as JobError
from dibs.model.wakeup import FLOW_ATTRIBUTE, flow_of
from dibs.spark.arrow_types import ARROW_TYPES
from dibs.spark.source.pushdown import Predicate
from dibs.spark.source.record_columns import NO_JSON, json_or_none, passing_mask, validate_json
from dibs.storage.abilities import NULL_NUMBER, NUMBERS_COLUMN, ColumnQuery

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcDatabase

_BYTES: Final = 8


def unpack_numbers(raw: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with a column of int64 for each of `names` in place of NUMBERS_COLUMN."""
    if not names:
        return raw
    kept = [name for name in raw.schema.names if name != NUMBERS_COLUMN]
    numbers = _number_columns(raw.column(NUMBERS_COLUMN), len(names))
    return pa.RecordBatch.from_arrays([*(raw.column(name) for name in kept), *numbers], [*kept, *names])


def _number_columns(packed: pa.BinaryArray, width: int) -> Iterator[pa.Array]:
    """Yield the columns of rows that have `width` numbers each."""
    _, offsets, data = packed.buffers()
    if not len(packed):
        yield from (pa.array([], pa.int64()) for _ in range(width))
        return
    first = memoryview(offsets).cast("i")[packed.offset]
    rows = memoryview(data)[first : first + len(packed) * width * _BYTES].cast("q")
    for position in range(width):
        yield _number_column(rows[position::width].tobytes())


def _number_column(raw: bytes) -> pa.Array:
    values = array("q", raw)
    if sys.byteorder == "little":
        values.byteswap()
    column = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
    missing = pc.equal(column, NULL_NUMBER)
    count = missing.true_count
    if not count:
        return column
    return pa.nulls(len(column), pa.int64()) if count == len(column) else pc.if_else(missing, None, column)


#: Columns of the tables -> the column of the storage that they are made of, if its name differs.
_RAW_COLUMNS: Final = {
    "payload_json": "payload",
    "result_json": "result",
    **dict.fromkeys(("error_type", "error_message", "error_traceback"), "error"),
    **dict.fromkeys(("origin_queue", "origin_id"), "origin"),
    "flow": "attributes",
}
#: Bytes of a batch, about. The driver's default of 16 MiB makes Java hold larger batches, and is no faster.
BATCH_BYTES: Final = 4 * 1024 * 1024

_attributes: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_error: Final = msgspec.json.Decoder(JobError).decode
_origin: Final = msgspec.json.Decoder(list[Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


def has_arrow_driver() -> bool:
    """Return whether the driver for reads as Arrow is installed."""
    return all(find_spec(name) is not None for name in ("adbc_driver_manager", "adbc_driver_postgresql"))


def storage_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of the storage that the columns `names` of a table are made of."""
    found = dict.fromkeys(_RAW_COLUMNS.get(name, name) for name in names if name != "queue")
    # A query has at least one column, also to count rows.
    return list(found) or ["id"]


def read_batches(query: ColumnQuery) -> Iterator[pa.RecordBatch]:
    """Run a query, and return its rows as Arrow. Raise StorageError if the driver cannot run it."""
    # The packages are optional. Their dbapi would import pandas and polars, which takes 0.6 s in each task.
    from adbc_driver_manager import AdbcConnection, AdbcStatement, Error  # noqa: PLC0415
    from adbc_driver_postgresql import StatementOptions  # noqa: PLC0415

    with ExitStack() as stack:
        try:
            connection = stack.enter_context(AdbcConnection(_database(query.connection)))
            statement = stack.enter_context(AdbcStatement(connection))
            statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
            statement.set_sql_query(query.sql)
            stream, _ = statement.execute_query()
        except Error as error:
            raise StorageError(f"the Arrow driver cannot run a query: {summarize_exception(error)}") from None
        reader = pa.RecordBatchReader._import_from_c(stream.address)  # noqa: SLF001 - as ADBC does
        return _batches(reader, query.numbers, stack.pop_all())


@lru_cache(4)
def _database(connection: str) -> AdbcDatabase:
    """Return the driver's types of a database, read at the first call. No connection stays open.

    Reading them takes 24 ms of CPU here and 10 ms on the server, and Spark runs many tasks in a process.
    """
    from adbc_driver_postgresql import connect  # noqa: PLC0415 - see read_batches

    database: AdbcDatabase = connect(connection)
    return database


def _batches(
    reader: pa.RecordBatchReader, numbers: Sequence[str], opened: ExitStack
) -> Iterator[pa.RecordBatch]:
    with opened, reader:
        for raw in reader:
            yield unpack_numbers(raw, numbers)


def to_table_batch(
    queue: str, raw: pa.RecordBatch, schema: pa.Schema, predicates: Sequence[Predicate]
) -> pa.RecordBatch:
    """Return the rows of a raw batch that pass the predicates, with the columns of `schema`."""
    made: dict[str, pa.Array] = {}

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name not in made:
            made[name] = _make_column(name, kind, queue, raw)
        return made[name]

    for predicate in predicates:
        mask = passing_mask(predicate, column(predicate.column.name, ARROW_TYPES[predicate.column.kind]))
        raw = raw.filter(mask)
        made = {name: array.filter(mask) for name, array in made.items()}
    return pa.RecordBatch.from_arrays([column(field.name, field.type) for field in schema], schema=schema)


def _make_column(name: str, kind: pa.DataType, queue: str, raw: pa.RecordBatch) -> pa.Array:
    if name == "queue":
        return pa.repeat(pa.scalar(queue, kind), raw.num_rows)
    source = raw.column(_RAW_COLUMNS.get(name, name))
    if name in _FROM_JSON:
        # Most rows have no error, origin or attributes.
        if source.null_count == len(source):
            return pa.nulls(len(source), kind)
        if name == "attributes" and not source.null_count and pc.all(pc.equal(source, "{}")).as_py():
            return _empty_maps(len(source), kind)
        if name == "flow" and not pc.any(pc.match_substring(source, FLOW_ATTRIBUTE)).as_py():
            return pa.nulls(len(source), kind)
        convert = _FROM_JSON[name]
        return pa.array([None if text is None else convert(text) for text in source.to_pylist()], kind)
    if name.endswith("_json"):
        return _json_column(source, kind)
    if pa.types.is_timestamp(kind):
        # The largest time of the contract, 2**53 ms, fits into 64 bits as microseconds.
        return source.cast(pa.timestamp("ms", tz="UTC")).cast(kind)
    return source.cast(kind)


def _empty_maps(count: int, kind: pa.DataType) -> pa.Array:
    starts = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
    none = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(starts, none, none).cast(kind)


def _json_column(source: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return binary values as texts, and null for values that are no JSON."""
    try:
        # Nearly always all values are JSON. Then Arrow copies their bytes, and no text becomes an object.
        deque(map(validate_json, source.drop_null().to_pylist()), maxlen=0)
        return source.cast(kind)
    except (*NO_JSON, pa.ArrowInvalid):
        return pa.array([json_or_none(value) for value in source.to_pylist()], kind)


def _attribute_items(text: str) -> list[tuple[str, str]] | None:
    return [(name, bytes(raw).decode()) for name, raw in _attributes(text).items()]


def _flow(text: str) -> str | None:
    return flow_of({name: bytes(raw) for name, raw in _attributes(text).items()})


def _error_part(name: str) -> Callable[[str], Any]:
    return lambda text: getattr(_error(text), name)


def _origin_part(index: int) -> Callable[[str], Any]:
    return lambda text: _text(bytes(_origin(text)[index]))


#: Column -> the function that makes its value of a JSON text of the storage.
_FROM_JSON: Final[dict[str, Callable[[str], Any]]] = {
    "attributes": _attribute_items,
    "flow": _flow,
    "error_type": _error_part("type"),
    "error_message": _error_part("message"),
    "error_traceback": _error_part("traceback"),
    "origin_queue": _origin_part(0),
    "origin_id": _origin_part(1),
}
