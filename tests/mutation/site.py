"""A mutation: one replacement in the text of one source file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from attrs import frozen


@frozen
class Edit:
    """A replacement of text[start:end] by `new`; `operator` names the kind, such as "comparison"."""

    start: int
    end: int
    new: str
    operator: str


@frozen
class Site:
    """One possible mutant. `file` is a path relative to the project; `line` counts from 1."""

    file: str
    line: int
    edit: Edit
    #: The replaced text.
    old: str
    #: The whole line, without indentation. With `change` it identifies the site when line numbers move.
    line_text: str

    @property
    def change(self) -> str:
        """The replaced and the new text on one line, as in "< -> <="."""
        return f"{one_line(self.old)} -> {one_line(self.edit.new) or '(removed)'}"

    def apply(self, text: str) -> str:
        """Return the text of the file with this mutation."""
        return text[: self.edit.start] + self.edit.new + text[self.edit.end :]


class FindEdits(Protocol):
    """Returns the possible mutations of a source text."""

    def __call__(self, text: str, /) -> Iterable[Edit]: ...


def find_sites(file: str, text: str, find_edits: FindEdits) -> Iterator[Site]:
    """Return the sites of one file in the order of their positions."""
    lines = text.splitlines()
    for edit in sorted(find_edits(text), key=lambda edit: (edit.start, edit.end, edit.new)):
        line = text.count("\n", 0, edit.start) + 1
        yield Site(file, line, edit, text[edit.start : edit.end], lines[line - 1].strip())


def one_line(text: str) -> str:
    return " ".join(text.split())
