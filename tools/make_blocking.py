"""Writes the blocking handles of src/dibs/client/sync from the async handles.

    python tools/make_blocking.py           writes all files
    python tools/make_blocking.py --check   exits with 1 if a file is not current

HANDLES names the blocking modules, and the async modules that each of them covers. A blocking handle has the
methods, signatures and docstrings of its async handle. It runs each call on the event loop where the storage
is open and waits for the result. Methods that declare handlers exist only on the async handle.
"""

# ruff: noqa: INP001 - a script, imported by its test alone

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill, indent

SOURCE = Path(__file__).parent.parent / "src"
#: The folder of the generated files.
TARGET = SOURCE / "dibs" / "client" / "sync"

#: Blocking module -> async module -> its handles in the order in which they are written, each
#: with its type parameters.
HANDLES: dict[str, dict[str, dict[str, str]]] = {
    "app": {"dibs.app": {"Dibs": ""}},
    "flow": {
        "dibs.flow.builder": {"Flow": "", "Chain": ""},
        "dibs.flow.stored_flow": {"StoredFlow": ""},
        "dibs.flow.batch.batch": {"Batch": ""},
        "dibs.flow.batch.stored_batch": {"StoredBatch": ""},
    },
    "task": {"dibs.client.task": {"TaskEnqueuer": "[P, R]", "Task": "[P, R]"}},
    "queue": {
        "dibs.client.listing": {"Listing": ""},
        "dibs.client.schedules": {"Schedules": ""},
        "dibs.client.ticket": {"Ticket": "[R]"},
        "dibs.client.stored_queue": {"StoredQueue": ""},
        "dibs.client.queue": {"Queue": ""},
    },
    "claim": {
        "dibs.client.receiver": {"Receiver": ""},
        "dibs.client.claim": {"Claim": ""},
        "dibs.client.feed": {"Feed": ""},
    },
}
PARAMETERS = {
    name: parameters
    for sources in HANDLES.values()
    for handles in sources.values()
    for name, parameters in handles.items()
}
#: Handle -> the variable that stands for it in error messages, where it is not the class name in lower case.
VARIABLES = {
    "StoredFlow": "flow",
    "StoredBatch": "batch",
    "Dibs": "app",
    "TaskEnqueuer": "task",
    "StoredQueue": "queue",
    "Schedules": "queue.schedules",
}
#: Members without a blocking form: they declare something, are used by the worker, or return the twin.
LEFT_OUT = {
    *("task", "handler", "on_failure", "after", "lifespan", "lifespan_function", "function"),
    *("middleware", "override_storage", "using", "from_redis", "from_pool"),
    *("handlers", "storage", "lease_ms", "sync"),
    *("add_next", "plan", "build_request"),
}
#: Long calls, which run on the thread of the caller: signals arrive there.
ON_CALLERS_THREAD = {"work"}
#: Calls with a `connection`, which may belong to the thread of the caller.
WITH_CONNECTION = {"enqueue_many", "complete", "fail"}
#: Calls that the thread of the caller may send itself; they may have a `connection`, too.
ON_THREAD = {"enqueue"}
RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
#: Renamed method -> the async code that an error message recommends on a running event loop.
ASYNC_FORMS = {"__aenter__": "async with", "__aexit__": "async with", "__anext__": "async for"}
RUNNERS = ("iterate", "next_item", "run", "run_on_this_thread", "run_with_connection")

Method = ast.FunctionDef | ast.AsyncFunctionDef

