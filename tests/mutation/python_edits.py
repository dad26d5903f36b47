"""Mutations of Python: found in the syntax tree, applied to the text.

The text outside of the mutation stays as it is. Code that no behaviour depends on gets no mutation:
annotations, docstrings, messages of errors, logging, and `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.mutation.site import Edit

_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+",
    ast.BitOr: "&", ast.BitAnd: "|", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
_SWAPPED_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_MESSAGES: Final = ("log", "logger", "warnings", "_log", "_LOG", "LOG")
#: Arguments of attrs, msgspec, zip and hashlib that only catch errors of the programmer, or save memory.
_DECLARING: Final = {
    "init", "repr", "kw_only", "frozen", "strict", "slots", "gc", "weakref", "array_like", "omit_defaults",
    "usedforsecurity",
}  # fmt: skip
_DESCRIBING: Final = ("__repr__", "__str__")


def python_edits(text: str) -> Iterator[Edit]:
    """Return all mutations of a Python module."""
    finder = _Finder(text)
    yield from finder.edits(ast.parse(text))


class _Finder:
    """Finds the mutations of one text. `ast` counts columns in bytes, an Edit in characters."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def edits(self, node: ast.AST) -> Iterator[Edit]:
        """Return the mutations of a node and of all nodes below it."""
        if _is_without_effect(node):
            return
        yield from self._own_edits(node)
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.edits(child)

    def _own_edits(self, node: ast.AST) -> Iterator[Edit]:
        yield from self._of_operator(node)
        match node:
            case ast.Constant(value=bool() as flag):
                yield self._replaced(node, str(not flag), "flag")
            case ast.Constant(value=int() as number):
                yield self._replaced(node, str(number + 1), "constant")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield self._negated(test)
            case ast.comprehension(ifs=[test, *_]):
                yield self._negated(test)
            case ast.Call(func=ast.Name(id=name) as function) if name in _SWAPPED_CALLS:
                yield self._replaced(function, _SWAPPED_CALLS[name], "min or max")
            case ast.stmt():
                yield from self._of_statement(node)
            case _:
                pass

    def _of_operator(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield self._between(left, right, _COMPARISONS[type(operator)], "comparison")
            case ast.BoolOp(values=[left, right, *_]):
                new = "or" if isinstance(node.op, ast.And) else "and"
                yield self._between(left, right, new, "boolean")
            case ast.BinOp(left=left, right=right) if type(node.op) in _ARITHMETIC and not _is_text(node):
                yield self._between(left, right, _ARITHMETIC[type(node.op)], "arithmetic")
            case ast.AugAssign(target=left, value=right) if type(node.op) in _ARITHMETIC:
                yield self._between(left, right, f"{_ARITHMETIC[type(node.op)]}=", "arithmetic")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replaced(node, self._source(operand), "negation")
            case _:
                pass

    def _of_statement(self, node: ast.stmt) -> Iterator[Edit]:
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._replaced(node, "pass", "call removed")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
                yield self._replaced(node, "pass", "statement removed")
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield self._replaced(value, "None", "return value")
            case ast.Break():
                yield self._replaced(node, "continue", "loop")
            case ast.Continue():
                yield self._replaced(node, "break", "loop")
            case _:
                pass

    def _replaced(self, node: ast.stmt | ast.expr, new: str, operator: str) -> Edit:
        return Edit(*self._span(node), new, operator)

    def _negated(self, test: ast.expr) -> Edit:
        return self._replaced(test, f"(not ({self._source(test)}))", "condition negated")

    def _between(self, left: ast.expr, right: ast.expr, new: str, operator: str) -> Edit:
        """Replace the operator between two operands; the text between may hold parentheses, too."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._text[start:end]
        old = between.strip(" \t\n()\\")
        at = start + between.index(old)
        return Edit(at, at + len(old), new, operator)

    def _source(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)


def _is_without_effect(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.keyword(arg=name):
            return name in _DECLARING
        case ast.FunctionDef(name=name):
            return name in _DESCRIBING
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _MESSAGES
        case ast.Call(func=ast.Name(id="TypeVar" | "cast" | "NewType")):
            return True
        case ast.Subscript(value=ast.Name(id="Final" | "ClassVar" | "Literal")):
            return True
        case _:
            return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.BinOp) -> bool:
    """Return whether an operand is a literal text: `"a" - b` would only raise TypeError."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
