"""The parameters and rows of the query `serve`, which runs the steps of queues in one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from dibs.model.limits import Limits
from dibs.model.requests import QueueStep
from dibs.storage.postgres.codec.parameters import Params, encode_settlements
from dibs.storage.postgres.codec.positions import RowPositions
from dibs.storage.postgres.codec.rows import Row

#: The columns of settle.
SETTLE_COLUMNS: Final = 2
#: The column of a row that is NULL in the rows of settle.
_TIME_OF_CLAIM: Final = 3


def encode_steps(
    steps: Sequence[QueueStep], most: int, limits: Limits, positions: RowPositions
) -> tuple[Params, Sequence[Sequence[str]]]:
    """Return the parameters of serve, and for each step the reasons to refuse its settlements.

    No claim returns more than `most` jobs.
    """
    total = sum(len(step.settlements) for step in steps)
    encoded = [encode_settlements(step.settlements, limits, positions, in_call=total) for step in steps]
    batches = [params for params, _ in encoded]
    return {
        "queues": [step.queue for step in steps],
        "lasts": list(accumulate(len(params["ids"]) for params in batches)),
        "plains": [params["plain"] for params in batches],
        "limits": [min(step.limit, most) for step in steps],
        "ids": [id for params in batches for id in params["ids"]],
        "fences": [fence for params in batches for fence in params["fences"]],
        "kinds": _join(batches, "kinds", "completed"),
        "results": _join(batches, "results", None),
        "details": _join(batches, "details", None),
        # The positions of a step are used if all of them are known.
        "spots": _join(batches, "spots", None),
    }, [reasons for _, reasons in encoded]


def _join(batches: Sequence[Params], field: str, default: str | None) -> list[Any] | None:
    """Return the arrays of a field as one; None (SQL NULL) if all of them are None."""
    if all(params[field] is None for params in batches):
        return None
    return [
        value
        for params in batches
        for value in (params[field] if params[field] is not None else [default] * len(params["ids"]))
    ]


class StepRows(NamedTuple):
    """The rows of one step of a `serve`."""

    #: The columns of settle: NULL in both if all settlements are done.
    settled: Row
    #: The rows of claim. The last one of a step that claims nothing has only the time.
    claimed: Sequence[Row]


def rows_by_step(rows: Iterable[Row]) -> Mapping[int, StepRows]:
    """Return the rows of each step, by the number of the step from 1."""
    settled: dict[int, Row] = {}
    claimed: defaultdict[int, list[Row]] = defaultdict(list)
    for step, *columns in rows:
        if columns[_TIME_OF_CLAIM] is None:
            settled[step] = columns[:SETTLE_COLUMNS]
        else:
            claimed[step].append(columns[SETTLE_COLUMNS:])
    return {step: StepRows(settled.get(step, (None, None)), found) for step, found in claimed.items()}
