"""The optional method with which a storage examines its server or folder, and the findings about layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from dibs.model.findings import Finding, Rule


@runtime_checkable
class Diagnosis(Protocol):
    """The method of a storage that knows which settings of its server or its folder endanger jobs."""

    async def diagnose(self) -> Sequence[Finding]:
        """Return findings about the server or the folder.

        The storage need not be open. The method uses connections of its own, reads settings and sizes but no
        jobs, and changes nothing. Raise StorageError if the server cannot be reached.
        """
        ...


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
