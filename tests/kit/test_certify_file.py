"""The file storage keeps the contract: 20 examples by default, 2,000 with the marker `certify`."""

from pathlib import Path

import pytest

from dibs_conformance import CertificationReport, certify


def test_certify_file(tmp_path: Path) -> None:
    report = certify(f"file:{tmp_path}", examples=20, seed=20_261_120)

    assert report.certified, report.text()
    assert untested(report) == []


@pytest.mark.certify
def test_certify_file_in_the_long_form(tmp_path: Path) -> None:
    report = certify(f"file:{tmp_path}", examples=2000)

    assert report.certified, report.text()


def untested(report: CertificationReport) -> list[str]:
    return [law.name for law in report.laws if law.verdict != "kept"]
