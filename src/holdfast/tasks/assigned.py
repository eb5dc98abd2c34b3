"""Assigned: what a program assigns in places that an import of its source does not execute."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(slots=True)
class Assigned:
    """Names that can change after a source was imported.

    Attributes:
        rebound: Globals that its main guard assigns or a function declares `global`.
        changed: Globals whose values the guard changes in place.
        attributes: Attributes that guard and functions assign.
        of_imports: Those of them that belong to classes, or to something imported.
        modules: Modules that it imports, as its statements name them.
        used: Names that functions and classes use.
        is_dynamic: True if it computes names of modules or classes, as with `setattr`.
    """

    rebound: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    of_imports: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    is_dynamic: bool = False


@lru_cache(maxsize=1 << 10)  # a program may start many runs
def assigned_in(source: bytes, line: float) -> Assigned:
    """The names that a source assigns after its import, up to a line of its main guard."""
    tree = ast.parse(source)
    found = Assigned()
    nodes = list(ast.walk(tree))
    imports = [each.asname or each.name for each in nodes if isinstance(each, ast.alias)]
    imported = {name.partition(".")[0] for name in imports}
    imported |= {each.name for each in nodes if isinstance(each, ast.ClassDef)}
    for each in nodes:
        found.modules |= set(_modules_of(each))
    for part in nodes:
        is_guard = isinstance(part, ast.If) and "__name__" in ast.dump(part.test)
        loops = [each for each in ast.walk(part) if isinstance(each, ast.For | ast.While)]
        last = math.inf if loops else line  # a loop may have been there already
        if is_guard or isinstance(part, _FUNCTIONS):
            for node in ast.walk(part):
                _take(found, node, imported, in_guard=is_guard)
                if is_guard and getattr(node, "lineno", 0) <= last:
                    _take_from_guard(found, node)
    return found


def _modules_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            place = "." * level + (module or "")
            yield from filter(None, [module and place])
            yield from (f"{place}{'.' if module else ''}{each.name}" for each in names)


def _take(found: Assigned, node: ast.AST, imported: set[str], *, in_guard: bool) -> None:
    match node:
        case ast.Global(names=names):
            found.rebound.update(names)
        case ast.Call(func=ast.Name(id="globals")):
            found.is_dynamic = True
        case ast.Call(func=ast.Name(id="setattr" | "vars"), args=[of, *_]):
            found.is_dynamic |= _root(of) in imported
        case ast.Name(id=name) if not in_guard:
            found.used.add(name)
        case ast.Attribute(attr="__dict__"):
            found.is_dynamic |= _root(node) in imported
        case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
            found.attributes.add(name)
            found.of_imports |= {name} if _root(node) in imported else set()


def _take_from_guard(found: Assigned, node: ast.AST) -> None:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            found.rebound.add(name)
        case ast.alias(name=name, asname=short):
            found.rebound.add((short or name).partition(".")[0])
        case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
            found.changed.add(_root(node))
        case ast.Call(func=ast.Attribute(attr=name) as method):
            if name.endswith("_") or name == "load_state_dict":
                found.changed.add(_root(method))


def _root(node: ast.AST) -> str:
    """The name that an attribute or item is reached from; empty if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
