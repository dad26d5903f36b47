"""The numbers of a ColumnQuery, as Arrow columns.

One column of bytes holds them row by row, so the driver copies a row of numbers at once. Strided copies and
the change of the byte order are done in C, without numpy, which is no dependency.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dibs.storage.column_queries import NULL_NUMBER, NUMBERS_COLUMN

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
