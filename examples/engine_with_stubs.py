"""A prefill engine that is not SGLang, on the generated stubs alone: no client library of ours.

It holds its one rank, tells which DP rank took some rooms, and leaves on Ctrl-C or SIGTERM:

    python examples/engine_with_stubs.py 127.0.0.1:18998 42 43

The same calls can be made in any language from ``protos/bootstrap.proto``. What the client
library does besides: it reconnects, holds again, and tells rooms again to a service that started
anew.
"""

from __future__ import annotations

import signal
import sys
import uuid

import grpc

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc


def run(target: str, rooms: list[int]) -> None:
    """Hold the rank until the stream ends."""
    me = pb.HoldRankRequest(
        key=pb.RankKey(dp_rank=0, cp_rank=0, tp_rank=0, pp_rank=0),
        rank_ip="127.0.0.1",
        rank_port=17000,
        shape=pb.Shape(attn_tp_size=1, attn_cp_size=1, dp_size=1, pp_size=1),
        owner=uuid.uuid4().hex,
    )
    with grpc.insecure_channel(target) as channel:
        stub = rpc.BootstrapServiceStub(channel)
        hold = stub.HoldRank(me, timeout=86_400, wait_for_ready=True)
        try:
            for registered in hold:  # one message at first, then silence while it is held
                sys.stdout.write(f"registered, generation {registered.generation}\n")
                sys.stdout.flush()
                if rooms:
                    stub.RegisterDpRanks(
                        pb.RegisterDpRanksRequest(rooms=rooms, dp_ranks=[0] * len(rooms)),
                        timeout=5,
                    )
        except KeyboardInterrupt:
            stub.DeregisterRank(
                pb.DeregisterRankRequest(
                    key=me.key, rank_ip=me.rank_ip, rank_port=me.rank_port, owner=me.owner
                ),
                timeout=5,
            )
        finally:
            hold.cancel()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # raises KeyboardInterrupt
    run(sys.argv[1], [int(room) for room in sys.argv[2:]])
