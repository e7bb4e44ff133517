"""Python source -> its mutants: each the same source with one small fault put in.

A mutant is made as text: the span of one syntax node is replaced by what a changed copy of the
node looks like. So the line that is shown is the line that ran. Left alone are annotations,
decorators, docstrings and other strings, and what a `raise` says.
"""

import ast
import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard


@dataclass(frozen=True)
class Mutant:
    """One fault: `before` and `after` are its lines, joined, with single spaces."""

    function: str
    """Qualified name of the function or class it is in, or `<module>`."""
    line: int
    before: str
    after: str
    source: str
    """The whole mutated module."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it whatever its line number is."""
        return self.function, self.before, self.after


_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip

_TWINS = (
    "min max", "minimum maximum", "amin amax", "argmin argmax", "all any", "ceil floor",
    "find rfind", "partition rpartition", "lstrip rstrip", "startswith endswith", "lower upper",
    "removeprefix removesuffix", "zeros ones", "zeros_like ones_like", "new_zeros new_ones",
    "sum mean", "cumsum cumprod", "exp expm1", "log log1p",
)  # fmt: skip
_SWAPS = {
    name: other
    for one, two in (pair.split() for pair in _TWINS)
    for name, other in ((one, two), (two, one))
} | {"fullmatch": "match", "search": "match"}
_SWAPPED_BUILTINS = {"min", "max", "all", "any"}

_REMOVED_METHODS = {
    "detach", "abs", "clamp", "double", "float", "contiguous", "exp", "expm1", "log", "neg", "sqrt",
    "squeeze", "unsqueeze", "cumsum", "flip", "masked_fill", "scatter", "strip", "lstrip", "rstrip",
    "lower", "upper", "casefold", "removeprefix", "removesuffix", "replace",
}  # fmt: skip
_REMOVED_FUNCTIONS = {"abs", "sorted", "reversed", "sqrt", "float", "int", "set"}
_MINUS_ONE = ast.dump(ast.UnaryOp(ast.USub(), ast.Constant(1)))
_MODULES = {"torch", "np", "math", "re"}

# In an expression these bind less tightly than what may stand around them.
_LOOSE = (
    ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Lambda, ast.NamedExpr,
    ast.Await, ast.GeneratorExp,
)  # fmt: skip


@dataclass(frozen=True)
class _Scope:
    """Where the walk is: in which function, what it returns, and within which f-string."""

    function: str = "<module>"
    returns: str = ""
    text: ast.JoinedStr | None = None


