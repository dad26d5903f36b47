"""The pytest plugin comes with dibs, so it must load where the kit's own needs are not installed."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["hypothesis"] = None
import dibs_conformance.plugin
"""


def test_the_plugin_loads_without_hypothesis() -> None:
    """Somebody who installed dibs without the extra can still start pytest."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)
