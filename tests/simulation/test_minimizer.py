"""The minimizer leaves of a failing simulation the faults without which the promise would hold."""

from __future__ import annotations

from dibs_conformance.simulation.faults import draw_faults
from dibs_conformance.simulation.minimizer import minimize
from dibs_conformance.simulation.simulation import Options, Result

OPTIONS = Options(seed=7, hours=0.5, workers=4, producers=2)
FAULTS = draw_faults(OPTIONS.seed, OPTIONS.hours * 3600, OPTIONS.machines)[1]


def is_present(options: Options, index: int) -> bool:
    fault = FAULTS[index]
    in_time = fault.at < options.hours * 3600
    return in_time and index not in options.without and fault.kind not in options.without_kinds


def result(options: Options, *, clause: str, simulated: float) -> Result:
    return Result(
        options=options, digest="", clause=clause, what="", simulated=simulated, cpu=0, events=0, counts={},
        faults={}, injected=0,
    )  # fmt: skip


def broken_by(*needed: int) -> tuple[Result, list[str]]:
    """Minimize a failure that needs these faults, ten seconds after the last of them."""
    end = FAULTS[max(needed)].at + 10

    def run(options: Options) -> Result:
        breaks = all(is_present(options, index) for index in needed) and options.hours * 3600 >= end
        return result(options, clause="2 limits" if breaks else "", simulated=end)

    steps: list[str] = []
    return minimize(run(OPTIONS), run, steps.append), steps


def test_one_fault_is_left() -> None:
    index = len(FAULTS) // 3
    small, steps = broken_by(index)
    left = [number for number in range(len(FAULTS)) if is_present(small.options, number)]

    assert "2 limits" == small.clause
    assert index in left
    assert len(left) <= 2
    assert small.options.hours * 3600 <= FAULTS[index].at + 12
    assert steps


def test_two_faults_that_break_a_promise_together_stay() -> None:
    first, second = len(FAULTS) // 4, len(FAULTS) // 2
    small, _ = broken_by(first, second)
    left = [number for number in range(len(FAULTS)) if is_present(small.options, number)]

    assert {first, second} <= {*left}
    assert len(left) <= 6


def test_a_failure_that_needs_no_fault_keeps_none_of_its_kinds() -> None:
    def run(options: Options) -> Result:
        return result(options, clause="growth", simulated=60)

    small = minimize(run(OPTIONS), run, lambda _: None)

    assert [] == [number for number in range(len(FAULTS)) if is_present(small.options, number)]


def test_another_broken_promise_is_no_smaller_form() -> None:
    def run(options: Options) -> Result:
        return result(options, clause="3 leases", simulated=60)

    begun = result(OPTIONS, clause="2 limits", simulated=1800)

    assert begun == minimize(begun, run, lambda _: None)
