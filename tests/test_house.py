"""The other rules of the house, each a small function over a folder so that it can be seen to fail."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.source import PROJECT, Module, imports, plant, read

SOURCE = ("src", "conformance", "tests", "benchmarks", "examples")
SUFFIXES = {".py", ".lua", ".sql"}
MOST_LINES = 400

# A drawer is a name that says nothing about what is inside.
DRAWERS = {"common", "helper", "helpers", "manager", "managers", "util", "utils"}

# Everything that turns stored bytes into calls.
PICKLES = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve", "_pickle"}

# The model is values and pure functions: time, chance and the outside come in as arguments.
OUTSIDE = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
CLOCKS = {"now", "today", "utcnow"}


def files(root: Path) -> Iterator[Path]:
    for folder in SOURCE:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES)


def drawers(root: Path) -> list[str]:
    names = {path.relative_to(root).with_suffix("") for path in files(root)}
    return sorted(name.as_posix() for name in names if DRAWERS & set(name.parts))


def long_files(root: Path) -> list[str]:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in files(root)}
    return [f"{path.relative_to(root).as_posix()}: {n}" for path, n in lengths.items() if n > MOST_LINES]


def pickles(root: Path) -> list[str]:
    modules = read(root / "src", root / "conformance").values()
    return [module.name for module in modules if PICKLES & tops(module)]


def tops(module: Module) -> set[str]:
    return {wanted.base.partition(".")[0] for wanted in imports(module)}


def definitions(root: Path) -> list[str]:
    """What the front page does beyond naming: all but its docstring, imports and `__all__`."""
    tree = ast.parse((root / "src/dibs/__init__.py").read_text("utf-8"))
    return [ast.unparse(node) for node in tree.body if not is_naming(node)]


def is_naming(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=orelse):
            return all(map(is_naming, (*body, *orelse)))
        case _:
            return False


def impurities(root: Path) -> list[str]:
    modules = [module for name, module in read(root / "src").items() if f"{name}.".startswith("dibs.model.")]
    reach = [f"{module.name} imports {top}" for module in modules for top in sorted(OUTSIDE & tops(module))]
    do = [f"{module.name}:{line}" for module in modules for line in acts(module)]
    return reach + do


def acts(module: Module) -> Iterator[int]:
    """Lines that wait, open a file or read a clock."""
    for node in ast.walk(module.tree):
        match node:
            case (
                ast.AsyncFunctionDef() | ast.Await() | ast.Call(func=ast.Name(id="open" | "print" | "input"))
            ):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr=called)) if called in CLOCKS:
                yield node.lineno


RULES: dict[str, tuple[Callable[[Path], list[str]], str, str]] = {
    "no drawers": (drawers, "src/dibs/client/utils.py", "x = 1"),
    "no folder that is a drawer": (drawers, "tests/helpers/one.py", "x = 1"),
    "no file of more than 400 lines": (long_files, "src/dibs/storage/redis/lua/claim.lua", "--\n" * 401),
    "no pickle": (pickles, "src/dibs/client/options/serde.py", "def f():\n    from pickle import loads"),
    "no pickle by literal name": (pickles, "src/dibs/cli/main.py", "__import__('marshal')"),
    "nothing is defined in dibs/__init__.py": (definitions, "src/dibs/__init__.py", "VERSION = 1"),
    "no function in dibs/__init__.py": (definitions, "src/dibs/__init__.py", "def f(): ..."),
    "no clock in the model": (impurities, "src/dibs/model/job.py", "import time"),
    "no reading of the date in the model": (impurities, "src/dibs/model/job.py", "x = datetime.now(UTC)"),
    "no awaiting in the model": (impurities, "src/dibs/model/job.py", "async def f(): ..."),
}


@pytest.mark.parametrize("rule", [rule for rule, _, _ in RULES.values()], ids=RULES)
def test_the_project_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert [] == rule(PROJECT)


@pytest.mark.parametrize(("rule", "file", "text"), RULES.values(), ids=RULES)
def test_a_planted_breach_is_caught(
    tmp_path: Path, rule: Callable[[Path], list[str]], file: str, text: str
) -> None:
    plant(tmp_path, "src/dibs/__init__.py", '"""Names."""\nfrom dibs.errors import E\n__all__ = ["E"]')

    clean = rule(tmp_path)
    plant(tmp_path, file, text)

    assert [] == clean
    assert 1 == len(rule(tmp_path))
