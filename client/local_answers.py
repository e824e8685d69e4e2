"""Rooms whose DP rank the topology implies: no message is needed."""

from __future__ import annotations

from collections.abc import Iterable

from bootstrap_grpc.client.topology_cache import KnownTopology

__all__ = ["LocalAnswers"]


class LocalAnswers:
    """Answers rooms from a topology cache, while its watch is live and the topology READY."""

    def __init__(self, cache: KnownTopology) -> None:
        self._cache = cache

    def __call__(self, rooms: Iterable[int]) -> dict[int, int]:
        """Room to DP rank for each of ``rooms``, or nothing where they must be asked for."""
        topology = self._cache.ready()
        if topology is None or topology.shape is None:
            return {}
        dp_size = topology.shape.dp_size
        if dp_size == 1:
            return dict.fromkeys(rooms, 0)
        if topology.shape.follow_bootstrap_room:
            return {room: room % dp_size for room in rooms}
        return {}
