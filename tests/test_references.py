"""Every file, module and symbol that a comment, a docstring or a docs page names exists."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.source import PROJECT, Module, read, write_source

SOURCES = ("src", "conformance", "benchmarks", "tools", "examples", "tests")
SUFFIXES = (".py", ".lua", ".sql")

#: A file as a text names it: `worker.py`, `redis/lua/claim.lua`, `docs/explanation/contract.md`.
FILE = re.compile(r"(?<![\w/.:<{*-])((?:[\w-]+/)*\w[\w-]*\.(?:py|lua|sql|md|toml))\b(?![/.]\w|\()")
#: A module or a symbol of ours by its dotted name.
DOTTED = re.compile(r"(?<![\w/.@-])((?:dibs|dibs_conformance|dibs_testing)(?:\.[A-Za-z_]\w*)+)")
#: An identifier, or a dotted path of them, in backticks.
QUOTED = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`(?!`)")

WORD = re.compile(r"[A-Za-z_]\w*")

#: Files that belong to a user's project, a system or another library, by the name that texts give them.
THEIRS = {
    "app.py", "application.py", "base.py", "celery.py", "conftest.py", "m.py", "manage.py", "models.py",
    "settings.py", "setup.py", "sitecustomize.py", "spark.sql", "pyspark.sql", "streaming.sql", "tasks.py",
    "views.py",
}  # fmt: skip
#: Identifiers of Spark, Celery and other systems that our code does not call.
THEIR_SYMBOLS = {"mapInArrow"}
#: Dotted names that are not modules: entry-point groups, and the queues of notes and worker records.
NOT_MODULES = {
    *("dibs.storages", "dibs.commands", "dibs.move", "dibs.workers"),
    *("dibs.flows", "dibs.flows.evaluate", "dibs.cancel", "dibs.nodes", "dibs.stamp"),
    *("dibs.batch", "dibs.summary", "dibs.schedule", "dibs.schedule_state"),
}


class Text(NamedTuple):
    """A comment, a docstring or a line of a page."""

    path: Path
    line: int
    text: str


@cache
def texts(root: Path) -> tuple[Text, ...]:
    """Return all texts below a folder. Each of the rules reads all of them, which takes seconds once."""
    return tuple(each_text(root))


def each_text(root: Path) -> Iterator[Text]:
    for path in sources(root):
        if path.suffix == ".py":
            yield from python_texts(path)
        else:
            yield from comments(path)
    for path in (
        sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted(root.glob("tests/*.md"))
    ):
        yield from prose(path)


def sources(root: Path) -> list[Path]:
    return [path for top in SOURCES for path in sorted((root / top).rglob("*")) if path.suffix in SUFFIXES]


class PythonFile(NamedTuple):
    """The comments, names and syntax nodes of a file, which the rules check."""

    #: The comments with their lines.
    comments: list[tuple[int, str]]
    names: set[str]
    nodes: list[ast.AST]


@cache
def read_python(path: Path) -> PythonFile:
    source = path.read_text("utf-8")
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    names = {token.string for token in tokens if token.type == tokenize.NAME}
    return PythonFile(comments, names, [node for node in ast.walk(ast.parse(source)) if is_text(node)])


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def python_texts(path: Path) -> Iterator[Text]:
    file = read_python(path)
    yield from (Text(path, line, comment) for line, comment in file.comments)
    for node in file.nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield Text(path, node.lineno, text)
            case _:
                pass


def comments(path: Path) -> Iterator[Text]:
    """Yield the comments of Lua and SQL; both begin with two hyphens."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if "--" in line:
            yield Text(path, number, line.partition("--")[2])


def prose(path: Path) -> Iterator[Text]:
    """Yield the lines of a page outside of its code blocks, whose code is run by other tests."""
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield Text(path, number, line)


