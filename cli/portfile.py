"""The file that tells scripts which ports ``serve`` listens on."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["PortFile"]


class PortFile:
    """``{"grpc": port, "http": port or null, "pid": pid}``, there exactly while they are bound."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def clear_stale(self) -> None:
        """Removes what a killed service left: a script that waits for the file must not read it."""
        pid = self._owner()
        if pid is not None and (pid == os.getpid() or not _alive(pid)):
            self._path.unlink(missing_ok=True)

    def write(self, *, grpc: int, http: int | None) -> None:
        """Writes the file at once, never in part. Raises OSError."""
        text = json.dumps({"grpc": grpc, "http": http, "pid": os.getpid()}) + "\n"
        handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        temporary = Path(name)
        try:
            with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - Path cannot open a descriptor
                os.fchmod(handle, 0o644)  # mkstemp's 0600 would hide it from other users' scripts
                file.write(text)
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """Removes the file if it is this process's own."""
        if self._owner() == os.getpid():
            self._path.unlink(missing_ok=True)

    def _owner(self) -> int | None:
        """The pid in the file; ``None`` where it is absent or no port file."""
        try:
            pid: Any = json.loads(self._path.read_text("utf-8"))["pid"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return pid if isinstance(pid, int) and pid > 0 else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's, so it lives
        return True
    return True
