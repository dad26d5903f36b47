"""What became of one mutant."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Outcome = Literal["killed", "other tests", "survived", "equivalent", "not valid"]

#: Errors that a server or SQLite reports for text that is not a program.
_SYNTAX_ERRORS: Final = ("Error compiling script", "syntax error at or near", '": syntax error')


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome for one mutant: `by` names the level and the law, or the test, that killed it.

    A mutant of a storage that survived the kit, and failed a test of the storage, is "other tests".
    """

    outcome: Outcome
    by: str = ""
    #: The message of the failure, the reason of an equivalent mutant, or the size of the run.
    note: str = ""
    seconds: float = 0.0
    #: Seconds of CPU time of the run, without the servers.
    cpu: float = 0.0


def failed_verdict(level: str, law: str, why: str) -> Verdict:
    """Return "killed", or "not valid" if the mutated text is no Lua or SQL."""
    note = " ".join(why.split())[:300]
    if any(text in why for text in _SYNTAX_ERRORS):
        return Verdict("not valid", note=note)
    return Verdict("killed", f"{level} {law}".strip(), note)
