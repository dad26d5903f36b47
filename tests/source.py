"""A reader of source files: modules and their imports, for the tests of the project's structure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

from attrs import frozen

PROJECT = Path(__file__).parent.parent
OUR_PACKAGES = ("dibs", "dibs_conformance", "dibs_testing")

LOADERS = {"import_module", "__import__"}


@frozen(kw_only=True)
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


@frozen(kw_only=True)
class Import:
    """One imported name: `from base import name as alias`. Without a name, the import of module `base`."""

    line: int
    base: str
    name: str | None = None
    alias: str | None = None

    def reexport(self, name: str) -> Import | None:
        """Return the import that provides `name` to modules that import it from this module, or None."""
        if self.name == "*":
            return Import(line=self.line, base=self.base, name=name)
        return self if name in {"*", self.alias} else None


def read(*roots: Path) -> dict[str, Module]:
    """Return all modules below these folders by their dotted names."""
    modules = (read_module(path, root) for root in roots for path in sorted(root.rglob("*.py")))
    return {module.name: module for module in modules}


@cache
def read_module(path: Path, root: Path) -> Module:
    """Return one module. It is parsed once, because each test reads all modules."""
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name=name, path=path, tree=ast.parse(path.read_text("utf-8"), str(path)))


def read_project() -> dict[str, Module]:
    return read(PROJECT / "src", PROJECT / "conformance")


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Return all imports of a module: at its top, in functions, under TYPE_CHECKING, and by literal name."""
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
            yield from import_by_name(node, module)


def import_by_name(call: ast.Call, module: Module) -> Iterator[Import]:
    """Yield the import of a call such as `import_module("dibs.cli")` with a literal name."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called in LOADERS and call.args and isinstance(call.args[0], ast.Constant):
        name = str(call.args[0].value)
        yield Import(line=call.lineno, base=resolve_name(name, module.package))


def modules_in_import(wanted: Import, modules: dict[str, Module]) -> set[str]:
    """Return the modules that an import gives access to. A package gives access to all its modules."""
    inner = f"{wanted.base}.{wanted.name}"
    if wanted.name is not None and inner not in modules:
        return {wanted.base}
    target = wanted.base if wanted.name is None else inner
    found = modules.get(target)
    if found is None or not found.is_package:
        return {target}
    return {target} | {name for name in modules if name.startswith(f"{target}.")}


def defining_modules(
    wanted: Import, modules: dict[str, Module], seen: frozenset[tuple[str, str]] = frozenset()
) -> set[str]:
    """Return the modules that define the imported name or re-export it on the way."""
    found = modules_in_import(wanted, modules)
    module = modules.get(wanted.base)
    if module is None or wanted.name is None or (wanted.base, wanted.name) in seen:
        return found
    seen |= {(wanted.base, wanted.name)}
    for own in imports(module):
        reexport = own.reexport(wanted.name)
        if reexport is not None:
            found |= defining_modules(reexport, modules, seen)
    return found


def write_source(root: Path, file: str, text: str) -> None:
    """Write a file of a small project, in which a test violates a rule."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
