"""The storage of examples/dibs-sqlite."""

from __future__ import annotations

from tests.examples.package import Package, PackageTests


class TestSqlite(PackageTests):
    example, url_end = "dibs-sqlite", ".db"

    def test_the_command_line_opens_its_urls(self, package: Package, url: str) -> None:
        enqueued = package.run("dibs", "enqueue", "emails", '{"to": "x"}', "--id", "a", "--url", url)
        shown = package.run("dibs", "counts", "--json", "--url", url)

        assert 0 == enqueued.returncode, enqueued.stderr
        assert '"waiting":1' in shown.stdout.replace(" ", "")
