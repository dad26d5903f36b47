"""The number of CPUs by the quotas of cgroups of both versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.worker.work_plan import cpu_count, read_quotas

V1 = "12:pids:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc"


@pytest.mark.parametrize(
    ("memberships", "files", "quotas"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, [1.5]),
        ("0::/", {"cpu.max": "max 100000"}, []),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50 100", "cpu.max": "900 90"}, [0.5, 10]),
        ("0::/in/the/host", {"cpu.max": "200000 100000"}, [2.0]),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "300", "cpu,cpuacct/cpu.cfs_period_us": "100"}, [3.0]),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100"}, []),
        ("0::/", {"cpu.max": "damaged"}, []),
        ("0::/", {}, []),
        (None, {}, []),
    ],
)  # fmt: skip
def test_the_quota_of_each_cgroup_above_is_read(
    tmp_path: Path, memberships: str | None, files: dict[str, str], quotas: list[float]
) -> None:
    if memberships is not None:
        (tmp_path / "cgroup").write_text(memberships + "\n")
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(text + "\n")

    assert quotas == [*read_quotas(tmp_path / "cgroup", tmp_path / "mount")]


def may_mount() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "--mount", "sh", "-c", "mount --bind /tmp /sys/fs/cgroup"],
            capture_output=True,
            check=False,
        ).returncode
    )


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a folder")
def test_a_quota_below_one_cpu_is_one_process(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("20000 100000\n")
    (tmp_path / "membership").write_text("0::/\n")
    script = f"cd {tmp_path}; mount --bind . /sys/fs/cgroup; mount --bind membership /proc/$$/cgroup"
    code = "from dibs.worker.work_plan import cpu_count; print(cpu_count())"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{script}; exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "1\n" == done.stdout
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)
