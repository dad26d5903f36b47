"""Reads source without running it: modules, and every import in them, for the rules of the house."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

PROJECT = Path(__file__).parent.parent
OURS = ("dibs", "dibs_conformance", "dibs_testing")

LOADERS = {"import_module", "__import__"}


@dataclass(frozen=True, kw_only=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Import:
    """One name asked for: `from base import name as alias`; without a name, the module `base` itself."""

    line: int
    base: str
    name: str | None = None
    alias: str | None = None

    def passes_on(self, name: str) -> Import | None:
        """What someone else gets who asks the importing module for `name`."""
        if self.name == "*":
            return Import(line=self.line, base=self.base, name=name)
        return self if name in {"*", self.alias} else None


def read(*roots: Path) -> dict[str, Module]:
    """Every module below the given folders, by its dotted name."""
    modules = (read_module(path, root) for root in roots for path in sorted(root.rglob("*.py")))
    return {module.name: module for module in modules}


@cache
def read_module(path: Path, root: Path) -> Module:
    """One module; read once, for every rule of the house looks at all of them."""
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name=name, path=path, tree=ast.parse(path.read_text("utf-8"), str(path)))


def read_project() -> dict[str, Module]:
    return read(PROJECT / "src", PROJECT / "conformance")


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """All of them: at the top, in functions, under TYPE_CHECKING, and by literal name."""
    return tuple(each_import(module))


def each_import(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(line=node.lineno, base=alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.package)
            for alias in node.names:
                yield Import(line=node.lineno, base=base, name=alias.name, alias=alias.asname or alias.name)
        elif isinstance(node, ast.Call):
            yield from loaded(node, module)


def loaded(call: ast.Call, module: Module) -> Iterator[Import]:
    """`import_module("…")` is an import too, as far as a name can be read."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called in LOADERS and call.args and isinstance(call.args[0], ast.Constant):
        name = str(call.args[0].value)
        yield Import(line=call.lineno, base=resolve_name(name, module.package))


def reached(wanted: Import, modules: dict[str, Module]) -> set[str]:
    """The modules an import lays hands on: a package bound to a name hands out all it holds."""
    inner = f"{wanted.base}.{wanted.name}"
    if wanted.name is not None and inner not in modules:
        return {wanted.base}
    target = wanted.base if wanted.name is None else inner
    found = modules.get(target)
    if found is None or not found.is_package:
        return {target}
    return {target} | {name for name in modules if name.startswith(f"{target}.")}


def origins(
    wanted: Import, modules: dict[str, Module], seen: frozenset[tuple[str, str]] = frozenset()
) -> set[str]:
    """Where the imported name comes from in the end, through all re-exports in between."""
    found = reached(wanted, modules)
    module = modules.get(wanted.base)
    if module is None or wanted.name is None or (wanted.base, wanted.name) in seen:
        return found
    seen |= {(wanted.base, wanted.name)}
    for own in imports(module):
        passed_on = own.passes_on(wanted.name)
        if passed_on is not None:
            found |= origins(passed_on, modules, seen)
    return found


def plant(root: Path, file: str, text: str) -> None:
    """Write a file of a small house, in which a test plants a breach of a rule."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
