"""Certifies a storage in a process of its own and prints the verdict as JSON; a child of `runs`.

python -m tests.mutation.certify_tree URL LEVEL BUDGET SEED EXAMPLES

With EXAMPLES 0, as many histories run as fit into BUDGET seconds. A failure is not shrunk: only its law is
of interest.
"""

from __future__ import annotations

import logging
import sys
from functools import partial

import msgspec

from dibs_conformance import certify
from dibs_conformance.concurrent import examples as concurrent_examples
from dibs_conformance.report import Report
from dibs_conformance.report.values import false_claims
from dibs_conformance.sequential import levels as sequential_levels
from dibs_conformance.sequential.examples import run_examples
from tests.mutation.verdict import Verdict, failed_verdict


def main(url: str, level: str, budget: str, seed: str, examples: str) -> None:
    logging.getLogger("dibs.storage").setLevel(logging.ERROR)
    concurrent_examples.SHRINK_SECONDS = 0.0
    sequential_levels.run_examples = partial(run_examples, shrink=False)  # type: ignore[attr-defined]
    try:
        report = certify(url, level, float(budget), int(seed), examples=int(examples) or None)
    except BaseException as error:  # noqa: BLE001 - an exception that leaves the kit also finds the mutant
        verdict = failed_verdict("", type(error).__name__, str(error))
    else:
        verdict = verdict_of(report)
    sys.stdout.write(f"\n{msgspec.json.encode(verdict).decode()}\n")


def verdict_of(report: Report) -> Verdict:
    """Return the first failure of a report, with its level, or "survived"."""
    for level in report.levels:
        for failure in level.failures:
            return failed_verdict(level.name, failure.law, failure.why)
    if claims := false_claims(report.capabilities):
        return failed_verdict("L0", "capabilities", str(claims))
    histories = sum(level.histories for level in report.levels)
    return Verdict("survived", note=f"reached {report.reached or 'no level'}, {histories} histories")


if __name__ == "__main__":
    main(*sys.argv[1:])
