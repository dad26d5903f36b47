"""The pytest plugin comes with dibs, so it must load without the dependencies of the kit."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["hypothesis"] = None
import dibs_conformance.plugin
"""


def test_the_plugin_loads_without_hypothesis() -> None:
    """A user without the extra `conformance` of dibs can still start pytest."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)
