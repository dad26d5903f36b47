"""The index of Django's admin has a link to the dashboard, if the settings name its address."""

from __future__ import annotations

import subprocess
import sys

from tests.source import PROJECT


def test_the_index_of_the_admin_has_a_link_to_the_dashboard() -> None:
    program = PROJECT / "tests/frameworks/apps/admin_page.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    without, _, with_link = done.stdout.partition("=====")

    assert 0 == done.returncode, done.stderr
    assert "Site administration" in without
    assert "dibs-dashboard" not in without
    # The rest of the page is Django's.
    assert "Site administration" in with_link
    assert "Users</a>" in with_link
    assert '<a href="/dibs/?a=&quot;b&quot;">Jobs: the dashboard of dibs</a>' in with_link
