"""Import the bootstrap classes of an unmodified SGLang release without torch or a GPU.

Three kinds of modules, decided by name (``_Finder``):

- *whole*: the bootstrap code itself and the light modules under it. Their files are executed as
  they are.
- *partial*: a few modules of helpers. The file is not executed. A name that somebody imports
  from it is compiled from that file alone, with what it refers to; nothing else of the file runs,
  and so none of its heavy imports.
- *hollow*: every other SGLang module, and torch and the like, installed or not. Every name in
  them is a placeholder.

No file of SGLang is written to. The import system of the process is changed for good: load one
release per process.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["BACKEND_MODULE", "ENTRY_POINTS", "Placeholder", "load_light"]

ENTRY_POINTS = (
    "sglang.srt.disaggregation.common.conn",
    "sglang.srt.disaggregation.mooncake.conn",  # before 0.4.9 there is no common one
)
"""Modules that may define the bootstrap classes; the first that a release has is loaded."""

BACKEND_MODULE = "sglang.srt.disaggregation.{}.conn"
"""The module of one transfer backend, whose classes are its own in some releases."""

_WHOLE = (
    "sglang.srt.disaggregation",
    "sglang.srt.environ",
    "sglang.srt.runtime_context",
    "sglang.srt.arg_groups",
    "sglang.srt.utils.network",
    "sglang.srt.debug_utils.cuda_coredump",
)
"""Modules, with all below them, that are executed as they are."""

_NOT_WHOLE = (
    "sglang.srt.disaggregation.utils",
    "sglang.srt.disaggregation.mooncake.transfer_engine",
)
"""Exceptions to ``_WHOLE``: they import torch or a transfer library at their top."""

_PARTIAL = (
    "sglang.srt.disaggregation.utils",
    "sglang.srt.utils",
    "sglang.srt.utils.common",
)
"""Modules whose definitions are taken one by one."""

_HOLLOW = ("torch", "triton", "mooncake", "nixl", "sgl_kernel", "prometheus_client")
"""Top-level packages besides SGLang that are never imported, even where installed."""

_MISSING = object()


def load_light(root: Path, backend: str = "") -> ModuleType:
    """Return the module with the bootstrap classes of the release installed in ``root``.

    :param backend: take the module of this transfer backend (``mooncake``, ``nixl``), not the
        common one.
    """
    sys.meta_path.insert(0, _Finder(root))
    names = (BACKEND_MODULE.format(backend),) if backend else ENTRY_POINTS
    for name in names:
        if root.joinpath(*name.split(".")).with_suffix(".py").is_file():
            return importlib.import_module(name)
    raise ImportError(f"no bootstrap module in {root}: one of {', '.join(names)} expected")


class _PlaceholderType(type):
    """Class of placeholders: usable as value, base class, annotation and decorator alike."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(name)

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "stands_for" not in vars(cls):  # a class of SGLang's with a placeholder as its base
            return super().__call__(*args, **kwargs)
        decorated = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorated else cls


class Placeholder(metaclass=_PlaceholderType):
    """Base of all that stands in for an object that light mode does not load."""


def _placeholder(name: str) -> _PlaceholderType:
    return _PlaceholderType(name, (Placeholder,), {"stands_for": name})


class _HollowModule(ModuleType):
    """A module that light mode does without: every name but a submodule's is a placeholder."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        # AttributeError for a submodule: the import system then looks for it.
        if name.startswith("__") or _is_module(self._folder / name):
            raise AttributeError(name)
        value = _placeholder(name)
        setattr(self, name, value)
        return value


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_name(f"{path.name}.py").is_file()


class _PartialModule(_HollowModule):
    """A module that gives single definitions of its file, made when they are asked for."""

    def __init__(self, name: str, folder: Path, source: Path) -> None:
        super().__init__(name, folder)
        self.__file__ = str(source)
        self._statements = dict(_statements(source))
        self._stars = list(_star_imports(source, name))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            value = self.lift(name)
            if value is not _MISSING:
                return value
        return super().__getattr__(name)

    def lift(self, name: str) -> Any:
        """Make ``name`` as its file defines or imports it; ``_MISSING`` where it does neither."""
        if name in vars(self):
            return vars(self)[name]
        statement = self._statements.get(name)
        if statement is None:
            return self._from_stars(name)
        setattr(self, name, None)  # so that a cycle of references ends here
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            for used in {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}:
                if used in self._statements:
                    self.lift(used)
        delattr(self, name)
        try:
            code = compile(ast.Module([statement], []), str(self.__file__), "exec", _ANNOTATIONS)
            exec(code, vars(self))
        except ImportError:  # a library that light mode does without
            setattr(self, name, _placeholder(name))
        return vars(self).get(name, _MISSING)

    def _from_stars(self, name: str) -> Any:
        for module_name in self._stars:
            module = importlib.import_module(module_name)
            found = (
                module.lift(name)
                if isinstance(module, _PartialModule)
                else getattr(module, name, _MISSING)
            )
            if found is not _MISSING:
                setattr(self, name, found)
                return found
        return _MISSING


_ANNOTATIONS = importlib.import_module("__future__").annotations.compiler_flag
"""Definitions are compiled with unevaluated annotations, which may name what is not loaded."""


def _top_level(source: Path) -> Iterator[ast.stmt]:
    """Every statement at module level, also those inside ``if`` and ``try``."""
    todo: list[ast.stmt] = ast.parse(source.read_text(encoding="utf-8"), str(source)).body[::-1]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If):
            todo += [*node.orelse[::-1], *node.body[::-1]]
        elif isinstance(node, ast.Try):
            todo += [*node.finalbody[::-1], *node.orelse[::-1], *node.body[::-1]]
        else:
            yield node


def _statements(source: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Name -> the statement that binds it; ``dict`` keeps the last, as execution would."""
    for node in _top_level(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                continue
            for alias in node.names:
                if alias.name != "*":
                    # One name a statement: the others of the line may be heavy.
                    yield (alias.asname or alias.name.split(".")[0]), _only(node, alias)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, node


def _only(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    if isinstance(node, ast.Import):
        return ast.copy_location(ast.Import([alias]), node)
    return ast.copy_location(ast.ImportFrom(node.module, [alias], node.level), node)


def _star_imports(source: Path, name: str) -> Iterator[str]:
    package = name if source.name == "__init__.py" else name.rpartition(".")[0]
    for node in _top_level(source):
        if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            yield resolve_name("." * node.level + node.module, package)


class _Finder(MetaPathFinder, Loader):
    """Decides for each SGLang and hollow module which of the three kinds it is."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.split(".", maxsplit=1)[0]
        if top != "sglang" and top not in _HOLLOW:
            return None
        source = self._source(fullname)
        if source and _is_whole(fullname):
            return spec_from_file_location(fullname, source)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        folder = self._root.joinpath(*spec.name.split("."))
        source = self._source(spec.name)
        if source and spec.name in _PARTIAL:
            return _PartialModule(spec.name, folder, source)
        return _HollowModule(spec.name, folder)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs: names are made when they are asked for."""

    def _source(self, fullname: str) -> Path | None:
        base = self._root.joinpath(*fullname.split("."))
        candidates = (base.with_name(f"{base.name}.py"), base / "__init__.py")
        return next((path for path in candidates if path.is_file()), None)


def _is_whole(name: str) -> bool:
    def below(tops: tuple[str, ...]) -> bool:
        return any(name == top or name.startswith(f"{top}.") for top in tops)

    return below(_WHOLE) and not below(_NOT_WHOLE)