def written_files(root: Path) -> set[str]:
    """Return the files that a page tells its reader to write, by the titles of its code blocks."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    titles = re.compile(r"^# (\w+\.py)$|title=\"([\w/]+\.py)\"", re.MULTILINE)
    found = (name for page in pages for name in titles.findall(page.read_text("utf-8")))
    return {name.rpartition("/")[2] for pair in found for name in pair if name}


def missing_files(root: Path) -> list[str]:
    known = endings(root)
    theirs = THEIRS | written_files(root)
    return [
        f"{text.path.relative_to(root)}:{text.line} names {name}, and no such file exists"
        for text in texts(root)
        for name in FILE.findall(text.text)
        if name not in theirs and name not in known
    ]


@cache
def endings(root: Path) -> frozenset[str]:
    """Return the paths of the files of the project, also without their first folders."""
    parts = (file.split("/") for file in tracked(root))
    return frozenset("/".join(path[at:]) for path in parts for at in range(len(path)))


def tracked(root: Path) -> tuple[str, ...]:
    """Return the files of the project; in a folder that git does not know, every file."""
    asked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = asked.stdout.splitlines()
    return tuple(names or [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()])


def missing_modules(root: Path) -> list[str]:
    modules = read(root / "src", root / "conformance")
    return [
        f"{text.path.relative_to(root)}:{text.line} names {name}, and no such module or symbol exists"
        for text in texts(root)
        for name in DOTTED.findall(text.text)
        if name not in NOT_MODULES and not is_known(name, modules)
    ]


def is_known(name: str, modules: Mapping[str, Module]) -> bool:
    """Return whether a dotted name is a module, or a module followed by names that it defines or imports."""
    if name in modules:
        return True
    module, _, last = name.rpartition(".")
    if module in modules:
        return last in names_of(modules[module])
    outer, _, owner = module.rpartition(".")
    return (
        outer in modules
        and owner in names_of(modules[outer])
        and any(last in words_of(module.path) for module in modules.values())
    )


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those under `if TYPE_CHECKING:`, which dibs loads lazily."""
    for node in tree.body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from node.body
            case _:
                yield node


@cache
def names_of(module: Module) -> frozenset[str]:
    """Return the names that a module binds at its top level."""
    found: set[str] = set()
    for node in top_level(module.tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                found.update(alias.asname or alias.name for alias in names)
            case _:
                pass
    return frozenset(found)


@cache
def words_of(path: Path) -> frozenset[str]:
    """Return the identifiers of a source, and the words of its strings that hold no sentence."""
    if path.suffix != ".py":
        return frozenset(WORD.findall(re.sub(r"--.*", "", path.read_text("utf-8"))))
    file = read_python(path)
    strings = (node.value for node in file.nodes if isinstance(node, ast.Constant))
    keys = (text for text in strings if isinstance(text, str) and " " not in text)
    return frozenset(file.names).union(*map(WORD.findall, keys))


def missing_symbols(root: Path) -> list[str]:
    """Return the identifiers in backticks, in comments and docstrings, that no code has."""
    known = {*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names, *THEIR_SYMBOLS}
    known.update(*(words_of(path) for path in sources(root)))
    return [
        f"{text.path.relative_to(root)}:{text.line} names `{name}`, and no code has `{part}`"
        for text in texts(root)
        if text.path.suffix != ".md"
        for name in QUOTED.findall(text.text)
        if not FILE.fullmatch(name)
        for part in name.split(".")
        if part not in known
    ]


RULES = {
    "a file": (missing_files, "# As in gone.py.", "# As in here.py."),
    "a file by its path": (missing_files, "# As in model/here.py.", "# As in src/dibs/here.py."),
    "a module": (missing_modules, '"""See dibs.gone."""', '"""See dibs.here."""'),
    "a symbol of a module": (missing_modules, '"""See dibs.here.gone."""', '"""See dibs.here.name."""'),
    "a symbol": (missing_symbols, "#: Like `gone`.", "#: Like `name`."),
}


@pytest.mark.long
@pytest.mark.parametrize("rule", [missing_files, missing_modules, missing_symbols])
def test_what_a_text_names_exists(rule: object) -> None:
    assert callable(rule)

    assert [] == rule(PROJECT)


@pytest.mark.parametrize(("rule", "wrong", "right"), RULES.values(), ids=RULES)
def test_a_planted_reference_is_caught(tmp_path: Path, rule: object, wrong: str, right: str) -> None:
    assert callable(rule)
    for folder, text in (("right", right), ("wrong", wrong)):
        write_source(tmp_path / folder, "src/dibs/here.py", "name = 1\n")
        write_source(tmp_path / folder, "src/dibs/other.py", f"{text}\n")

    assert [] == rule(tmp_path / "right")
    assert 1 == len(rule(tmp_path / "wrong"))
