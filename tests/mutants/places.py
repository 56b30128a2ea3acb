"""Where a small fault can be put into a module, and how it is put there so that one run of Python can hold many."""

from __future__ import annotations

import ast
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

_OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
# What cannot stand on both sides of a conditional expression without changing its function.
_FIXED = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
_APART = 12  # lines between two mutants of a module: neighbours are often found by the same test
_LARGEST_NUMBER = 5000  # a longer one is a size or a code, which tests take from the module itself


@dataclass(frozen=True)
class Mutant:
    """One expression and its replacement; offsets are bytes of the file."""

    path: str  # from the project's root
    line: int
    start: int
    end: int
    kind: str
    old: str
    new: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:70] for text in (self.old, self.new))
        return f"{self.path}:{self.line}  {old}  ->  {new}"


def mutants_of(root: Path, path: str, lines: Collection[int] | None, chance: random.Random) -> Iterator[Mutant]:
    """Yield the mutants of a module, those of the given lines alone if some are given."""
    source = (root / path).read_text(encoding="utf-8")
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    for node, kind, new in _faults(source, chance):
        if lines is not None and node.lineno not in lines:
            continue
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        old = source.encode()[start:end].decode()
        yield Mutant(path, node.lineno, start, end, kind, old, new)


def choose(mutants: Sequence[Mutant], count: int, chance: random.Random) -> list[Mutant]:
    """Take so many at random, as many of each kind as of any other, and no two close together."""
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in chance.sample(list(mutants), len(mutants)):
        by_kind.setdefault(mutant.kind, []).append(mutant)
    chosen: list[Mutant] = []
    while by_kind and len(chosen) < count:
        kind = chance.choice(sorted(by_kind))
        mutant = by_kind[kind].pop()
        if not by_kind[kind]:
            del by_kind[kind]
        if not any(_close(mutant, other) for other in chosen):
            chosen.append(mutant)
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.start))


def put(root: Path, mutants: Sequence[Mutant]) -> None:
    """Write them into the modules under `root`, each behind its switch: the first is number 1."""
    numbered = list(enumerate(mutants, 1))
    for path, of_module in groupby(numbered, key=lambda one: one[1].path):
        file = root / path
        text = file.read_bytes()
        for number, mutant in reversed(list(of_module)):
            choice = f"(({mutant.new}) if _mutant.is_on({number}) else ({mutant.old}))"
            text = text[: mutant.start] + choice.encode() + text[mutant.end :]
        future = b"from __future__ import annotations\n"
        file.write_bytes(text.replace(future, future + b"from ckpttool import _mutant\n", 1))


def _close(one: Mutant, other: Mutant) -> bool:
    overlap = one.start < other.end and other.start < one.end
    return one.path == other.path and (overlap or abs(one.line - other.line) < _APART)


def _faults(source: str, chance: random.Random) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield the expressions within functions that can be replaced, with the kind of fault and the replacement."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, inside = pending.pop()
        if inside:
            yield from _of_node(source, node, chance)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend((statement, True) for statement in node.body)
        elif isinstance(node, ast.AnnAssign):
            pending.extend((value, inside) for value in (node.value,) if value is not None)
        elif isinstance(node, ast.ClassDef):
            pending.extend((statement, inside) for statement in node.body)
        elif not isinstance(node, ast.JoinedStr | ast.pattern):  # in a string, positions are not those of the file
            pending.extend((child, inside) for child in ast.iter_child_nodes(node))


def _of_node(source: str, node: ast.AST, chance: random.Random) -> Iterator[tuple[ast.expr, str, str]]:
    if isinstance(node, ast.If) and _can_move(node.test):
        yield node.test, "condition never met", "False"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _can_move(node.value):
        yield node.value, "call left out", "None"
    if not isinstance(node, ast.expr) or not _can_move(node):
        return
    text = partial(ast.get_source_segment, source)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, "comparison", f"{text(node.left)} {_OPPOSITE[type(node.ops[0])]} {text(node.comparators[0])}"
    elif isinstance(node, ast.BoolOp):
        kept = list(node.values)
        kept.pop(chance.randrange(len(kept)))
        word = " and " if isinstance(node.op, ast.And) else " or "
        yield node, "condition left out", word.join(f"({text(value)})" for value in kept)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "not left out", f"bool({text(node.operand)})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _is_number(node.right):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        yield node, "sign", f"({text(node.left)}) {sign} ({text(node.right)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, "flag", str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < _LARGEST_NUMBER:
        yield node, "off by one", str(node.value + 1)


def _can_move(node: ast.expr) -> bool:
    """Whether it can be written twice, in a conditional expression, and mean the same."""
    return not any(isinstance(part, (*_FIXED, ast.JoinedStr)) for part in ast.walk(node))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.BinOp | ast.Call)
