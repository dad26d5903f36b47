"""An app for workers on a storage that --url or `app.using` names."""

from __future__ import annotations

from dibs import Dibs

app = Dibs()


@app.task(max_retries=0)
def double(number: int) -> int:
    return 2 * number
