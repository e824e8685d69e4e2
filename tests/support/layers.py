"""Which layer may import which (design section 3), read from the source with ``ast``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MAY_IMPORT", "PACKAGE", "imported_modules", "python_files", "violations"]

PACKAGE = "bootstrap_grpc"

MAY_IMPORT: dict[str, frozenset[str]] = {
    "protos": frozenset(),
    "client": frozenset({"protos"}),
    "server": frozenset({"protos"}),
    "compat": frozenset({"protos", "client", "server"}),
    "cli": frozenset({"protos", "client", "server", "compat"}),
}
"""Beside itself. Nothing may import ``tests`` or ``benchmarks``."""

OUTSIDE = frozenset({"tests", "benchmarks", "support"})
EVERYWHERE_FORBIDDEN = frozenset({"pickle", "dill", "cloudpickle", "marshal", "shelve"})
"""Each turns bytes of a peer into code (operator case 7d)."""


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of each import, wherever it stands. Relative ones read as ``.module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module
            # "from bootstrap_grpc import server" names its module in the alias.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def violations(
    source: str, layer: str, *, forbidden: frozenset[str] = frozenset(), where: str = "<source>"
) -> list[str]:
    """What in ``source``, a file of ``layer``, breaks the arrows; ``forbidden`` adds modules."""
    found: list[str] = []
    for line, module in imported_modules(ast.parse(source)):
        parts = module.split(".")
        if not parts[0]:
            found.append(f"{where}:{line}: relative import {module}")
        elif parts[0] == PACKAGE and len(parts) > 1:
            if parts[1] not in MAY_IMPORT[layer] | {layer}:
                found.append(f"{where}:{line}: {layer} imports {module}")
        elif parts[0] in OUTSIDE | frozenset(MAY_IMPORT):
            found.append(f"{where}:{line}: {layer} imports {module}")
        found += [
            f"{where}:{line}: {module} must not be used here"
            for banned in forbidden | EVERYWHERE_FORBIDDEN
            if f"{module}.".startswith(f"{banned}.")
        ]
    return sorted(set(found))


def python_files(folder: Path) -> list[Path]:
    """Every source file of one layer, without the build hook, which is not shipped."""
    return sorted(path for path in folder.rglob("*.py") if path.name != "hatch_build.py")


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