HEADER = '''"""Blocking forms of async handles, whose modules are {modules}.

Written by tools/make_blocking.py from the async modules: change those.
"""

{lint}from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, ParamSpec, TypeVar, overload

'''
LINT = "# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle\n\n"
TYPE_VARIABLES = {"P": 'P = ParamSpec("P")', "R": 'R = TypeVar("R")'}


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them. Return the exit code."""
    stale = 0
    for module in HANDLES:
        target = TARGET / f"{module}.py"
        text = formatted(generated(module))
        if arguments != ["--check"]:
            target.write_text(text, "utf-8")
        elif not target.exists() or target.read_text("utf-8") != text:
            sys.stderr.write(f"{target.name} is not current: run python tools/make_blocking.py\n")
            stale = 1
    return stale


def generated(module: str) -> str:
    """Return the source of a blocking module before it is formatted."""
    trees = {source: ast.parse(source_path(source).read_text("utf-8")) for source in HANDLES[module]}
    classes = [
        node
        for source, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in HANDLES[module][source]
    ]
    body = "\n\n".join(map(blocking_class, classes))
    types = [text for name, text in TYPE_VARIABLES.items() if re.search(rf"\b{name}\b", body)]
    imports = [*needed_imports(trees, body), *other_handles(module, body)]
    lint = LINT if re.search(r"\bsource\._", body.replace("self._source._", "")) else ""
    return HEADER.format(modules=joined(trees), lint=lint) + "\n".join([*imports, "", *types, "", body])


def joined(modules: Iterable[str]) -> str:
    return fill(", ".join(modules), 108, initial_indent=" " * 54).strip()


def source_path(source: str) -> Path:
    return SOURCE.joinpath(*source.split(".")).with_suffix(".py")


def formatted(text: str) -> str:
    for command in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--stdin-filename",
            str(SOURCE / "dibs" / "client" / "sync" / "queue.py"),
            "-",
        ]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return text


# -- imports -------------------------------------------------------------------------------------------------


def needed_imports(trees: dict[str, ast.Module], body: str) -> Iterator[str]:
    """Yield an import for each name of the body that an async module imports or defines."""
    words = set(re.findall(r"\w+", body)) - {*TYPE_VARIABLES}
    yield from (f"from dibs.client.sync.background_loop import {name}" for name in RUNNERS)
    yield "from dibs.client.sync.background_loop import run_enqueue"
    for async_module, tree in trees.items():
        for node in statements(tree):
            for source, name in names_in(node, async_module):
                if name in words and not source.startswith("dibs.client.sync."):
                    yield f"from {source} import {name}"


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those under `if TYPE_CHECKING:`."""
    for node in tree.body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from node.body
            case _:
                yield node


