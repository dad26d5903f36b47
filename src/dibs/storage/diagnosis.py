"""The findings about the layouts of storages."""

from __future__ import annotations

from typing import Final

from dibs.model.findings import Finding, Rule

LAYOUT_NEWER: Final = Rule(
    "layout-newer",
    "error",
    "A newer version of dibs has written this storage. This version refuses to open it.",
    "Upgrade dibs here, or use the dibs of the workers.",
    blocks=True,
)
LAYOUT_OLDER: Final = Rule(
    "layout-older",
    "warning",
    "The next program with this version of dibs migrates the storage. Older versions then refuse to open it.",
    "Upgrade all programs together. Until the migration, `dibs doctor` examines the server alone.",
    blocks=True,
)
RULES: Final = (LAYOUT_NEWER, LAYOUT_OLDER)


def layout_findings(found: int, known: int) -> list[Finding]:
    """Return a finding if the number of the stored layout is not that of this version of dibs."""
    if found == known:
        return []
    rule = LAYOUT_NEWER if found > known else LAYOUT_OLDER
    return [rule.finding(f"the layout of the storage is {found}; this dibs writes {known}")]
