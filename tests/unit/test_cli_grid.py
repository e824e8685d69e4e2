"""The rank grid of ``bootstrap-grpc status``."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from rich.console import Console
from rich.text import Text

from bootstrap_grpc.cli.grid import ASCII, UNICODE, Cell, cells, grid, legend
from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import (
    RankKey,
    RefusedRank,
    Route,
    Shape,
    Topology,
    TopologyState,
)


def topology(
    shape: Shape | None,
    held: Iterable[RankKey] = (),
    loose: Iterable[RankKey] = (),
    refused: Iterable[RankKey] = (),
) -> Topology:
    routes = (
        *(Route(key, "192.0.2.1", 1, held=True) for key in held),
        *(Route(key, "192.0.2.1", 1) for key in loose),
    )
    expected = shape.expected if shape else 0
    return Topology(
        state=TopologyState.PARTIAL if shape else TopologyState.EMPTY,
        registered=len(routes),
        expected=expected,
        missing=(),
        missing_total=expected - len(routes),
        shape=shape,
        routes=routes,
        refused=tuple(
            RefusedRank(key, "192.0.2.1", 1, ErrorCode.RANK_HELD, "held", 0) for key in refused
        ),
        server_id="s",
        instance_id="",
        generation=1,
        version=1,
    )


def drawn(state: Topology, width: int = 80) -> list[str]:
    out = Console(file=io.StringIO(), width=width)
    with out.capture() as capture:
        for part in grid(state, ASCII, width):
            out.print(part)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return lines[: lines.index("")] if "" in lines else lines  # a legend follows


def test_dp_ranks_are_rows_and_the_rest_are_columns() -> None:
    state = topology(
        Shape(attn_tp_size=2, attn_cp_size=2, dp_size=2, pp_size=2),
        held=[RankKey(0, 0, 0, 0), RankKey(0, 0, 0, 1)],
        loose=[RankKey(1, 1, 1, 1)],
        refused=[RankKey(1, 0, 1, 0)],
    )
    assert drawn(state) == [
        "cp   0 0 0 0 1 1 1 1",
        "tp   0 0 1 1 0 0 1 1",
        "pp   0 1 0 1 0 1 0 1",
        "dp 0 # # . . . . . .",
        "dp 1 . . x . . . . o",
    ]


def test_dimensions_of_one_rank_need_no_heading_and_numbers_keep_their_columns() -> None:
    state = topology(Shape(attn_tp_size=11, dp_size=1), held=[RankKey(tp_rank=10)])
    assert drawn(state) == [
        "tp    0  1  2  3  4  5  6  7  8  9 10",
        "dp 0  .  .  .  .  .  .  .  .  .  .  #",
    ]
    assert drawn(topology(Shape(), loose=[RankKey()])) == ["dp 0 o"]


def test_a_served_rank_counts_as_served_though_its_key_was_refused_later() -> None:
    key = RankKey()
    assert cells(topology(Shape(), held=[key], refused=[key])) == {key: Cell.HELD}


def test_a_refused_rank_outside_the_shape_has_no_cell() -> None:
    assert cells(topology(Shape(), refused=[RankKey(tp_rank=9)])) == {RankKey(): Cell.MISSING}


def test_nothing_is_drawn_while_no_shape_is_known() -> None:
    state = topology(None, refused=[RankKey()])
    assert drawn(state) == []


def test_4096_ranks_are_summarised_on_any_terminal() -> None:
    shape = Shape(attn_tp_size=64, dp_size=64)
    keys = list(shape.keys())
    state = topology(shape, held=keys[:4000], loose=keys[4000:4090], refused=keys[-1:])
    lines = drawn(state, width=1000)
    assert lines[0].split() == ["dp", "ranks", "held", "not", "held", "missing", "refused"]
    assert len(lines) == 1 + 32
    assert lines[1].split() == ["0-1", "128", "128", "0", "0", "0"]
    assert lines[-1].split() == ["62-63", "128", "32", "90", "5", "1"]


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        (Shape(attn_tp_size=40, dp_size=2), ["0", "1"]),
        (Shape(dp_size=65), [*(f"{n}-{n + 2}" for n in range(0, 63, 3)), "63-64"]),
    ],
    ids=["wider than the terminal", "too many rows"],
)
def test_a_grid_that_does_not_fit_is_summarised(shape: Shape, rows: list[str]) -> None:
    assert [line.split()[0] for line in drawn(topology(shape), width=60)[1:]] == rows


def test_the_largest_server_is_summarised() -> None:
    assert len(drawn(topology(Shape(attn_tp_size=65_536)))) == 2
    assert len(drawn(topology(Shape(dp_size=65_536)))) == 1 + 32


def test_the_legend_names_what_occurs() -> None:
    ranks = {RankKey(): Cell.HELD, RankKey(tp_rank=1): Cell.REFUSED}
    assert legend(ranks, UNICODE).plain == "● held   ✗ refused"
    assert "a restart of the service forgets" in legend({RankKey(): Cell.REGISTERED}, ASCII)
    last = grid(topology(Shape()), UNICODE, 80)[-1]
    assert isinstance(last, Text)
    assert last.plain == "· missing"
