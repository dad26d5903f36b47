"""The function `replay`, which enqueues failed jobs again after a transformation of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from dibs.client.connection.storage_handle import resolve_url
from dibs.client.options.arguments import Seconds, duration_ms
from dibs.errors import Refused
from dibs.model.requests import Reject, SettingsPatch
from dibs.spark.connection import StorageConnection, run_in_thread, shared_url
from dibs.spark.dataframes import enqueue
from dibs.spark.java import require_pyspark
from dibs.spark.write_report import WriteReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A week: a pipeline that fails on a Friday is repeated on Monday.
WEEK: Final = 7 * 24 * 3600
#: Partitions of the write, a fixed number: a request key holds the number of its partition.
PARTITIONS: Final = 16
#: Columns of `outcomes` that a job keeps when it is enqueued again.
_COLUMNS: Final = ("id", "payload", "attributes", "priority", "key")


def replay(
    failed: DataFrame,
    *,
    run: str,
    fix: Callable[[DataFrame], DataFrame] | None = None,
    url: str | None = None,
    remember: Seconds = WEEK,
) -> list[WriteReport]:
    """Enqueue failed jobs again, and return a report for each queue.

    `failed` has rows of the table `outcomes`, with the columns queue, id, payload, attributes, priority and
    key.
    `fix` is called with the DataFrame of one queue, and returns one with the columns of `enqueue`; without
    `fix`, the jobs are enqueued as they were. Each keeps its id. A live job and a completed outcome of the id
    stay unchanged.

    With the same `run`, a call that is repeated adds no job twice for `remember` seconds, a week by default:
    the setting `request_key_age` of each queue is raised to this, if it is shorter. Raise Refused for
    missing columns, and for rows whose outcome did not keep the data of its job.
    """
    require_pyspark()
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    storage_url = shared_url(resolve_url(url))
    age = duration_ms("remember", remember)
    queues = _queues_of(failed)
    run_in_thread(lambda: _raise_key_age(storage_url, queues, age))
    reports = []
    for queue in queues:
        rows = failed.where(f.col("queue") == queue).select(*_COLUMNS)
        mended = rows if fix is None else fix(rows)
        # The same id always goes to the same partition, also if the source has other partitions next time.
        ordered = mended.repartition(PARTITIONS, "id")
        reports.append(enqueue(ordered, queue, url=storage_url, on_conflict=Reject(), run=run))
    return reports


def _queues_of(failed: DataFrame) -> list[str]:
    """Return the queues of the rows. Raise Refused if a column or a payload is missing."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    if missing := [name for name in ("queue", *_COLUMNS) if name not in failed.columns]:
        raise Refused(f"failed has no column {', '.join(missing)}; read the table outcomes", field="failed")
    lost = f.count_if(f.col("payload").isNull()).alias("lost")
    found = sorted((row.queue, row.lost) for row in failed.groupBy("queue").agg(lost).collect())
    for queue, number in found:
        if number:
            raise Refused(
                f"{number} outcomes of queue {queue!r} have no payload, as the retention keeps them without "
                "data. Set keep_payload of the retention, or leave these rows out",
                field="failed",
            )
    return [queue for queue, _ in found]


def _raise_key_age(url: str, queues: Sequence[str], age: int) -> None:
    """Raise the setting request_key_age of the queues to `age` ms, where it is shorter."""
    with StorageConnection(url) as connection:
        for info in connection.run(connection.storage.queues()):
            if info.name in queues and info.settings.request_key_age < age:
                patch = SettingsPatch(request_key_age=age)
                connection.run(connection.storage.configure(info.name, patch))
