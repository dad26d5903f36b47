from pathlib import Path

from dibs_conformance import certify


def test_lmdb_keeps_the_contract(tmp_path: Path) -> None:
    report = certify(f"lmdb:{tmp_path}/jobs", level="L3", examples=40)
    assert report.certified, report.text()
