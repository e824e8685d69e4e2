"""Build hook: the stubs of the .proto files and, for an editable install, a tree of links.

Stubs are never committed: they are written before each build and shipped in the wheel, so
that they cannot drift from the .proto. Run this file by hand after an edit of a .proto (extra
``stubs``), or install again.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "bootstrap_grpc"
FOLDERS = ("protos", "server", "client", "compat", "cli")
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


class StubBuildHook(BuildHookInterface):
    """Write ``protos/*_pb2*`` before each build; git ignores them, the archives hold them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        generate(root / "protos", root / "protos")
        build_data["artifacts"] += [f"protos/*{suffix}" for suffix in SUFFIXES]
        if version == "editable":
            link(root)


def generate(source: Path, target: Path) -> None:
    """Compile every .proto in ``source``; write its stubs into ``target``."""
    # On PATH inside pip's isolated build; beside the interpreter when run by hand.
    search = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
    plugin = shutil.which("protoc-gen-mypy_grpc", path=search)
    with tempfile.TemporaryDirectory() as out:
        status = protoc.main(
            [
                "protoc",
                # VIRTUAL=DISK: protoc knows source/x.proto as bootstrap_grpc/protos/x.proto, so
                # the stubs import bootstrap_grpc.protos.x_pb2 and need no rewriting.
                f"-I{PACKAGE}/protos={source}",
                f"-I{files('grpc_tools') / '_proto'}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                f"--plugin=protoc-gen-mypy_grpc={plugin}",
                f"--mypy_grpc_out=quiet:{out}",
                *sorted(str(path) for path in source.glob("*.proto")),
            ]
        )
        if status:
            msg = f"protoc exited with status {status}"
            raise RuntimeError(msg)
        for stub in Path(out, PACKAGE, "protos").iterdir():
            target.joinpath(stub.name).write_bytes(stub.read_bytes())


def link(root: Path) -> None:
    """Lay ``build/editable/bootstrap_grpc/<folder>`` as links to the top-level folders."""
    package = root / "build" / "editable" / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        entry = package / folder
        if not entry.is_symlink():
            entry.symlink_to(Path("..", "..", "..", folder), target_is_directory=True)


if __name__ == "__main__":
    here = Path(__file__).parent
    generate(here, here)
