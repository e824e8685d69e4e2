"""A load process of this project's client: ``load_grpc.py HOST:PORT``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bootstrap_grpc.client import BootstrapClient, NoContact  # after the path
from bootstrap_grpc.protos.errors import BootstrapError  # after the path
from bootstrap_grpc.protos.model import RankKey, TopologyState  # after the path
from harness.load import DP_RANKS, ROOMS, SIZES, Kind, serve_load  # after the path


def judged(query: Callable[[int], bool]) -> Kind:
    """Turn the client's exceptions, and a wrong answer, into reasons."""

    @wraps(query)
    def kind(number: int) -> list[str]:
        try:
            return [] if query(number) else ["wrong answer"]
        except (BootstrapError, NoContact) as error:
            return [str(error)]

    return kind


def main() -> None:
    rooms = list(ROOMS)
    known = {room: room % DP_RANKS for room in rooms}

    with BootstrapClient(sys.argv[1]) as client:

        @judged
        def topology(_number: int) -> bool:
            return client.get_topology().state is TopologyState.READY

        @judged
        def route(number: int) -> bool:
            key = RankKey(dp_rank=number % DP_RANKS, tp_rank=number % SIZES[0])
            return client.get_route(key).key == key

        @judged
        def query(_number: int) -> bool:
            return client.query_dp_ranks(rooms) == known

        @judged
        def register(number: int) -> bool:
            client.register_dp_ranks({number: number % DP_RANKS})
            return True

        serve_load({"topology": topology, "route": route, "query": query, "register": register})


if __name__ == "__main__":
    main()
