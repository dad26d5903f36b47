"""Writes handles.py and claims.py of src/dibs/client/sync, the `.sync` twins, from the async source.

    python tools/make_blocking.py           writes them
    python tools/make_blocking.py --check   fails if one is not current

A twin has what an async handle has, with the same signatures, and waits for it on the loop where the app
is open. What declares handlers stays on the async handle alone.
"""

# ruff: noqa: INP001 - a script, imported by nobody

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "src" / "dibs" / "client"
#: What is written, by the modules that it is made from.
TARGETS = {
    CLIENT / "sync" / "handles.py": ("app", "queue", "task", "ticket"),
    CLIENT / "sync" / "claims.py": ("receiver", "claim", "feed"),
}

#: The handles by module, in the order in which they are written, each with its type parameters.
HANDLES = {
    "app": {"Dibs": ""},
    "queue": {"Queue": ""},
    "task": {"TaskEnqueuer": "[P, R]", "Task": "[P, R]"},
    "ticket": {"Ticket": "[R]"},
    "receiver": {"Receiver": ""},
    "claim": {"Claim": ""},
    "feed": {"Feed": ""},
}
NAMES = {name: parameters for group in HANDLES.values() for name, parameters in group.items()}
#: What a reader calls a handle.
WRITTEN = {"Dibs": "app", "TaskEnqueuer": "task"}
#: What declares, belongs to the engine, or makes the twin.
LEFT_OUT = {
    *("task", "handler", "on_failure", "after", "lifespan", "lifespan_function", "function", "named"),
    *("handlers", "storage", "lease_ms", "sync"),
    *("using", "elsewhere", "surround"),
}
#: These run for long: on the caller's own thread, where signals arrive.
HERE = {"work"}
#: These may use a connection of the caller's, on the caller's own thread.
JOINING = {"enqueue", "enqueue_many", "complete", "fail"}
RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
#: What to write on a running loop in place of a renamed method.
FORMS = {"__aenter__": "async with", "__aexit__": "async with", "__anext__": "async for"}

Method = ast.FunctionDef | ast.AsyncFunctionDef

HEADER = '''"""The blocking twins of the async handles: what they say holds here, too.

Written by tools/make_blocking.py from the async source: change that.
"""

# ruff: noqa: SLF001 - a twin is the other half of its handle

from __future__ import annotations

'''
TYPES = {"P": 'P = ParamSpec("P")', "R": 'R = TypeVar("R")'}


def main(words: list[str]) -> int:
    stale = 0
    for target, modules in TARGETS.items():
        text = formatted(generated(modules), target)
        if words != ["--check"]:
            target.write_text(text, "utf-8")
        elif not target.exists() or target.read_text("utf-8") != text:
            sys.stderr.write(f"{target.name} is not current: run python tools/make_blocking.py\n")
            stale = 1
    return stale


def generated(modules: Sequence[str]) -> str:
    trees = {module: ast.parse((CLIENT / f"{module}.py").read_text("utf-8")) for module in HANDLES}
    body = "\n\n".join(twin(node) for module in modules for node in classes(module, trees[module]))
    types = [text for name, text in TYPES.items() if re.search(rf"\b{name}\b", body)]
    return HEADER + "\n".join([*sorted(needed(trees, body)), *elsewhere(modules, body), "", *types, "", body])


def elsewhere(modules: Sequence[str], body: str) -> Iterator[str]:
    """Import the twins that stand in another file."""
    for target, others in TARGETS.items():
        names = [name for module in others if module not in modules for name in HANDLES[module]]
        yield from (
            f"from dibs.client.sync.{target.stem} import Blocking{name}"
            for name in names
            if re.search(rf"\bBlocking{name}\b", body)
        )


def formatted(text: str, target: Path) -> str:
    for words in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(target), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return text


