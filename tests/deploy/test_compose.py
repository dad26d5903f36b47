"""The compose file: it follows the schema of the Compose Specification, and its services fit together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from dibs.client.options.arguments import duration_seconds
from dibs.model.duration_text import parse_seconds
from dibs.storage.registry import open_storage
from tests.deploy.files import DEPLOY, parse_command, read_yaml

COMPOSE = DEPLOY / "compose.yaml"
SERVICES: dict[str, Any] = read_yaml(COMPOSE)["services"]
WORKER_ENTRYPOINT = ["dibs", "worker", "--health", "0.0.0.0:8080"]


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def words(service: dict[str, Any]) -> list[str]:
    return [*service.get("entrypoint", WORKER_ENTRYPOINT), *service["command"]]


def test_it_follows_the_schema() -> None:
    done = validate(COMPOSE)

    assert 0 == done.returncode, done.stdout


def test_the_schema_finds_a_mistake(tmp_path: Path) -> None:
    bad = tmp_path / "compose.yaml"
    bad.write_text(COMPOSE.read_text("utf-8").replace("stop_grace_period", "stop_grace_time"))

    assert 1 == validate(bad).returncode


@pytest.mark.parametrize("name", ["worker", "web", "metrics"])
def test_the_command_lines_exist(name: str) -> None:
    assert parse_command(words(SERVICES[name]))


def test_two_workers_have_more_time_than_their_grace() -> None:
    worker = SERVICES["worker"]
    stop = parse_seconds("stop_grace_period", worker["stop_grace_period"])

    assert 2 == worker["deploy"]["replicas"]
    assert stop >= duration_seconds("grace", parse_command(words(worker))["grace"]) + 5


@pytest.mark.parametrize("name", ["web", "metrics"])
def test_the_published_port_is_the_one_that_is_served(name: str) -> None:
    served = str(parse_command(words(SERVICES[name]))["port"])
    (published,) = SERVICES[name]["ports"]

    # Not to other machines, as a bare port would be.
    assert f"127.0.0.1:{served}:{served}" == published
    assert f"('127.0.0.1', {served})" in SERVICES[name]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", ["redis", "postgres"])
def test_each_server_has_a_profile_and_a_volume(name: str) -> None:
    assert [name] == SERVICES[name]["profiles"]
    assert SERVICES[name]["volumes"][0].startswith(f"{name}:/")
    assert {"condition": "service_healthy", "required": False} == SERVICES["worker"]["depends_on"][name]


def test_the_urls_of_the_comment_name_the_servers() -> None:
    comment = COMPOSE.read_text("utf-8").partition("\nname:")[0]
    urls = [word.removeprefix("DIBS_URL=") for word in comment.split() if word.startswith("DIBS_URL=")]

    assert ["redis://redis:6379", "postgresql://dibs:secret@postgres/dibs"] == urls
    assert all(open_storage(url) for url in urls)


def test_the_workers_run_the_application_of_the_folder(shop_app: Dibs) -> None:
    assert "shop:app" == parse_command(words(SERVICES["worker"]))["application"]
    assert "./app:/app:ro" in SERVICES["worker"]["volumes"]
    assert ["shop.greet"] == list(shop_app.handlers)
