"""The SGLang plugin: ``bootstrap_grpc`` in the entry-point group ``sglang.srt.plugins``.

SGLang (0.5.11 and later) calls ``activate`` in each of its processes before it makes any
bootstrap object. From then on its bootstrap calls go through ``compat.requests_session``, and its
bootstrap server is ``bootstrap-grpc serve`` in a process of its own. SGLang's own retries, checks
and failure handling stay in charge. ``SGLANG_BOOTSTRAP_GRPC=0`` turns it off. See docs/sglang.md.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from bootstrap_grpc.compat.session_hub import hub
from bootstrap_grpc.compat.session_report import VARIABLE, interval
from bootstrap_grpc.compat.sglang_check import Finding, check
from bootstrap_grpc.compat.sglang_hooks import Hooks, RequestsName

__all__ = ["SWITCH", "activate"]

SWITCH = "SGLANG_BOOTSTRAP_GRPC"
"""Environment variable; ``0``, ``false``, ``no`` or ``off`` leaves SGLang as it is."""

_MODULE = "sglang.srt.disaggregation.common.conn"
_OFF = frozenset({"0", "false", "no", "off"})
_CALLS = 6
"""The first so many findings are of calls; a session that sees none of them has no effect."""

_log = logging.getLogger("bootstrap_grpc.sglang")


def activate() -> Hooks | None:
    """Move this process's bootstrap traffic to gRPC; ``None`` where it was left on HTTP.

    Raises nothing: whatever does not fit leaves SGLang as it was, with a warning. Idempotent.
    """
    if os.environ.get(SWITCH, "").strip().lower() in _OFF:
        _say(logging.INFO, f"bootstrap-grpc is off ({SWITCH}={os.environ[SWITCH]}): HTTP")
        return None
    hooks: Hooks | None = None
    try:
        conn = importlib.import_module(_MODULE)
        if isinstance(getattr(conn, "requests", None), RequestsName):
            return None
        hooks = Hooks(conn)
        hooks.install()
        findings = check(hooks)
    except Exception as error:  # noqa: BLE001 - an engine must not fail to start because of us
        if hooks is not None:
            hooks.undo()
        _say(logging.WARNING, f"bootstrap-grpc is not in use, all is HTTP: {error!r}")
        return None
    if all(finding.reason for finding in findings[:_CALLS]):
        hooks.undo()
        _say(logging.WARNING, f"bootstrap-grpc is not in use, all is HTTP: {_why(findings)}")
        return None
    _report()
    missing = [finding for finding in findings if finding.reason]
    _say(logging.WARNING if missing else logging.INFO, _summary(findings, missing))
    return hooks


def _report() -> None:
    """Log the calls' numbers, where that is asked for."""
    try:
        seconds = interval(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        _say(logging.WARNING, f"no reports of bootstrap calls: {error}")
        return
    if seconds is not None:
        hub().counts.report_every(seconds)


def _summary(findings: Sequence[Finding], missing: Sequence[Finding]) -> str:
    hooked = ", ".join(finding.name for finding in findings if not finding.reason)
    text = f"bootstrap-grpc {version('bootstrap-grpc')}: over gRPC with peers that speak it: "
    return f"{text}{hooked}; over HTTP as before: {_why(missing) or 'nothing'}"


def _why(missing: Sequence[Finding]) -> str:
    return "; ".join(f"{finding.name} ({finding.reason})" for finding in missing)


def _say(level: int, text: str) -> None:
    """One line that is seen: SGLang sets up its logging after it loads plugins."""
    if _log.hasHandlers() and _log.isEnabledFor(level):
        _log.log(level, text)
    else:
        sys.stderr.write(f"[pid {os.getpid()}] {text}\n")
