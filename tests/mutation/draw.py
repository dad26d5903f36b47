"""Draws mutants by seed. The same seed draws the same mutants from the same sources."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random

from tests.mutation.areas import AREAS
from tests.mutation.site import Site


def draw(project: Path, area: str, seed: int, count: int) -> list[Site]:
    """Return at most `count` mutants of an area, at most one for each line.

    First lines are drawn, and then one mutation of each line: a long condition is drawn as rarely as a short
    one. A larger `count` with the same seed begins with the same mutants.
    """
    lines: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for site in AREAS[area].sites(project):
        lines[site.file, site.line].append(site)
    random = Random(f"{area} {seed}")
    order = sorted(lines)
    random.shuffle(order)
    return [random.choice(lines[line]) for line in order[:count]]
