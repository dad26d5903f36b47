"""An application whose tasks the dashboard shows."""

from __future__ import annotations

from dibs import Dibs

app = Dibs("memory:")


@app.task(queue="clean", every="2h")
async def clean() -> None: ...


@app.task(queue="thumbs")
async def thumbnail(path: str, width: int = 200, tags: list[str] | None = None) -> str:
    """Make a small picture.

    The picture is square.
    """
    return path


@app.task(queue="any-call")
async def any_call(*args: int) -> None: ...
