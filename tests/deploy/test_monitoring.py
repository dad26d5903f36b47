"""The alerts, the board and the query of KEDA use the metrics, labels and values that dibs exports."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml  # type: ignore[import-untyped]  # the package has no types

from dibs import Dibs
from dibs.telemetry.metrics import ATTEMPT_ENDS, STATES
from dibs.telemetry.storage_metrics import WORKER_STATES, StorageMetrics
from tests.deploy.files import DEPLOY, find_program, read_yaml
from tests.docs.pages import Page
from tests.docs.test_readme import rules
from tests.source import PROJECT

ALERTS = DEPLOY / "prometheus/alerts.yaml"
RULES: list[dict[str, Any]] = [rule for group in read_yaml(ALERTS)["groups"] for rule in group["rules"]]
BOARD = json.loads((DEPLOY / "grafana/dibs.json").read_text("utf-8"))
KEDA_QUERY = read_yaml(DEPLOY / "kubernetes/scaling.yaml")["spec"]["triggers"][0]["metadata"]["query"]
RECORDED = {rule["record"]: {"queue"} for rule in RULES if "record" in rule}
#: Labels that Prometheus adds to each series.
OF_PROMETHEUS = {"instance", "job"}
VALUES = {
    ("dibs_jobs", "state"): {*STATES},
    ("dibs_workers", "state"): {*WORKER_STATES},
    ("dibs_ends_total", "end"): {*ATTEMPT_ENDS},
    ("dibs_findings", "code"): {rule.code for rule in rules()},
    ("dibs_findings", "severity"): {rule.severity for rule in rules()},
}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each exported sample, by its name."""
    return asyncio.run(read_exported())


async def read_exported() -> dict[str, set[str]]:
    found: dict[str, set[str]] = dict(RECORDED)
    async with Dibs("memory:") as app:
        counting = StorageMetrics(app)
        await counting.read()
        await app.queue("q").enqueue_many([app.queue("q").bind(number) for number in range(2)])
        async with app.queue("q").receive(wait=0) as claims:
            await (await anext(aiter(claims))).complete()
        # The first one has kept its findings. Nothing listens on port 1, so the last one exports an error.
        collectors = (counting, StorageMetrics(app), StorageMetrics(Dibs("redis://127.0.0.1:1")))
        for metric in [metric for collector in collectors for metric in await collector.read()]:
            for sample in metric.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panel_queries() -> Iterator[str]:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            # Grafana replaces its variables before Prometheus reads the query.
            yield target["expr"].replace("$__rate_interval", "5m")


def variable_queries() -> Iterator[str]:
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            yield f"sum by ({label}) ({series})"


QUERIES = [*(rule["expr"] for rule in RULES), *panel_queries(), *variable_queries(), KEDA_QUERY]


def faults(query: str, exported: dict[str, set[str]]) -> Iterator[str]:
    """Yield each metric, label and value of a query that dibs does not export."""
    nodes: list[Any] = []
    promql.walk(promql.parse(query), nodes.append)
    known = set[str]()
    for node in (node for node in nodes if isinstance(node, promql.VectorSelector)):
        if node.name not in exported:
            yield f"metric {node.name}"
            continue
        known |= exported[node.name] | OF_PROMETHEUS
        for matcher in node.matchers.matchers:
            if matcher.name not in exported[node.name] | OF_PROMETHEUS:
                yield f"label {matcher.name} of {node.name}"
            values = set() if matcher.value.startswith("$") else {*matcher.value.split("|")}
            yield from (
                f"{node.name}: {matcher.name} {value}"
                for value in values - VALUES.get((node.name, matcher.name), set())
            )
    yield from (f"label {label}" for label in sorted(grouping_labels(nodes) - known))


def grouping_labels(nodes: list[Any]) -> set[str]:
    """Return the labels after by, without, on and ignoring."""
    found = set[str]()
    for node in nodes:
        modifier = getattr(node, "modifier", None)
        for part in (modifier, getattr(modifier, "matching", None)):
            found |= {*(getattr(part, "labels", None) or ())}
    return found


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_uses_what_dibs_exports(query: str, exported: dict[str, set[str]]) -> None:
    assert [] == list(faults(query, exported))


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("rate(dibs_ended_total[5m]) > 0", "metric dibs_ended_total"),
        ('dibs_jobs{status="waiting"}', "label status of dibs_jobs"),
        ('dibs_jobs{state=~"waiting|asleep"}', "dibs_jobs: state asleep"),
        ('dibs_findings{code="leases-late"}', "dibs_findings: code leases-late"),
        ("sum by (worker) (dibs_workers)", "label worker"),
        ("dibs_jobs - ignoring (states) dibs_jobs", "label states"),
    ],
)
def test_a_query_with_a_mistake_is_found(query: str, fault: str, exported: dict[str, set[str]]) -> None:
    assert fault == next(faults(query, exported))


