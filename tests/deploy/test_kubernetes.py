"""The manifests: they follow the schemas of Kubernetes, and selectors, ports, probes and times fit together.

kubernetes-validate contains the schemas of Kubernetes, and none of KEDA: the ScaledObject is checked here.
"""

from __future__ import annotations

import copy
import subprocess
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # the package has no types
import pytest

from tests.deploy.files import DEPLOY, find_program, parse_command, read_all_yaml, read_yaml
from tests.deploy.test_compose import WORKER_ENTRYPOINT

FOLDER = DEPLOY / "kubernetes"
#: An old version that is still in use, and the newest one of the package.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
OBJECTS = [found for name in ("worker", "metrics") for found in read_all_yaml(FOLDER / f"{name}.yaml")]
SCALING = read_yaml(FOLDER / "scaling.yaml")
WORKER, METRICS = (found for found in OBJECTS if found["kind"] == "Deployment")


def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod(deployment)["containers"]
    found: dict[str, Any] = only
    return found


def of_kind(kind: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = (found for found in OBJECTS if found["kind"] == kind)
    return found


def command(deployment: dict[str, Any]) -> dict[str, Any]:
    its = container(deployment)
    return parse_command([*its.get("command", WORKER_ENTRYPOINT), *its.get("args", ())])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "manifest", OBJECTS, ids=lambda found: f"{found['kind']}-{found['metadata']['name']}"
)
def test_it_follows_the_schema(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schema_finds_a_mistake() -> None:
    bad = copy.deepcopy(WORKER)
    container(bad)["livenesProbe"] = container(bad).pop("livenessProbe")

    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(bad, VERSIONS[0], strict=True)


def test_kustomize_renders_all_objects() -> None:
    command = [find_program("kubectl"), "kustomize", str(FOLDER)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert len(OBJECTS) == rendered.count("\nkind: ")
    assert 2 == rendered.count("image: registry.example/shop:1")


@pytest.mark.parametrize("deployment", [WORKER, METRICS], ids=["worker", "metrics"])
def test_selectors_match_the_pods(deployment: dict[str, Any]) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    assert labels == deployment["spec"]["selector"]["matchLabels"]


def test_the_budget_and_the_service_select_their_pods() -> None:
    budget, service = of_kind("PodDisruptionBudget")["spec"], of_kind("Service")["spec"]

    assert budget["selector"] == WORKER["spec"]["selector"]
    assert service["selector"] == METRICS["spec"]["selector"]["matchLabels"]
    assert budget["maxUnavailable"] < WORKER["spec"]["replicas"]


def test_probes_and_services_name_ports_that_are_served() -> None:
    (health,), (metrics,) = container(WORKER)["ports"], container(METRICS)["ports"]
    probes = {name: probe for name, probe in container(WORKER).items() if name.endswith("Probe")}
    (port,), annotations = of_kind("Service")["spec"]["ports"], of_kind("Service")["metadata"]["annotations"]

    assert f"0.0.0.0:{health['containerPort']}" == command(WORKER)["health"]
    assert {health["name"]} == {probe["httpGet"]["port"] for probe in probes.values()}
    assert {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"} == {
        name: probe["httpGet"]["path"] for name, probe in probes.items()
    }
    assert (command(METRICS)["host"], command(METRICS)["port"]) == ("0.0.0.0", metrics["containerPort"])
    assert port["targetPort"] == metrics["name"] == container(METRICS)["livenessProbe"]["tcpSocket"]["port"]
    assert annotations["prometheus.io/port"] == str(port["port"])


def test_the_pod_has_more_time_than_the_grace() -> None:
    assert pod(WORKER)["terminationGracePeriodSeconds"] >= command(WORKER)["grace"] + 5


def test_one_pod_at_a_time_serves_the_metrics() -> None:
    assert (1, {"type": "Recreate"}) == (METRICS["spec"]["replicas"], METRICS["spec"]["strategy"])


def test_no_pod_runs_as_root() -> None:
    for deployment in (WORKER, METRICS):
        context = pod(deployment)["securityContext"]

        assert context["runAsNonRoot"]
        assert f"\nUSER {context['runAsUser']}:" in (DEPLOY / "Dockerfile").read_text("utf-8")


def test_keda_scales_the_workers() -> None:
    spec = SCALING["spec"]
    (trigger,) = spec["triggers"]

    assert ("keda.sh/v1alpha1", "ScaledObject") == (SCALING["apiVersion"], SCALING["kind"])
    assert {"name": WORKER["metadata"]["name"]} == spec["scaleTargetRef"]
    assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    assert "prometheus" == trigger["type"]
    assert {"serverAddress", "query", "threshold", "ignoreNullValues"} == set(trigger["metadata"])
    # The values of a trigger are texts.
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert 0 < float(trigger["metadata"]["threshold"])
