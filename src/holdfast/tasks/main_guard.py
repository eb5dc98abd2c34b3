"""The main guard of a task's file: `if __name__ == "__main__":`.

A file becomes a module in every process that imports it, without what is under the guard. A task
`file.py:__main__` is what is under it: the file as a program, in every worker.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import CodeType
from typing import Final

from holdfast.errors import JobError

PROGRAM: Final = "__main__"
"""Name of the task that a file is as a program."""


def without_guards(path: Path) -> ast.Module:
    """A file, in which comparisons of `__name__` come out as in an import."""
    tree: ast.Module = _WithoutGuards().visit(ast.parse(path.read_bytes(), str(path.absolute())))
    return tree


def program(path: Path) -> CodeType:
    """Code under the guards of a file, to be run in its module.

    Raises:
        JobError: There is nothing.
    """
    tree = ast.parse(path.read_bytes(), str(path.absolute()))
    guards = [each for each in tree.body if isinstance(each, ast.If) and _is_guard(each.test)]
    guarded = [statement for each in guards for statement in each.body]
    if not guarded:
        raise JobError(
            f'{path} has nothing under `if __name__ == "__main__":`; put there what trains, or '
            f"name a function: {path}:main"
        )
    return compile(ast.Module(guarded, []), str(path.absolute()), "exec", dont_inherit=True)


def _is_guard(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


class _WithoutGuards(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        node.left = _imported_name(node.left)
        node.comparators = [_imported_name(side) for side in node.comparators]
        return self.generic_visit(node)


def _imported_name(side: ast.expr) -> ast.expr:
    is_name = isinstance(side, ast.Name) and side.id == "__name__"
    return ast.copy_location(ast.Constant("__imported__"), side) if is_name else side
