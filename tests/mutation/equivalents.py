"""Mutants that no test can kill, marked by hand in equivalents.toml with the reason of each."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from attrs import frozen

from tests.mutation.site import Site

FILE: Final = Path(__file__).with_name("equivalents.toml")


@frozen
class Equivalent:
    """A mutant without an effect that the contract or the tests could name."""

    file: str
    #: The line in the source, without indentation.
    line: str
    #: The mutation as the report prints it, such as "< -> <=".
    change: str
    reason: str
    #: The number of the line, for one of several equal lines; 0 for all of them.
    number: int = 0

    def matches(self, site: Site) -> bool:
        same_line = (self.file, self.line, self.change) == (site.file, site.line_text, site.change)
        return same_line and self.number in {0, site.line}


def read_equivalents(file: Path = FILE) -> list[Equivalent]:
    """Return the marked mutants. Raise TypeError for an entry with a missing or unknown field."""
    return [Equivalent(**entry) for entry in tomllib.loads(file.read_text("utf-8")).get("equivalent", [])]


def reason_for(site: Site, known: list[Equivalent]) -> str:
    """Return why a mutant is equivalent, or "" if it is not marked."""
    return next((one.reason for one in known if one.matches(site)), "")
