"""A load process of SGLang's own client code: ``load_sglang.py RELEASE_FOLDER HOST:PORT``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.dont_write_bytecode = True  # the cache holds the release as it was published
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.load import DP_RANKS, ROOMS, SIZES, serve_load  # noqa: E402 # after the path
from support.sglang_roles import Engine, LogCapture, PrefillRank  # noqa: E402 # after the path


def main() -> None:
    release, address = Path(sys.argv[1]), sys.argv[2]
    log = LogCapture().install()
    engine = Engine(release)
    decode = engine.decode(address, SIZES)
    register_dp_rank = engine.dp_rank_sender(address)
    rooms = list(ROOMS)
    known = {str(room): room % DP_RANKS for room in rooms}
    rank = PrefillRank(sizes=SIZES)  # one that is registered already, at the same address

    # SGLang swallows its errors and logs them; an answer that is wrong counts as well.
    def judged(*, good: bool) -> list[str]:
        return log.take() or ([] if good else ["wrong answer"])

    def topology(_number: int) -> list[str]:
        return judged(good=decode.topology() is not None)

    def route(number: int) -> list[str]:
        return judged(good=decode.route(number % DP_RANKS, 0, number % SIZES[0], 0) is not None)

    def query(_number: int) -> list[str]:
        return judged(good=engine.query_dp_ranks(address, rooms) == known)

    def register(number: int) -> list[str]:
        register_dp_rank(number, number % DP_RANKS)
        return judged(good=True)

    def rank_registration(_number: int) -> list[str]:
        engine.register(address, rank)
        return judged(good=True)

    serve_load(
        {
            "topology": topology,
            "route": route,
            "query": query,
            "register": register,
            "rank": rank_registration,
        }
    )


if __name__ == "__main__":
    main()