def classes(module: str, tree: ast.Module) -> Iterator[ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in HANDLES[module]:
            yield node


def needed(trees: dict[str, ast.Module], body: str) -> set[str]:
    """Import whatever the modules import or define and the twins name."""
    words = set(re.findall(r"\w+", body)) - {"P", "R"}
    homes = dict.fromkeys(
        ("next_item", "iterate", "run", "run_on_this_thread", "run_with_connection"), "dibs.client.sync.background_loop"
    )
    for module, tree in trees.items():
        for node in tree.body:
            for source, name in names_in(node, f"dibs.client.{module}"):
                if name in words and homes.setdefault(name, source) != source:
                    raise SystemExit(
                        f"{name} is of {source} and of {homes[name]}: import one under another name"
                    )
    lines = {f"from {source} import {name}" for name, source in homes.items()}
    return lines | {"from collections.abc import Iterator", "from typing import Generic, ParamSpec, TypeVar"}


def names_in(node: ast.stmt, module: str) -> Iterator[tuple[str, str]]:
    match node:
        case ast.ImportFrom(module=str(source)):
            # Under another name it is used where it is imported, and hides nothing here.
            yield from ((source, alias.name) for alias in node.names if alias.asname is None)
        case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
            yield module, name
        case _:
            return


def twin(node: ast.ClassDef) -> str:
    name, parameters = node.name, NAMES[node.name]
    base = next((one for one in map(base_name, node.bases) if one in NAMES), None)
    parents = f"Blocking{base}{NAMES[base]}" if base else f"Generic{parameters}" if parameters else ""
    handle = "source._storage_handle" if name == "Dibs" else "source._client.storage_handle"
    start = [f"class Blocking{name}{f'({parents})' if parents else ''}:", f'    """{name}, blocking."""', ""]
    start += [f"    def __init__(self, source: {name}{parameters}) -> None:"]
    start += ["        super().__init__(source)"] if base else []
    start += [f"        self._source{f': {name}{parameters}' if base else ''} = source"]
    start += [] if base else [f"        self._storage_handle = {handle}"]
    return "\n".join([*start, "", *members(node), ""])


def base_name(node: ast.expr) -> str:
    return ast.unparse(node).partition("[")[0]


def members(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            yield from attributes(item)
        elif isinstance(item, Method) and is_shown(item):
            yield method(node.name, item)


def attributes(init: ast.FunctionDef) -> Iterator[str]:
    """A handle's public attributes are annotated; they are read through, so that they are never stale."""
    for item in ast.walk(init):
        if isinstance(item, ast.Assign) and is_public(item.targets[0]):
            raise SystemExit(f"annotate {ast.unparse(item.targets[0])}: its twin needs the type")
        if isinstance(item, ast.AnnAssign) and is_public(item.target):
            yield reading(ast.unparse(item.target).removeprefix("self."), ast.unparse(item.annotation))


def is_public(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and not (target.attr.startswith("_") or target.attr in LEFT_OUT)


def reading(name: str, kind: str) -> str:
    value, form = wrapped(f"self._source.{name}", kind)
    return f"    @property\n    def {name}(self) -> {form}:\n        return {value}\n"


def is_shown(node: Method) -> bool:
    return node.name in RENAMED or not (node.name.startswith("_") or node.name in LEFT_OUT)


def method(owner: str, node: Method) -> str:
    kind = ast.unparse(node.returns) if node.returns else "None"
    if any("property" in ast.unparse(mark) for mark in node.decorator_list):
        return reading(node.name, kind)
    value, form = wrapped(called(owner, node, kind), kind)
    before = f"        {value}\n        return self" if form == "Self" and node.name == "__aenter__" else ""
    body = "        return self" if node.name == "__aiter__" else before or f"        return {value}"
    name = RENAMED.get(node.name, node.name)
    return f"    def {name}({ast.unparse(node.args)}) -> {form}:\n{body}\n"


def called(owner: str, node: Method, kind: str) -> str:
    """Return the expression that makes the call and waits for it."""
    call = f"self._source.{node.name}({passed(node.args)})"
    if not isinstance(node, ast.AsyncFunctionDef):
        return call
    whose = WRITTEN.get(owner, owner.lower())
    form = FORMS.get(node.name) or f"await {whose}.{node.name}(...)"
    if node.name == "__anext__":
        return f'next_item(self._storage_handle, "{form}", self._source)'
    if kind.startswith("AsyncIterator"):
        return f'iterate(self._storage_handle, "async for ... in {whose}.{node.name}(...)", {call})'
    runner = "run_on_this_thread" if node.name in HERE else "run_with_connection" if node.name in JOINING else "run"
    return f'{runner}(self._storage_handle, "{form}", {call})'


def passed(arguments: ast.arguments) -> str:
    words = [one.arg for one in (*arguments.posonlyargs, *arguments.args) if one.arg != "self"]
    words += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    words += [f"{one.arg}={one.arg}" for one in arguments.kwonlyargs]
    words += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(words)


def wrapped(value: str, kind: str) -> tuple[str, str]:
    """Return a value and its type with the twin in place of each async handle."""
    form = re.sub(r"\bAsyncIterator\b", "Iterator", kind)
    for name in NAMES:
        if re.search(rf"\b{name}\b", kind):
            form = re.sub(rf"\b{name}\b", f"Blocking{name}", form)
            made = f"Blocking{name}"
            value = f"[{made}(one) for one in {value}]" if "Sequence" in kind else f"{made}({value})"
    return value, form


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