def names_in(node: ast.stmt, module: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for each name that a statement imports or defines."""
    match node:
        case ast.ImportFrom(module=str(source)):
            yield from ((source, alias.name) for alias in node.names if alias.asname is None)
        case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
            yield module, name
        case _:
            return


def other_handles(module: str, body: str) -> Iterator[str]:
    """Yield an import for each blocking handle of another module."""
    for other, sources in HANDLES.items():
        for name in (name for handles in sources.values() for name in handles):
            if other != module and re.search(rf"\bBlocking{name}\b", body):
                yield f"from dibs.client.sync.{other} import Blocking{name}"


# -- classes -------------------------------------------------------------------------------------------------


def blocking_class(node: ast.ClassDef) -> str:
    name, parameters = node.name, PARAMETERS[node.name]
    base = next((one for one in map(class_name, node.bases) if one in PARAMETERS), None)
    parents = f"Blocking{base}{PARAMETERS[base]}" if base else f"Generic{parameters}" if parameters else ""
    lines = [f"class Blocking{name}{f'({parents})' if parents else ''}:", class_docstring(node)]
    lines += [f"    def __init__(self, source: {name}{parameters}) -> None:"]
    lines += ["        super().__init__(source)"] if base else []
    lines += [f"        self._source{f': {name}{parameters}' if base else ''} = source"]
    if not base:
        handle = "source._storage_handle" if name == "Dibs" else "source._client.storage_handle"
        lines += [f"        self._storage_handle = {handle}", ""]
        lines += ["    def __repr__(self) -> str:", '        return f"<Blocking{repr(self._source)[1:]}"']
    return "\n".join([*lines, "", *members(node), ""])


def class_docstring(node: ast.ClassDef) -> str:
    first = f"Blocking form of {node.name}, returned by its property `sync`."
    return docstring(f"{first}\n\n{ast.get_docstring(node)}", 4)


def variable(name: str) -> str:
    return VARIABLES.get(name, name.lower())


def class_name(node: ast.expr) -> str:
    return ast.unparse(node).partition("[")[0]


def docstring(text: str | None, width: int) -> str:
    """Return a docstring of the async handle, with its code examples in their blocking form."""
    if text is None:
        return ""
    text = re.sub(r"\basync (with|for)\b", r"\1", text).replace("await ", "")
    text = f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'
    return indent(text, " " * width) + "\n"


# -- members -------------------------------------------------------------------------------------------------


def members(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            yield from attributes(item)
        elif isinstance(item, Method) and is_shown(item):
            yield method(node.name, item)


def attributes(init: ast.FunctionDef) -> Iterator[str]:
    """Yield a property for each public attribute: it reads the async handle, so it is always current."""
    for item, follower in zip(init.body, [*init.body[1:], None], strict=True):
        if isinstance(item, ast.Assign) and is_public(item.targets[0]):
            raise SystemExit(f"annotate {ast.unparse(item.targets[0])}: its blocking form needs the type")
        if isinstance(item, ast.AnnAssign) and is_public(item.target):
            name = ast.unparse(item.target).removeprefix("self.")
            yield reader(name, ast.unparse(item.annotation), text_of(follower))


def is_public(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and not (target.attr.startswith("_") or target.attr in LEFT_OUT)


def text_of(node: ast.stmt | None) -> str | None:
    """Return the docstring that a statement is, or None."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return "\n".join(line.strip() for line in text.strip().split("\n"))
        case _:
            return None


def reader(name: str, type_text: str, text: str | None) -> str:
    value, blocking_type = in_blocking_form(f"self._source.{name}", type_text)
    head = f"    @property\n    def {name}(self) -> {blocking_type}:\n"
    return f"{head}{docstring(text, 8)}        return {value}\n"


def is_shown(node: Method) -> bool:
    return node.name in RENAMED or not (node.name.startswith("_") or node.name in LEFT_OUT)


def method(owner: str, node: Method) -> str:
    type_text = ast.unparse(node.returns) if node.returns else "None"
    if any(ast.unparse(mark) == "overload" for mark in node.decorator_list):
        return f"    @overload\n    def {node.name}({ast.unparse(node.args)}) -> {type_text}: ...\n"
    if any("property" in ast.unparse(mark) for mark in node.decorator_list):
        return reader(node.name, type_text, ast.get_docstring(node))
    value, blocking_type = in_blocking_form(call(owner, node, type_text), type_text)
    match node.name:
        case "__aenter__":
            body = f"        {value}\n        return self"
        case "__aiter__":
            body = "        return self"
        case _:
            body = f"        return {value}"
    head = f"    def {RENAMED.get(node.name, node.name)}({ast.unparse(node.args)}) -> {blocking_type}:\n"
    return f"{head}{docstring(ast.get_docstring(node), 8)}{body}\n"


def call(owner: str, node: Method, type_text: str) -> str:
    """Return the expression that calls the async method and waits for its result."""
    expression = f"self._source.{node.name}({forwarded(node.args)})"
    if not isinstance(node, ast.AsyncFunctionDef):
        return expression
    async_form = ASYNC_FORMS.get(node.name) or f"await {variable(owner)}.{node.name}(...)"
    if node.name == "__anext__":
        return f'next_item(self._storage_handle, "{async_form}", self._source)'
    if type_text.startswith("AsyncIterator"):
        async_form = f"async for ... in {variable(owner)}.{node.name}(...)"
        return f'iterate(self._storage_handle, "{async_form}", {expression})'
    runner = "run_with_connection" if node.name in WITH_CONNECTION else "run"
    runner = "run_enqueue" if node.name in ON_THREAD else runner
    runner = "run_on_this_thread" if node.name in ON_CALLERS_THREAD else runner
    return f'{runner}(self._storage_handle, "{async_form}", {expression})'


def forwarded(arguments: ast.arguments) -> str:
    """Return the arguments of a call that passes all parameters on."""
    passed = [one.arg for one in (*arguments.posonlyargs, *arguments.args) if one.arg != "self"]
    passed += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    passed += [f"{one.arg}={one.arg}" for one in arguments.kwonlyargs]
    passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(passed)


def in_blocking_form(value: str, type_text: str) -> tuple[str, str]:
    """Return an expression and its type with blocking handles in place of async handles."""
    blocking_type = re.sub(r"\bAsyncIterator\b", "Iterator", type_text)
    for name in PARAMETERS:
        if re.search(rf"\b{name}\b", type_text):
            blocking_type = re.sub(rf"\b{name}\b", f"Blocking{name}", blocking_type)
            made = f"Blocking{name}"
            value = f"[{made}(one) for one in {value}]" if "Sequence" in type_text else f"{made}({value})"
    return value, blocking_type


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
