"""The jobs of all web applications in this folder. $DIBS_URL names their storage."""

from __future__ import annotations

from dibs import Dibs

app = Dibs()


@app.task(timeout=30)
def double(n: int) -> int:
    return n * 2


#: Enqueues `double` and waits for its result, for at most 30 seconds.
doubled = double.options(wait=30)
