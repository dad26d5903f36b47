"""The tables of the comparison in README.md and performance.md equal its raw results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.publish import __main__ as publish
from benchmarks.peers.publish import headline, table
from benchmarks.peers.publish.rows import ratio, rows
from benchmarks.peers.results import Results
from benchmarks.peers.systems import PEERS

from tests.source import PROJECT

ABOUT = {
    "date": "2026-11-23", "commit": "abc", "cpus": 2, "python": "3", "node": "26", "redis": "7",
    "postgresql": "15", "quick": False,
}  # fmt: skip


def figures(drain: float, **more: Any) -> dict[str, Any]:
    return {"drain_jobs": 100, "drain_seconds": 100 / drain, **more}


def results(*rounds: dict[str, dict[str, Any]]) -> Results:
    """Return results of Redis, whose baseline is 10, 20, ... in the rounds."""
    return Results(
        ABOUT,
        [
            {"baselines": {"redis take + finish": 10.0 * (n + 1)}, "systems": systems}
            for n, systems in enumerate(rounds)
        ],
    )


def test_the_documents_equal_the_raw_results() -> None:
    """After a change of the results or of a table: `python -m benchmarks.peers.publish`."""
    assert publish.differing(Results.load(publish.COPY)) == []


def test_every_table_of_the_documents_is_between_marks() -> None:
    """Each block is known, and each kind of storage has one."""
    texts = {path: path.read_text("utf-8") for path in publish.DOCUMENTS}
    names = [found[2] for text in texts.values() for found in publish.BLOCK.finditer(text)]

    assert all(text.count("<!-- race: ") == text.count("<!-- end of race -->") for text in texts.values())
    assert {"headline", "goals", "queues", "behind", "shortest"} <= set(names)
    assert {peer.kind for peer in PEERS} == {name.split()[0] for name in names if " " in name}


def test_the_raw_results_are_small() -> None:
    assert publish.COPY.stat().st_size < 200_000
    assert publish.COPY.is_relative_to(PROJECT / "docs")


def test_a_document_is_filled_between_its_marks() -> None:
    text = "before\n<!-- race: behind -->\nold\n<!-- end of race -->\nafter\n"
    filled = publish.fill(text, results({"redis: rq": figures(10)}))

    assert filled.startswith("before\n<!-- race: behind -->\n| system |")
    assert "| rq | 10 |" in filled
    assert filled.endswith("<!-- end of race -->\nafter\n")
    assert publish.fill(filled, results({"redis: rq": figures(10)})) == filled


def test_a_changed_figure_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    known = results({"redis: rq": figures(10)})
    page.write_text(publish.fill("<!-- race: behind -->\n<!-- end of race -->\n", known))
    monkeypatch.setattr(publish, "DOCUMENTS", (page,))
    assert publish.differing(known) == []

    page.write_text(page.read_text().replace("| 10 |", "| 11 |"))
    assert publish.differing(known) == [page]


def test_figures_are_medians_and_ratios_are_those_of_each_round() -> None:
    """The ratio to the baseline, and to a peer, compares figures of the same round."""
    measured = results(
        *({"redis: dibs": figures(ours), "redis: huey": figures(2.0)} for ours in (10.0, 90.0, 60.0))
    )
    (row,) = (one for one in rows(measured) if one["name"] == "dibs")

    assert row["drain"] == pytest.approx(60)
    assert row["drain_ratio"] == pytest.approx(2)
    assert row["awaited"] is None
    assert ratio(measured, "redis: dibs", "redis: huey", "drain") == pytest.approx(30)


def test_a_system_that_failed_in_a_round_has_its_reason() -> None:
    measured = results({"redis: huey": figures(5)}, {"redis: huey": {"not_run": "no wheel"}})

    assert [row["not_run"] for row in rows(measured)] == ["no wheel"]
    assert "huey (no wheel)" in publish.about(measured, rows(measured))


def test_the_best_peer_of_a_figure_is_chosen() -> None:
    """The most jobs a second, but the fewest ms; a goal may name its peer."""
    measured = results(
        {
            "redis: dibs": figures(100, pickup_ms=[1.0, 2.0], result_ms=[1.0, 2.0]),
            "redis: bee-queue": figures(50, pickup_ms=[2.0, 2.0], result_ms=[0.5, 2.0]),
            "redis: huey": figures(20, pickup_ms=[0.5, 2.0], result_ms=[4.0, 5.0]),
        }
    )
    duels = {duel.measure.name: duel for duel in headline.duels(measured, rows(measured))}

    assert duels["drain"].peer == "bee-queue"
    assert duels["drain"].ratio == pytest.approx(2)
    assert (duels["result_p50_ms"].peer, duels["result_p50_ms"].verdict) == ("bee-queue", "missed")
    assert (duels["pickup_p50_ms"].peer, duels["pickup_p50_ms"].verdict) == ("bee-queue", "met")


def test_many_queues_are_compared_with_one() -> None:
    many = {"queues_10": figures(30, pickup_ms=[3.0, 4.0]), "queues_100": figures(6, pickup_ms=[6.0, 9.0])}
    measured = results({"redis: dibs": figures(60, pickup_ms=[1.5, 2.0], **many)})

    lines = table.many_queues(rows(measured)).lines

    assert [(line[2], line[4], line[6]) for line in lines] == [
        ("10", "0.50", "2.00"),
        ("100", "0.10", "4.00"),
    ]


def test_results_are_rounded_in_the_file(tmp_path: Path) -> None:
    measured = results({"redis: huey": figures(3)})
    measured.save(tmp_path / "results.json")

    text = (tmp_path / "results.json").read_text()
    assert json.loads(text)["rounds"][0]["systems"]["redis: huey"]["drain_seconds"] == 33.333
