"""Waiting for what a resolver gives out, and looking at what a service waits for."""

from __future__ import annotations

from bootstrap_grpc.client import DpRankResolver
from support.service import RunningService, eventually

__all__ = ["collect", "waiting"]


def collect(resolver: DpRankResolver, count: int) -> dict[int, int]:
    known: dict[int, int] = {}

    def enough() -> bool:
        known.update(resolver.poll())
        return len(known) >= count

    eventually(enough, f"{count} rooms resolved")
    return known


def waiting(running: RunningService) -> int:
    return running.call(len, running.service.waiting)
