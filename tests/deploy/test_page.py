"""The page about deployments: its commands and files exist, and its tables have each file and alert."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml  # type: ignore[import-untyped]  # the package has no types

from dibs import Dibs
from dibs.client.options.arguments import duration_seconds
from tests.deploy.files import DEPLOY, parse_command, read_yaml
from tests.deploy.test_compose import WORKER_ENTRYPOINT
from tests.docs.pages import Page

PAGE = Page("howto/deploy.md")
TYPED = [
    line.removeprefix("$ ")
    for block in PAGE.blocks
    if block.language == "console"
    for line in block.text.splitlines()
    if line.startswith("$ ")
]
ALERTS = (DEPLOY / "prometheus/alerts.yaml").read_text("utf-8").replace("{{ $labels.queue }}", "q")
INLINE = sorted({*re.findall(r"`(dibs [^`]+)`", PAGE.text), *re.findall(r"`(dibs [^`]+)`", ALERTS)})


def dibs_words(line: str) -> list[str] | None:
    """Return the `dibs` command of a typed line, also the one that a container runs; None without one."""
    words = shlex.split(line)
    if words[:2] == ["docker", "run"]:
        return [*WORKER_ENTRYPOINT, *words[words.index("shop") + 1 :]]
    if words[0] == "dibs":
        return words
    return words[words.index("dibs") :] if "exec" in words else None


@pytest.mark.parametrize("line", [line for line in TYPED if dibs_words(line)])
def test_a_typed_command_exists(line: str) -> None:
    words = dibs_words(line)

    assert words is not None
    assert parse_command(words)


@pytest.mark.parametrize("text", INLINE)
def test_a_named_command_exists(text: str) -> None:
    words = shlex.split(text)
    # A sentence may name these commands without their arguments.
    needed = {"show": ["q", "id"], "retry": ["q", "id"], "worker": ["shop:app"]}.get(words[1], [])

    assert parse_command(words if words[-len(needed) :] == needed else [*words, *needed])


def test_three_commands_are_typed() -> None:
    assert ["worker", "enqueue", "metrics"] == [
        words[1] for words in map(dibs_words, TYPED) if words is not None
    ]


def test_the_container_has_more_time_than_the_grace() -> None:
    (line,) = (line for line in TYPED if line.startswith("docker run"))
    words = dibs_words(line)
    seconds = int(line.partition("--stop-timeout ")[2].split()[0])

    assert words is not None
    assert seconds >= duration_seconds("grace", parse_command(words)["grace"]) + 5


def test_named_files_exist() -> None:
    named = re.findall(r"\bdeploy/[\w./*]+", PAGE.text)

    assert [] == [name for name in named if not list(DEPLOY.parent.glob(name.rstrip(".")))]


def test_the_first_table_has_each_file() -> None:
    table = PAGE.text.partition("| file |")[2].partition("\n\n")[0]
    rows = {name.partition("/")[0] for name in re.findall(r"^\| `([\w./]+)`", table, re.MULTILINE)}

    assert rows == {path.name for path in DEPLOY.iterdir()} - {"Dockerfile.dockerignore", "app"}


def test_the_table_has_each_alert() -> None:
    rules = read_yaml(DEPLOY / "prometheus/alerts.yaml")["groups"][0]["rules"]
    expected = [
        (rule["alert"], rule["labels"]["severity"], rule["annotations"]["summary"])
        for rule in rules
        if "alert" in rule
    ]
    table = PAGE.text.partition("<!-- alerts: begin -->")[2].partition("<!-- alerts: end -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", table, re.MULTILINE)

    assert [
        (
            name,
            severity,
            re.sub(r"\{\{.*?labels\.queue.*?\}\}", "a queue", text).replace("{{ $labels.code }}", "an error"),
        )
        for name, severity, text in expected
    ] == rows


def test_the_configuration_of_prometheus_is_yaml_and_names_the_rules() -> None:
    (block,) = (block for block in PAGE.blocks if block.title == "prometheus.yml")

    assert ["alerts.yaml"] == yaml.safe_load(block.text)["rule_files"]


async def test_the_enqueued_payload_fits_the_task(shop_app: Dibs) -> None:
    (line,) = (line for line in TYPED if " enqueue " in line)
    *_, queue, payload = shlex.split(line)
    async with shop_app:
        ticket = await shop_app.queue(queue).enqueue(yaml.safe_load(payload))
        await shop_app.work(until="empty", handle_signals=False)

        assert "Hello, Ada" == await ticket.result()
