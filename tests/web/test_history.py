"""The history: the report of a warehouse, on the page and as a page of its own."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from dibs import ConfigurationError, Dibs, Refused
from dibs.web import dibs_web
from dibs.web.reading import history
from tests.spark.s3_server import BUCKET, ENVIRONMENT, s3_server
from tests.suites import require
from tests.web.conftest import Browser, browse
from tests.web.warehouse import write_warehouse


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Browser]:
    async with Dibs("memory:") as app, browse(dibs_web(app, warehouse=tmp_path, allow="read")) as browser:
        yield browser


async def history_page(reader: Browser) -> str:
    """Return the page once the report is made."""
    async with asyncio.timeout(60):
        # Each view waits a second for the report.
        while "The report is being made" in (page := await reader.text("/history")):  # noqa: ASYNC110
            await asyncio.sleep(0.6)
    return page


async def test_without_a_warehouse_the_page_says_how_to_get_one() -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        page = await reader.text("/history")
        report = await reader.get("/report")

    assert "This dashboard has no warehouse" in page
    assert "dibs spark history" in page
    assert (303, "/history") == (report.status_code, report.headers["location"])


async def test_the_page_shows_findings_and_queues(reader: Browser, tmp_path: Path) -> None:
    write_warehouse(tmp_path)

    page = await history_page(reader)

    assert "2026-11-20 12:00 to 2026-11-20 13:00 UTC" in page
    assert "was claimed from 2026-11-20 12:20 for 20 min" in page
    assert "order-666" in page
    assert "mostly shop.CorruptOrder" in page
    assert '<td class="num" data-label="Attempts">400</td>' in page


async def test_a_new_generation_replaces_the_report(reader: Browser, tmp_path: Path) -> None:
    write_warehouse(tmp_path)
    first = await history_page(reader)
    write_warehouse(tmp_path, queue="images")
    async with asyncio.timeout(60):
        while "queue?name=images" not in (second := await history_page(reader)):  # noqa: ASYNC110
            await asyncio.sleep(0.6)

    assert "queue?name=images" not in first
    assert "queue?name=mail" in second


async def test_an_empty_folder_is_named(reader: Browser) -> None:
    page = await history_page(reader)

    assert "There is no report" in page
    assert "no warehouse in" in page


async def test_the_whole_report_runs_its_own_script_only(reader: Browser, tmp_path: Path) -> None:
    """The report has no origin, so a script in it has no cookie and no right of the dashboard."""
    write_warehouse(tmp_path, bad_id="</script><script>alert(1)</script>")
    await history_page(reader)

    answer = await reader.get("/report")
    policy = answer.headers["content-security-policy"]
    script = answer.text.rpartition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()

    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("sandbox allow-scripts;")
    assert "allow-same-origin" not in policy
    assert "<script>alert" not in answer.text
    assert "nosniff" == answer.headers["x-content-type-options"]
    assert "<script>alert" not in await reader.text("/history")


@pytest.mark.parametrize("is_redacted", [False, True])
async def test_a_dashboard_that_redacts_shows_no_error_texts(tmp_path: Path, *, is_redacted: bool) -> None:
    write_warehouse(tmp_path)
    redact = (lambda _queue, _part, _value: "hidden") if is_redacted else None
    async with (
        Dibs("memory:") as app,
        browse(dibs_web(app, redact=redact, warehouse=tmp_path, allow="read")) as reader,
    ):
        await history_page(reader)
        report = await reader.text("/report")

    assert "shop.CorruptOrder" in report
    assert is_redacted is ("the secret of the order" not in report)
    assert is_redacted is ("the secret of the traceback" not in report)


async def test_the_report_has_the_sizes_of_the_handlers_of_the_app(tmp_path: Path) -> None:
    write_warehouse(tmp_path)
    app = Dibs("memory:")
    app.task(queue="mail", size=4)(_sized)
    async with app, browse(dibs_web(app, warehouse=tmp_path, allow="read")) as reader:
        await history_page(reader)

        assert "at the declared size of 4" in await reader.text("/report")


def _sized() -> None: ...


async def test_a_slow_report_does_not_hold_the_page(
    reader: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_warehouse(tmp_path)
    monkeypatch.setattr(history, "PATIENCE", 0.0)

    assert "The report is being made" in await reader.text("/history")


async def test_the_warehouse_may_be_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("moto")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    location = f"s3://{BUCKET}/{tmp_path.name}"
    with s3_server():
        write_warehouse(location)
        async with Dibs("memory:") as app, browse(dibs_web(app, warehouse=location, allow="read")) as reader:
            page = await history_page(reader)

    assert "order-666" in page
    assert location in page


@pytest.mark.parametrize("error", [Refused("no warehouse in {}"), ValueError("{} is broken")])
async def test_the_password_of_a_url_is_not_shown(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warehouse = "s3://name:hunter2@bucket/history?secret=hunter2"

    def fail(_warehouse: object, location: str) -> None:
        raise type(error)(str(error).format(location))

    monkeypatch.setattr("dibs.spark.history.warehouse.Warehouse.__init__", fail)
    async with Dibs("memory:") as app, browse(dibs_web(app, warehouse=warehouse, allow="read")) as reader:
        page = await history_page(reader)

    assert "There is no report" in page
    assert "s3://bucket/history" in page
    assert "hunter2" not in page
    assert "hunter2" not in caplog.text


async def test_a_large_warehouse_is_refused_with_the_command_that_makes_its_report(
    reader: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_warehouse(tmp_path)
    monkeypatch.setattr(history, "MAX_ROWS", 459)
    page = await history_page(reader)

    assert "the last 28 days have 460 rows, and the dashboard makes reports of up to 459" in page
    assert "dibs spark report" in page


def test_a_wrong_warehouse_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="warehouse is 5"):
        dibs_web("memory:", warehouse=5, allow="read")  # type: ignore[arg-type]
