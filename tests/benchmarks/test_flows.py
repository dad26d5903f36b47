"""The comparison of flows: counts of fan-ins, tables, and a measurement with two processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.flows import table
from benchmarks.flows.__main__ import main, parse_arguments, select_systems
from benchmarks.flows.measure import Effort, FanIns, Figures, Measurement, count_fan_ins, handover_ms
from benchmarks.flows.session import Event, EventLog, open_session
from benchmarks.flows.systems import PROGRAMS, SYSTEMS, FlowRedis, Requests, System, start_servers
from benchmarks.flows.table import Results
from benchmarks.peers.environments import PeerUnavailable
from benchmarks.peers.systems import PEERS

from dibs_conformance.servers import start_redis

FEW = Effort(flows={1: 5, 20: 2}, handovers={1: 3}, kill_flows=2, kill_nodes=5, patience=60)
SECOND = 1_000_000_000


@pytest.fixture
def own_redis() -> Iterator[FlowRedis]:
    """A Redis of this test alone, because the comparison flushes the whole server."""
    with start_redis() as server:
        yield FlowRedis(server.url)


def dibs_on(kind: str) -> System:
    return next(system for system in SYSTEMS if system.key == f"{kind}: dibs")


def run(flow: int, pid: int, start: int, total: int = 1) -> list[Event]:
    """Return the events of a fan-in that took a millisecond."""
    return [Event("s", flow, 0, pid, start), Event("f", flow, total, pid, start + 1_000_000)]


def count(events: list[Event], killed: dict[int, int] | None = None) -> FanIns:
    return count_fan_ins(events, range(1), 2, killed or {})


def test_a_fan_in_that_ran_once_is_neither_lost_nor_doubled() -> None:
    assert FanIns(1, lost=0, lost_after_nodes=0, doubled=0, repeated=0, wrong=0) == count(run(0, 10, 0))


def test_a_fan_in_without_an_end_is_lost() -> None:
    nodes = [Event("n", 0, 0, 10, 0), Event("n", 0, 1, 10, 1)]
    started, node_lost = count([*nodes, Event("s", 0, 0, 10, 2)]), count(nodes[:1])

    assert (1, 1) == (started.lost, started.lost_after_nodes)
    assert (1, 0) == (node_lost.lost, node_lost.lost_after_nodes)


def test_a_second_run_without_a_kill_is_doubled() -> None:
    counted = count([*run(0, 10, 0), *run(0, 11, SECOND)])

    assert (1, 0) == (counted.doubled, counted.repeated)


def test_a_second_run_after_a_kill_is_repeated() -> None:
    """The first process was killed before it acknowledged the fan-in, or during its run."""
    after_the_end = count([*run(0, 10, 0), *run(0, 11, 9 * SECOND)], {10: SECOND // 2})
    during_the_run = count([Event("s", 0, 0, 10, 0), *run(0, 11, 9 * SECOND)], {10: SECOND // 2})

    assert (0, 1) == (after_the_end.doubled, after_the_end.repeated)
    assert (0, 1) == (during_the_run.doubled, during_the_run.repeated)


def test_a_kill_long_after_the_end_explains_no_second_run() -> None:
    assert count([*run(0, 10, 0), *run(0, 11, 9 * SECOND)], {10: 5 * SECOND}).doubled == 1


def test_a_kill_of_the_last_run_explains_no_earlier_run() -> None:
    assert count([*run(0, 10, 0), *run(0, 11, SECOND)], {11: 2 * SECOND}).doubled == 1


def test_a_fan_in_with_a_missing_result_is_wrong() -> None:
    assert count(run(0, 10, 0, total=0)).wrong == 1


def test_a_handover_begins_at_the_end_of_the_last_node() -> None:
    nodes = [Event("n", 0, 0, 10, 5_000_000), Event("n", 0, 1, 11, 3_000_000)]

    assert [2.0] == handover_ms([*run(0, 10, 7_000_000), *nodes], range(1))


def test_a_log_is_read_up_to_its_last_complete_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    log.path.write_text("n 0 3 10 7\nf 0 3 1")
    assert [Event("n", 0, 3, 10, 7)] == log.read()

    log.path.write_text("n 0 3 10 7\nf 0 3 10 9\n")
    assert [Event("f", 0, 3, 10, 9)] == log.read()
    assert log.done == {0}


def test_the_requests_of_a_node_leave_unknown_figures_out() -> None:
    used = Requests(reads=30, commands=50).per_node(Requests(reads=10, commands=10), 10)

    assert used == Requests(reads=2, commands=4, statements=None, commits=None)


def test_tables_have_the_medians_of_all_rounds() -> None:
    def figures(seconds: float) -> dict[str, object]:
        requests = {"reads": 2.0, "commands": 5.0, "statements": None, "commits": None}
        rate = {"jobs": 200, "seconds": seconds, "handover_ms": [4.0], "requests": requests}
        return {"rates": {"1": rate, "100": rate}, "handovers_ms": {"1": [1.0, 2.0, 3.0]}}

    rounds = [{"redis: dibs": figures(seconds)} for seconds in (1.0, 2.0, 4.0)]
    results = Results({"kills": 3}, [*rounds, {"redis: dibs": {"not_run": "a reason"}}])
    results.kills["redis: dibs"] = {"flows": 15, "lost": 3, "lost_after_nodes": 0} | {
        "doubled": 1,
        "repeated": 2,
        "wrong": 0,
    }
    rates, requests, handovers, kills = table.grids(results)

    assert [["dibs", "100", "100"]] == rates.lines
    assert [["dibs", "2.00", "5.00", "2.00", "5.00"]] == requests.lines
    assert [["dibs", "2.0", "3.0", "4.0", "4.0"]] == handovers.lines
    assert [["redis: dibs", "15", "3", "0", "1", "2", "0"]] == kills.lines
    assert ["redis: dibs: not measured: a reason"] == table.not_measured(results)


def test_the_tables_of_a_file_are_printed_as_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = {"flows": 5, "lost": 1, "lost_after_nodes": 0, "doubled": 0, "repeated": 0, "wrong": 0}
    Results({"kills": 1}, [], {"redis: celery": counted}).save(tmp_path / "results.json")
    monkeypatch.setattr(sys, "argv", ["flows", "--tables", str(tmp_path / "results.json"), "--markdown"])
    main()

    assert "| redis: celery | 5 | 1 | 0 | 0 | 0 | 0 |" in capsys.readouterr().out


def check_figures(figures: Figures) -> None:
    assert list(figures["rates"]) == ["1", "20"]
    for flows, (nodes, rate) in zip((5, 2), figures["rates"].items(), strict=True):
        assert rate["jobs"] == flows * (int(nodes) + 1)
        assert 0 < rate["enqueue_seconds"] < rate["seconds"]
        assert len(rate["handover_ms"]) == flows
    assert len(figures["handovers_ms"]["1"]) == 3
    assert min(figures["handovers_ms"]["1"]) > 0


def test_dibs_is_measured_on_redis(own_redis: FlowRedis) -> None:
    figures = Measurement(dibs_on("redis"), own_redis, FEW).rates_and_handovers()

    check_figures(figures)
    requests = figures["rates"]["20"]["requests"]
    assert 0 < requests["reads"] < requests["commands"]
    assert requests["statements"] is None


def test_dibs_is_measured_on_postgres() -> None:
    """Each fan-in gets the results of all nodes: the sum is that of their numbers."""
    with start_servers({"postgresql"}) as (servers, versions):
        server = servers["postgresql"]
        check_figures(Measurement(dibs_on("postgresql"), server, FEW).rates_and_handovers())
        with open_session(dibs_on("postgresql"), server.reset()) as session:
            flows, _ = session.enqueue(1, 20)
            session.wait_for_fan_ins(flows)

        assert set(versions) == {"postgresql"}
        assert server.requests().commits
        assert [sum(range(20))] == [one.value for one in session.log.events if one[:2] == ("f", flows[0])]


def test_a_program_that_fails_is_unavailable_with_its_error(own_redis: FlowRedis) -> None:
    broken = System(name="dibs", kind="redis", program="celery_flows.py")

    with pytest.raises(PeerUnavailable, match=r"failed: .*ModuleNotFoundError"), open_session(broken, ""):
        pass


def test_every_system_has_a_program_and_the_requirements_of_the_comparison_of_queues() -> None:
    """The same requirements have the same environment."""
    pinned = {peer.requirements for peer in PEERS}
    for system in SYSTEMS:
        assert (PROGRAMS / system.program).is_file(), system.name
        assert system.requirements in pinned, system.name


def test_the_error_for_an_unknown_name_lists_the_systems() -> None:
    with pytest.raises(SystemExit, match="unknown system airflow; choose from bullmq, celery, dibs"):
        select_systems(["airflow"])


def test_too_many_kills_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--kills", "201"])

    assert "--kills is 201; choose 0 to 200" in capsys.readouterr().err
