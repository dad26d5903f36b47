"""What a certification found: a value, a table for people, and JSON in a stable shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from rich.console import Console

Verdict = Literal["kept", "broken", "not tested"]


class LawReport(Struct, frozen=True, kw_only=True):
    """One law: never met is not tested, and never counts as kept."""

    name: str
    section: str
    sentence: str
    #: How often the situation occurred of which the law speaks.
    met: int
    verdict: Verdict


class CapabilityReport(Struct, frozen=True, kw_only=True):
    """One power: what the storage says of itself, and what was found; None could not be tried."""

    name: str
    claimed: bool
    found: bool | None
    note: str = ""

    @property
    def holds(self) -> bool:
        """An untrue claim does not; a power nobody claimed is only told."""
        return not self.claimed or self.found is not False


class Failure(Struct, frozen=True, kw_only=True):
    """What went wrong, and the shortest story found that leads there."""

    #: The law that is broken, or the check or verb whose answer the contract does not allow.
    law: str
    why: str
    story: tuple[str, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """What a certification found."""

    target: str
    level: str
    certified: bool
    seed: int
    #: Sequences of calls that were tried, and their steps at most.
    examples: int
    steps: int
    calls: int
    seconds: float
    durability: str
    laws: tuple[LawReport, ...]
    capabilities: tuple[CapabilityReport, ...]
    failures: tuple[Failure, ...] = ()

    def json(self) -> str:
        """The report as JSON: the fields of this class, by name."""
        return msgspec.json.encode(self).decode()

    def text(self) -> str:
        """The report as plain lines."""
        return "\n".join([*self._head(), "", *self._laws(), "", *self._powers(), *self._stories()])

    def print(self, console: Console) -> None:
        """Show the report on a rich console."""
        from rich.table import Table  # noqa: PLC0415 - only needed with a console

        table = Table("law", "contract", "met", "verdict")
        for law in self.laws:
            table.add_row(law.name, law.section, f"{law.met:,}", law.verdict)
        for line in self._head():
            console.print(line, markup=False)
        console.print(table)
        for line in [*self._powers(), *self._stories()]:
            console.print(line, markup=False, highlight=False)

    def _head(self) -> Iterator[str]:
        verdict = (
            f"keeps the contract, level {self.level}" if self.certified else "DOES NOT KEEP THE CONTRACT"
        )
        yield f"{self.target}: {verdict}"
        yield (
            f"{self.examples} examples of up to {self.steps} steps, {self.calls:,} calls, seed {self.seed}, "
            f"{self.seconds:.1f} s"
        )
        yield f"durability: {self.durability}"

    def _laws(self) -> Iterator[str]:
        width = max((len(law.name) for law in self.laws), default=0)
        for law in self.laws:
            yield f"{law.name:<{width}}  {law.met:>9,}  {law.verdict}"

    def _powers(self) -> Iterator[str]:
        for power in self.capabilities:
            found = "could not be tried" if power.found is None else "found" if power.found else "not found"
            claim = "claimed" if power.claimed else "not claimed"
            yield f"{power.name}: {claim}, {found}" + (f" ({power.note})" if power.note else "")

    def _stories(self) -> Iterator[str]:
        for failure in self.failures:
            yield ""
            yield f"BROKEN: {failure.law}: {failure.why}"
            for number, step in enumerate(failure.story, 1):
                yield f"  {number:>2}. {step}"
