"""Install an unmodified SGLang release from PyPI into a cache folder.

Only the release's own files are installed (``--no-deps``): light mode (``support.sglang_light``)
needs no torch and no model code. The folder of a release appears whole or not at all, and any
number of processes may ask for it at the same time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CACHE_VARIABLE", "NEWEST", "UNPOOLED", "ReleaseUnavailableError", "install_release"]

NEWEST = "0.5.23"
"""The newest release that this project is checked against."""

UNPOOLED = "0.5.16"
"""The last release whose decode opens a connection per query (sessions came with 0.5.17)."""

CACHE_VARIABLE = "BOOTSTRAP_GRPC_SGLANG_CACHE"
"""Environment variable that names another cache folder than ``.cache/sglang`` of the checkout."""

_INSTALL_TIMEOUT = 600.0
"""Seconds; the largest wheel is about 40 MB."""

_VERSION = re.compile(r"\d+(\.\d+)*(\.?(post|rc)\d+)?")

# What pip says -> what the reader of a skipped test is told. The first that matches is taken.
_REASONS = (
    (
        "no network to the package index",
        re.compile(r"NewConnectionError|Temporary failure in name|ConnectTimeout|ReadTimeout"),
    ),
    (
        "no wheel for this Python, or no such release",
        re.compile(r"Requires-Python|No matching distribution|not a supported wheel"),
    ),
    ("pip is not installed in this environment", re.compile(r"No module named '?pip")),
)


class ReleaseUnavailableError(Exception):
    """The release cannot be had here. The text says why, in words fit for a skip."""


def cache_folder() -> Path:
    """Where releases are kept, one folder per version."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path(__file__).resolve().parents[2] / ".cache" / "sglang"


def install_release(version: str, cache: Path | None = None) -> Path:
    """Return the folder that holds ``sglang/`` of ``version``; install it where it is missing.

    :raises ReleaseUnavailableError: no wheel for this Python, no network, or no pip.
    """
    if not _VERSION.fullmatch(version):
        raise ValueError(f"not a release number: {version!r}")
    cache = cache or cache_folder()
    target = cache / version
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f".{version}.lock"):
        if not target.is_dir():  # else another process installed it while this one waited
            _install(version, target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock, which the kernel drops with the process that dies holding it."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(version: str, target: Path) -> None:
    prefix = f".{version}-"
    for left_over in target.parent.glob(f"{prefix}*"):  # of an installation that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install"),
                *("--no-deps", "--only-binary=:all:", "--no-compile", "--no-input", "--quiet"),
                *("--disable-pip-version-check", "--retries", "1", "--timeout", "20"),
                *("--target", str(staging), f"sglang=={version}"),
            ],
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise ReleaseUnavailableError(_explain(version, done.stderr))
        staging.chmod(0o755)  # mkdtemp makes it private
        staging.rename(target)
    except subprocess.TimeoutExpired:
        raise ReleaseUnavailableError(
            f"SGLang {version}: pip took longer than {_INSTALL_TIMEOUT:.0f} s"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _explain(version: str, output: str) -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [line for line in output.splitlines() if line.startswith("ERROR")] or ["pip failed"]
    reason = next((words for words, sign in _REASONS if sign.search(output)), lines[-1])
    return f"SGLang {version} on Python {python}: {reason}"
