"""The memory storage keeps the contract: 40 examples by default, 2,000 with the marker `certify`."""

import pytest

from dibs_conformance import CertificationReport, certify


def test_certify_memory() -> None:
    report = certify("memory:", examples=40, seed=20_261_120)

    assert report.certified, report.text()
    assert untested(report) == []


@pytest.mark.certify
def test_certify_memory_in_the_long_form() -> None:
    report = certify("memory:", examples=2000)

    assert report.certified, report.text()


def untested(report: CertificationReport) -> list[str]:
    return [law.name for law in report.laws if law.verdict != "kept"]
