"""The types of columns in Arrow. schemas.py also serves programs without pyarrow, so they are apart."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

#: Type of a column in schemas.py -> its type in Arrow.
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "texts": pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
}