def mutants(source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its lines, each different text once."""
    seen = {source}
    found = []
    for scope, old, new in _walk(ast.parse(source), _Scope()):
        mutant = _splice(source, scope.function, old, new)
        if mutant.source not in seen:
            seen.add(mutant.source)
            ast.parse(mutant.source)
            found.append(mutant)
    return sorted(found, key=lambda mutant: mutant.line)


def _splice(source: str, function: str, old: ast.AST, new: ast.AST) -> Mutant:
    """Replace the span of `old` by the text of `new`."""
    lines = source.split("\n")
    first, last = old.lineno - 1, old.end_lineno - 1  # type: ignore[attr-defined]
    # Columns count UTF-8 bytes.
    head = lines[first].encode()[: old.col_offset].decode()  # type: ignore[attr-defined]
    tail = lines[last].encode()[old.end_col_offset :].decode()  # type: ignore[attr-defined]
    text = ast.unparse(new)
    if isinstance(new, _LOOSE):
        text = f"({text})"
    changed = head + text + tail
    return Mutant(
        function,
        first + 1,
        " ".join(" ".join(lines[first : last + 1]).split()),
        " ".join(changed.split()),
        "\n".join([*lines[:first], changed, *lines[last + 1 :]]),
    )


def _walk(node: ast.AST, scope: _Scope) -> Iterator[tuple[_Scope, ast.AST, ast.AST]]:
    """Yield (scope, node to replace, what to replace it with) for a node and all below it."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        name = node.name if scope.function == "<module>" else f"{scope.function}.{node.name}"
        annotation = node.returns if isinstance(node, ast.FunctionDef) else None
        scope = _Scope(name, ast.unparse(annotation) if annotation else "")
    faults = itertools.chain(
        _statement(node, scope.returns), ((node, new) for new in _expression(node)), _parts(node)
    )
    for old, new in faults:
        if scope.text:  # before Python 3.12 nodes inside an f-string have no true places
            yield scope, scope.text, _with(scope.text, old, new)
        else:
            yield scope, old, new
    if isinstance(node, ast.JoinedStr) and not scope.text:
        scope = _Scope(scope.function, scope.returns, node)
    for child in _children(node):
        yield from _walk(child, scope)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params", "msg"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(node, (ast.Call, ast.keyword)) and _is_minus_one(child):
                yield child.operand  # as an argument: -1 and 1 are one dimension of a matrix
            elif isinstance(child, ast.AST):
                yield child


def _is_minus_one(node: object) -> TypeGuard[ast.UnaryOp]:
    return isinstance(node, ast.UnaryOp) and ast.dump(node) == _MINUS_ONE


def _with(root: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    """Return a copy of a tree in which one node is another."""
    return copy.deepcopy(root, {id(old): new})  # what is in the memo counts as copied


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _statement(node: ast.AST, returns: str) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield a statement's faults: left out, turned round, another operator or value."""
    match node:
        case ast.If(test=test) | ast.While(test=test):
            single = isinstance(test, ast.Compare) and len(test.ops) == 1
            if not single and not isinstance(test, ast.UnaryOp):  # those are turned round as such
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Return(value=ast.expr() as value):
            yield from ((value, other) for other in _other_returns(value, returns))
        case ast.AugAssign(op=op):
            yield node, ast.Pass()
            yield node, _changed(node, op=_BINARY[type(op)]())
        case ast.Assign(targets=[target], value=value):
            names = {name.id for name in ast.walk(value) if isinstance(name, ast.Name)}
            if not isinstance(target, ast.Name) or target.id in names:
                yield node, ast.Pass()
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield node, ast.Pass()
        case ast.Break() | ast.Continue():
            yield node, ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _other_returns(value: ast.expr, returns: str) -> Iterator[ast.AST]:
    """Yield what is returned instead, by the kind of value that the function is said to return."""
    constant = value.value if isinstance(value, ast.Constant) else ...
    if returns != "bool" and constant is not None:
        yield ast.Constant(None)
    if returns == "bool" and constant is ...:
        yield ast.UnaryOp(ast.Not(), value)
    if constant is ... and re.match(r"(float|int)$|Float\[", returns):
        yield ast.UnaryOp(ast.USub(), value)


def _expression(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what an expression is replaced by."""
    match node:
        case ast.BinOp(op=op):
            yield _changed(node, op=_BINARY[type(op)]())
        case ast.Compare(ops=ops):
            for place, comparison in enumerate(ops):
                for other in _COMPARISONS[type(comparison)]:
                    yield _changed(node, ops=[*ops[:place], other(), *ops[place + 1 :]])
        case ast.BoolOp(op=junction, values=values):
            yield _changed(node, op=ast.Or() if isinstance(junction, ast.And) else ast.And())
            for place in range(len(values)):
                rest = values[:place] + values[place + 1 :]
                yield rest[0] if len(rest) == 1 else _changed(node, values=rest)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.Constant(value=value):
            yield from _other_values(value)
        case ast.Name(id=name, ctx=ast.Load()) if name in _SWAPPED_BUILTINS:
            yield _changed(node, id=_SWAPS[name])
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in _SWAPS:
            yield _changed(node, attr=_SWAPS[name])
        case ast.Call():
            yield from _other_calls(node)


def _parts(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield the faults of what has no place of its own: bounds of slices, filters of loops."""
    match node:
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound and not isinstance(bound, (ast.Constant, ast.UnaryOp)):
                    yield bound, ast.BinOp(bound, ast.Add(), ast.Constant(1))
        case ast.comprehension(ifs=ifs):
            for condition in ifs:
                yield condition, ast.Constant(True)


def _other_calls(call: ast.Call) -> Iterator[ast.AST]:
    """Yield what is left where a call is left out, and `where` with its branches swapped."""
    match call:
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, one, two]):
            yield _changed(call, args=[condition, two, one])
        case ast.Call(func=ast.Attribute(value=receiver, attr=name)) if name in _REMOVED_METHODS:
            if not (isinstance(receiver, ast.Name) and receiver.id in _MODULES):
                yield receiver
        case ast.Call(func=ast.Name(id=name), args=[argument, *_]) if name in _REMOVED_FUNCTIONS:
            yield argument


def _other_values(value: object) -> Iterator[ast.AST]:
    match value:
        case bool():
            yield ast.Constant(not value)
        case int():
            yield ast.Constant(value + 1)
            if value:
                yield ast.Constant(value - 1)
        case float():
            yield ast.Constant(2 * value if value else 1.0)
            if value:
                yield ast.UnaryOp(ast.USub(), ast.Constant(value))
