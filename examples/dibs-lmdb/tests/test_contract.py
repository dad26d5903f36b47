from pathlib import Path

from dibs_conformance import certify


def test_lmdb_keeps_the_contract(tmp_path: Path) -> None:
    # With fsync=1 the storage claims to survive a power loss, which the kit cannot cause below C code.
    report = certify(f"lmdb:{tmp_path}/jobs?fsync=0", level="L3", examples=40)
    assert report.certified, report.text()
