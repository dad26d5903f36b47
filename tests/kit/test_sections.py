"""Each section and each promise of the contract has a law of the kit, and each law names its section."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dibs_conformance.concurrent.process_clients import SKEWED_LAW
from dibs_conformance.crashes.lost_writes import SECTION as LOST_WRITES
from dibs_conformance.crashes.scenes import SECTION as CRASHES
from dibs_conformance.history.rules import RULES
from dibs_conformance.sequential import clocks
from dibs_conformance.sequential.probes import PROBES
from dibs_conformance.verbs import VERBS
from tests.source import PROJECT


def named_sections() -> Iterator[str]:
    """Yield the sections that the laws name: those of verbs, races, probes, rules and faults."""
    yield from (verb.section for verb in VERBS.values() if verb.section)
    yield from (race.section for verb in VERBS.values() for race in verb.races)
    yield from (probe.section for probe in PROBES)
    yield from (rule.section for rule in RULES)
    yield from (clocks.STEPS_LAW[1], clocks.JUMP_LAW[1], SKEWED_LAW[1], LOST_WRITES, CRASHES)


def sections_of_the_contract() -> Iterator[str]:
    """Yield "2" for a chapter, "3, claim" for a section, and "4.1" for a promise."""
    chapter = ""
    for line in (PROJECT / "docs/explanation/contract.md").read_text("utf-8").splitlines():
        if found := re.fullmatch(r"## (\d)\. .*", line):
            chapter = found[1]
            yield chapter
        elif found := re.fullmatch(r"### (.*)", line):
            yield f"{chapter}, {found[1]}"
        elif found := re.match(r"(\d)\. \*\*", line):
            yield f"{chapter}.{found[1]}"


def test_each_section_has_a_law_and_each_law_a_section() -> None:
    named = {one for text in named_sections() for one in text.split("; ")}
    known = set(sections_of_the_contract())

    assert set() == named - known
    # A chapter with sections has the laws of these. Clients keep promise 9: what arrives is what was sent.
    assert {"1", "4", "4.9"} == known - named
