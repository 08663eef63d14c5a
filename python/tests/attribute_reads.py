"""Finds in the syntax trees of an engine's files which attributes the engine reads of an object with a given name, such as `ca_comm`."""
import ast
import dataclasses
import pathlib
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Read:
    file: str  # below the engine's folder
    line: int
    attribute: str
    is_guarded: bool  # the same function asks isinstance() of the object, or hasattr() or getattr() with a default for the attribute


def find_reads(folder: pathlib.Path, name: str) -> list[Read]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if name in text:
            found += _find_in_file(ast.parse(text), str(path.relative_to(folder)), name)
    return found


def _find_in_file(tree: ast.Module, file: str, name: str) -> Iterator[Read]:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inner = {id(node) for outer in functions for node in ast.walk(outer) if node is not outer and node in functions}
    for function in (one for one in functions if id(one) not in inner):
        aliases = {name} | _find_aliases(function, name)
        asked, is_typed = _find_guards(function, aliases, name)
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and _is_object(node.value, aliases, name):
                yield Read(file, node.lineno, node.attr, is_typed or node.attr in asked)


def _find_aliases(function: ast.AST, name: str) -> set[str]:
    """Returns the local names to which the object is assigned, under any condition."""
    aliases = set()
    for node in ast.walk(function):
        value = getattr(node, "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) else []
        branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        if any(_is_object(branch, set(), name) for branch in branches):
            aliases |= {target.id for target in targets if isinstance(target, ast.Name)}
    return aliases


def _is_object(node: ast.AST | None, aliases: set[str], name: str) -> bool:
    """An alias, x.NAME, or getattr(x, "NAME", ...)."""
    if isinstance(node, ast.Name):
        return node.id in aliases
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return _is_call(node, "getattr") and len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and node.args[1].value == name


def _find_guards(function: ast.AST, aliases: set[str], name: str) -> tuple[set[str], bool]:
    asked, is_typed = set(), False
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or not node.args or not _is_object(node.args[0], aliases, name):
            continue
        is_typed = is_typed or _is_call(node, "isinstance")
        if (_is_call(node, "hasattr") or (_is_call(node, "getattr") and len(node.args) == 3)) and isinstance(node.args[1], ast.Constant):
            asked.add(node.args[1].value)
    return asked, is_typed


def _is_call(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
