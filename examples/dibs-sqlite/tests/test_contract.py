from pathlib import Path

from dibs_conformance import certify


def test_sqlite_keeps_the_contract(tmp_path: Path) -> None:
    report = certify(f"sqlite:{tmp_path}/jobs.db", level="L3", examples=40)
    assert report.certified, report.text()
