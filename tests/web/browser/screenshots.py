"""The screenshots of the documentation: `python -m tests.web.browser.screenshots [FOLDER]` takes them again.

A worker runs the jobs of a small shop in memory for some seconds, so that the pages have something to show.
With a FOLDER, each page has
four pictures in it, at both widths in both themes, to look at.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from PIL import Image

from dibs.web import Dashboard, dibs_web
from tests.web.browser import demo
from tests.web.browser.conftest import WIDTHS, Viewer, viewing
from tests.web.conftest import may
from tests.web.warehouse import write_warehouse

IMAGES: Final = Path(__file__).parents[3] / "docs" / "images"
#: Seconds for which the worker runs before the first picture, and then a page collects rates.
WARM_UP: Final = 20
COLLECT: Final = 25
#: Colors of a stored picture.
COLORS: Final = 96
THEMES: Final = ("light", "dark")
#: Name of a picture -> the address of its page.
PAGES: Final = {
    "overview": "",
    "queue": "queue?name=emails.welcome&state=failed",
    "job": f"job?queue=reports.monthly&id={demo.REPORT}",
    "steps": f"job?queue=payments.refund&id={demo.RETURNS}",
    "failures": "failures",
    "flows": "flows",
    "flow": f"flow?id={demo.FLOW}",
    "failed-flow": f"flow?id={demo.FAILED_FLOW}",
    "large-flow": f"flow?id={demo.LARGE_FLOW}",
    "batch": f"flow?id={demo.BATCH}",
    "periodic": "periodic",
    "workers": "workers",
    "place": "place",
    "history": "history",
    "search": "search?text=picture-1",
    "enqueue": "enqueue?queue=thumbnails",
}
#: Width and theme -> names of pages.
Plan = dict[tuple[str, str], list[str]]
#: Pictures of the documentation.
SHOWN: Final[Plan] = {("desk", "light"): ["overview", "flow"], ("desk", "dark"): ["job"]}


async def take(viewer: Viewer, path: str, file: Path, *, whole: bool = False) -> None:
    """Store a picture of a page once its first live update has come."""
    await viewer.open(path)
    if await viewer.page.locator("#live").count():
        await viewer.is_live()
    if path == PAGES["job"]:
        # A moment at which the id has all its parts.
        for part in ("Successor", "Outcome"):
            await viewer.page.get_by_role("heading", name=part).wait_for()
    shot = await viewer.page.screenshot(full_page=whole)
    with Image.open(io.BytesIO(shot)) as image:
        reduce_colors(image.convert("RGB")).save(file, optimize=True)


def reduce_colors(image: Image.Image) -> Image.Image:
    """Return a picture with COLORS colors. The frequent ones stay as they are, such as the background.

    Pillow takes averages as the colors of a palette, which gives light areas a tint.
    """
    reduced = image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    parts = image.tobytes()
    pixels = zip(parts[0::3], parts[1::3], parts[2::3], strict=True)
    commonest: dict[int, tuple[int, ...]] = {}
    for (index, color), _ in Counter(zip(reduced.tobytes(), pixels, strict=True)).most_common():
        commonest.setdefault(index, color)
    reduced.putpalette([part for index in range(COLORS) for part in commonest.get(index, (0, 0, 0))])
    return reduced


async def take_all(dashboard: Dashboard, folder: Path, plan: Plan, *, whole: bool) -> None:
    """Store the pictures of a plan."""
    for (width, theme), names in plan.items():
        async with viewing(dashboard, WIDTHS[width], theme) as viewer:
            for name in names:
                suffix = f"{theme}-phone" if width == "phone" else theme
                await take(viewer, PAGES[name], folder / f"dashboard-{name}-{suffix}.png", whole=whole)


async def collect_rates(dashboard: Dashboard) -> None:
    """Keep a page open for a while, so that the lines of the overview have points."""
    async with viewing(dashboard) as viewer:
        await viewer.open("")
        await asyncio.sleep(COLLECT)


async def main(folder: Path | None, warehouse: Path) -> None:
    plan: Plan
    if folder is None:
        plan = SHOWN
    else:
        folder.mkdir(parents=True, exist_ok=True)
        plan = {(width, theme): list(PAGES) for width in WIDTHS for theme in THEMES}
    # The failures of the shop are part of its pictures.
    logging.getLogger("dibs").setLevel(logging.CRITICAL)
    async with demo.app:
        background = [
            asyncio.create_task(demo.produce()),
            asyncio.create_task(demo.app.work(handle_signals=False, name="worker-1")),
        ]
        await asyncio.sleep(WARM_UP)
        dashboard = dibs_web(demo.app, allow=may("write"), warehouse=warehouse)
        await collect_rates(dashboard)
        await take_all(dashboard, folder or IMAGES, plan, whole=folder is not None)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


if __name__ == "__main__":
    with TemporaryDirectory() as warehouse:
        write_warehouse(Path(warehouse))
        asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, Path(warehouse)))
