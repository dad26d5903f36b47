"""`dibs metrics`: it serves the metrics of a storage until a signal, and refuses what it cannot serve."""

from __future__ import annotations

import json
import signal
import sys
from urllib.request import urlopen

import pytest

from tests.cli.shell import Shell


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(shell: Shell, number: signal.Signals) -> None:
    shell.type("enqueue", "emails", "1")
    process = shell.start("metrics", "--port", "0", "--url", shell.url, "--json")
    with process:
        assert process.stdout is not None
        page = urlopen(json.loads(process.stdout.readline())["url"]).read().decode()
        process.send_signal(number)

    assert 0 == process.returncode
    assert 'dibs_jobs{queue="emails",state="waiting"} 1.0' in page
    assert 'dibs_findings{code="queue-not-served",severity="error"} 1.0' in page


def test_a_missing_folder_or_package_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = shell.type("metrics", url="file:./nothing-here")
    monkeypatch.setitem(sys.modules, "dibs.telemetry.storage_metrics", None)
    shell.type("enqueue", "emails", "1")
    without = shell.type("metrics")

    assert (1, 2) == (missing.exit_code, without.exit_code)
    assert "there is no directory" in missing.stderr
    assert 'pip install "dibs[metrics]"' in " ".join(without.stderr.split())
