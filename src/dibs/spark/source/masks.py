"""The values of a column that pass a predicate of a read. This module does not need pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from dibs.spark.source.pushdown import Predicate

_COMPARISONS: Final = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}


def passing_mask(predicate: Predicate, values: pa.Array) -> pa.Array:
    """Return for each value whether it passes; as in SQL, a comparison with null is false."""
    if predicate.operator_name == "IsNull":
        return values.is_null()
    if predicate.operator_name == "IsNotNull":
        return values.is_valid()
    if predicate.column.kind == "time":
        # A literal is a number of ms, which may have a fraction.
        values = pc.divide(values.cast(pa.int64()), 1000)
    if predicate.operator_name == "In":
        literals = [value for value in predicate.value if value is not None]
        found = [pc.equal(values, literal) for literal in literals]
        mask = found[0] if found else pa.repeat(False, len(values))  # noqa: FBT003
        for other in found[1:]:
            mask = pc.or_(mask, other)
    elif predicate.value is None:
        mask = pa.repeat(False, len(values))  # noqa: FBT003
    else:
        mask = _COMPARISONS[predicate.operator_name](values, predicate.value)
    return cast("pa.Array", pc.fill_null(mask, False))  # noqa: FBT003
