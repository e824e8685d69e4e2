"""On PYTHONPATH, stands in for what SGLang imports on a CPU and never runs there.

Python imports it in every process, spawned ones included. ``triton`` and ``torchvision`` have no
build that imports beside the CPU torch; a package that is installed all the same wins.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

NAMES = ("triton", "torchvision")


class _Meta(type):
    """A class that has every attribute and can be anything: a decorator, a base, a type."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Anything:
            return super().__call__(*args, **kwargs)
        return _decorated(args, kwargs) or super().__call__()

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __or__(cls, _other: Any) -> Any:
        return cls


class Anything(metaclass=_Meta):
    """What a call gives: a decorator perhaps, but a value that has nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _decorated(args, kwargs) or self


def _decorated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function or class that a decorator was called with; else nothing."""
    return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else None


class _Module(ModuleType):
    __version__ = "0.0"  # transformers compares it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> Any:
        if fullname.partition(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


if any("sglang.launch_server" in word or "spawn_main" in word for word in sys.orig_argv):
    # torch must find out first, by itself, that there is no triton.
    import torch._inductor.runtime.triton_compat  # noqa: F401

    sys.meta_path.append(_Finder())