def test_every_metric_of_the_page_is_exported(exported: dict[str, set[str]]) -> None:
    page = (PROJECT / "docs/howto/observability.md").read_text("utf-8")
    table = page.partition("## Metrics")[2].partition("### In your own program")[0]
    names = {
        name: {*filter(None, labels.split(","))}
        for name, labels in re.findall(r"^\| `(\w+)(?:\{(.*?)\})?` \|", table, re.MULTILINE)
    }
    families = {
        re.sub(r"_(bucket|count|sum|created)$", "", name): labels - {"le"}
        for name, labels in exported.items()
        if name not in RECORDED and not name.endswith("_created")
    }

    assert names == families


def test_alerts_cover_the_faults_that_stop_jobs() -> None:
    names = {rule["alert"] for rule in RULES if "alert" in rule}

    assert names >= {
        *("DibsBacklogGrows", "DibsQueueStandsStill", "DibsJobsWaitLong", "DibsJobsFail"),
        *("DibsNoWorkers", "DibsExpiredLeases", "DibsStorageDown", "DibsStorageErrors"),
    }
    assert all({"summary", "description"} == set(rule["annotations"]) for rule in RULES if "alert" in rule)


def run_promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    promtool = find_program("promtool", "apt-get install prometheus")
    return subprocess.run([promtool, *map(str, words)], capture_output=True, text=True, check=False)


def test_prometheus_accepts_the_configuration_of_the_page(tmp_path: Path) -> None:
    (block,) = (block for block in Page("howto/deploy.md").blocks if block.title == "prometheus.yml")
    (tmp_path / "prometheus.yml").write_text(block.text)
    shutil.copy(ALERTS, tmp_path)
    done = run_promtool("check", "config", tmp_path / "prometheus.yml")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert f"SUCCESS: {len(RULES)} rules found" in done.stdout


def test_prometheus_accepts_the_rules() -> None:
    done = run_promtool("check", "rules", ALERTS)

    assert 0 == done.returncode, done.stdout + done.stderr


def run_cases(rules_text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the cases of alerts_test.yaml on rules without their annotations, which the cases leave out."""
    rules = yaml.safe_load(rules_text)
    for rule in rules["groups"][0]["rules"]:
        rule.pop("annotations", None)
    (folder / "alerts.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(Path(__file__).parent / "alerts_test.yaml", folder)
    return run_promtool("test", "rules", folder / "alerts_test.yaml")


def test_each_alert_is_raised_when_it_should_be(tmp_path: Path) -> None:
    done = run_cases(ALERTS.read_text("utf-8"), tmp_path)

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("dibs_storage_up == 0", "dibs_storage_up == 1"),
        ("unless ignoring (state)", "and ignoring (state)"),
        ("> 0.05 *", "> 0.5 *"),
        ("[15m])) >= 3", "[15m])) >= 30"),
        (' - sum without (state) (dibs_jobs{state="scheduled"})', ""),
    ],
)
def test_a_wrong_rule_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    text = ALERTS.read_text("utf-8")

    assert right in text
    assert 1 == run_cases(text.replace(right, wrong), tmp_path).returncode


def test_each_alert_has_a_case_that_raises_it_and_one_that_does_not() -> None:
    cases = read_yaml(Path(__file__).parent / "alerts_test.yaml")["tests"]
    tested = [(case["alertname"], "exp_alerts" in case) for test in cases for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES if "alert" in rule}

    assert {(name, raised) for name in names for raised in (True, False)} == {*tested}


def test_the_panels_do_not_overlap_and_read_the_chosen_prometheus() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not own & cells
        assert place["x"] + place["w"] <= 24
        assert {"type": "prometheus", "uid": "${datasource}"} == panel["datasource"]
        assert all(panel["datasource"] == target["datasource"] for target in panel["targets"])
        cells |= own

    assert len(BOARD["panels"]) == len({panel["id"] for panel in BOARD["panels"]})
    names = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = {*re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))} - {"__rate_interval"}
    assert {"datasource", "instance", "queue"} == names == used
