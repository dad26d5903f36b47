"""Rules of the source. Each rule is a function of a folder, so that a test can run it on a violation."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.source import PROJECT, Module, imports, read, write_source

SOURCE = ("src", "conformance", "tests", "benchmarks", "examples")
SUFFIXES = {".py", ".lua", ".sql"}
MAX_LINES = 800

# Names that do not describe their content.
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "managers", "util", "utils"}

# Modules whose loaders can call code that stored bytes name.
PICKLE_MODULES = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve", "_pickle"}

# Modules for input, output, time and random numbers. dibs.model gets all of these as arguments.
IMPURE_MODULES = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
CLOCKS = {"now", "today", "utcnow"}

# A file of the docs, which no wheel contains.
DOC_PATH = re.compile(r"docs/\w+/[\w-]+\.md")

# Exceptions whose text may be empty: messages have it from `summarize_exception`, which then names the type.
MAY_BE_EMPTY = {
    "BaseException", "CancelledError", "ConnectionError", "EOFError", "Error", "Exception",
    "IncompleteReadError", "LOST", "OSError", "RedisError", "TimeoutError",
}  # fmt: skip


def files(root: Path) -> Iterator[Path]:
    for folder in SOURCE:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES)


def vague_names(root: Path) -> list[str]:
    names = {path.relative_to(root).with_suffix("") for path in files(root)}
    return sorted(name.as_posix() for name in names if VAGUE_NAMES & set(name.parts))


def long_files(root: Path) -> list[str]:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in files(root)}
    return [f"{path.relative_to(root).as_posix()}: {n}" for path, n in lengths.items() if n > MAX_LINES]


def repeated_classes(root: Path) -> list[str]:
    """Return the public classes whose name another module has, too."""
    names: dict[str, list[str]] = {}
    for module in read(root / "src", root / "conformance").values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names.setdefault(node.name, []).append(module.name)
    return [f"{name}: {', '.join(modules)}" for name, modules in names.items() if len(modules) > 1]


def pickle_imports(root: Path) -> list[str]:
    modules = read(root / "src", root / "conformance").values()
    return [module.name for module in modules if PICKLE_MODULES & top_level_imports(module)]


def top_level_imports(module: Module) -> set[str]:
    return {wanted.base.partition(".")[0] for wanted in imports(module)}


def definitions(root: Path) -> list[str]:
    """Return the statements of dibs/__init__.py except for docstrings, imports and `__all__`."""
    tree = ast.parse((root / "src/dibs/__init__.py").read_text("utf-8"))
    return [ast.unparse(node) for node in tree.body if not is_import_or_export(node)]


def is_import_or_export(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=orelse):
            return all(map(is_import_or_export, (*body, *orelse)))
        case _:
            return False


def impurities(root: Path) -> list[str]:
    modules = [module for name, module in read(root / "src").items() if f"{name}.".startswith("dibs.model.")]
    impure_imports = [
        f"{module.name} imports {top}"
        for module in modules
        for top in sorted(IMPURE_MODULES & top_level_imports(module))
    ]
    impure_calls = [f"{module.name}:{line}" for module in modules for line in impure_lines(module)]
    return impure_imports + impure_calls


def impure_lines(module: Module) -> Iterator[int]:
    """Yield the lines that await, print, open a file or read a clock."""
    for node in ast.walk(module.tree):
        match node:
            case (
                ast.AsyncFunctionDef() | ast.Await() | ast.Call(func=ast.Name(id="open" | "print" | "input"))
            ):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr=called)) if called in CLOCKS:
                yield node.lineno


def empty_reasons(root: Path) -> list[str]:
    """Return where the text of an exception that may be empty becomes a message."""
    return [
        f"{module.name}:{line}"
        for module in read(root / "src").values()
        for handler in ast.walk(module.tree)
        if isinstance(handler, ast.ExceptHandler) and handler.name and may_be_empty(handler)
        for line in lines_with_text(handler)
    ]


def may_be_empty(handler: ast.ExceptHandler) -> bool:
    caught = ast.walk(handler.type) if handler.type else ()
    return any({getattr(node, "id", None), getattr(node, "attr", None)} & MAY_BE_EMPTY for node in caught)


def lines_with_text(handler: ast.ExceptHandler) -> Iterator[int]:
    """Yield the lines of a handler that format its exception, pass it to str(), or log it."""
    for node in (node for one in handler.body for node in ast.walk(one)):
        match node:
            case ast.FormattedValue(value=ast.Name(id=name), conversion=-1) if name == handler.name:
                yield node.lineno
            case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]) if name == handler.name:
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "logger")), args=[_, *values]):
                yield from (
                    value.lineno
                    for value in values
                    if isinstance(value, ast.Name) and value.id == handler.name
                )
            case _:
                pass


def doc_paths(root: Path) -> list[str]:
    """Return where a text of the program, docstrings apart, names a file of the docs: users have none."""
    return [
        f"{module.name}:{line}"
        for module in read(root / "src").values()
        for line, text in texts_of(module.tree)
        if DOC_PATH.search(text)
    ]


def texts_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that are no statements of their own, as docstrings are, with the lines."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


RULES: dict[str, tuple[Callable[[Path], list[str]], str, str]] = {
    "no vague file name": (vague_names, "src/dibs/client/utils.py", "x = 1"),
    "no vague folder name": (vague_names, "tests/helpers/one.py", "x = 1"),
    "no file of more than 800 lines": (long_files, "src/dibs/storage/redis/lua/claim.lua", "--\n" * 801),
    "no pickle": (
        pickle_imports,
        "src/dibs/client/options/serde.py",
        "def f():\n    from pickle import loads",
    ),
    "no pickle by literal name": (pickle_imports, "src/dibs/cli/main.py", "__import__('marshal')"),
    "no value in dibs/__init__.py": (definitions, "src/dibs/__init__.py", "VERSION = 1"),
    "no function in dibs/__init__.py": (definitions, "src/dibs/__init__.py", "def f(): ..."),
    "no class name twice": (
        repeated_classes,
        "src/dibs/worker/loop.py",
        "class Call: ...\nclass Call: ...",
    ),
    "no clock in the model": (impurities, "src/dibs/model/job.py", "import time"),
    "no current date in the model": (impurities, "src/dibs/model/job.py", "x = datetime.now(UTC)"),
    "no empty reason": (
        empty_reasons,
        "src/dibs/worker/loop.py",
        "try:\n    f()\nexcept TimeoutError as error:\n    log.warning('no answer: %s', error)",
    ),
    "no path of the docs in a message": (
        doc_paths,
        "src/dibs/cli/main.py",
        "print('see docs/howto/redis.md')",
    ),
    "no await in the model": (impurities, "src/dibs/model/job.py", "async def f(): ..."),
}


@pytest.mark.parametrize("rule", [rule for rule, _, _ in RULES.values()], ids=RULES)
def test_the_project_follows_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert [] == rule(PROJECT)


@pytest.mark.parametrize(("rule", "file", "text"), RULES.values(), ids=RULES)
def test_a_violation_is_found(
    tmp_path: Path, rule: Callable[[Path], list[str]], file: str, text: str
) -> None:
    write_source(tmp_path, "src/dibs/__init__.py", '"""Names."""\nfrom dibs.errors import E\n__all__ = ["E"]')

    clean = rule(tmp_path)
    write_source(tmp_path, file, text)

    assert [] == clean
    assert 1 == len(rule(tmp_path))
