"""The room table against a model: a list of living rooms, oldest first."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bootstrap_grpc.server.rooms import RoomTable
from support.clock import FakeClock

LIFETIME = 10.0
CAPACITY = 5
ROOMS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 2**63, 2**64 - 1])
BATCHES = st.lists(st.tuples(ROOMS, st.sampled_from([0, 1, 65_535])), max_size=8)


class RoomMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.table = RoomTable(self.clock, lifetime=LIFETIME, capacity=CAPACITY)
        self.living: list[tuple[int, int, float]] = []
        """(room, rank, end), oldest first."""
        self.stored = self.conflicts = self.evicted = self.born = 0

    @rule(batch=BATCHES)
    def register(self, batch: list[tuple[int, int]]) -> None:
        self.table.register([room for room, _ in batch], [dp_rank for _, dp_rank in batch])
        for room, dp_rank in batch:
            before = [entry for entry in self.living if entry[0] == room]
            self.stored += 1
            self.conflicts += sum(entry[1] != dp_rank for entry in before)
            self.born += not before
            self.living = [entry for entry in self.living if entry[0] != room]
            if len(self.living) == CAPACITY:
                self.living.pop(0)
                self.evicted += 1
            self.living.append((room, dp_rank, self.clock.now + LIFETIME))

    @rule(seconds=st.sampled_from([0.0, 0.001, 1.0, 5.0, 9.999, 10.0, 30.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.living = [
            entry for entry in self.living if round((entry[2] - self.clock.now) * 1000) > 0
        ]

    @rule(most=st.integers(0, 4))
    def expire(self, most: int) -> None:
        before = len(self.table)
        more = self.table.expire(most)
        assert before - len(self.table) <= most
        assert more == (len(self.table) > len(self.living))

    @invariant()
    def answers_as_the_model(self) -> None:
        everything = [0, 1, 2, 3, 4, 5, 6, 7, 2**63, 2**64 - 1]
        assert self.table.query(everything) == {room: rank for room, rank, _ in self.living}

    @invariant()
    def counts_as_the_model(self) -> None:
        stats = self.table.stats
        assert (stats.stored, stats.conflicts, stats.evicted) == (
            self.stored,
            self.conflicts,
            self.evicted,
        )
        assert len(self.living) <= len(self.table) <= CAPACITY
        # A room that ended may be registered again before it was dropped: not counted at all.
        assert stats.expired <= self.born - self.evicted - len(self.living)


RoomMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=60,
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explain takes minutes
    suppress_health_check=[HealthCheck.too_slow],  # a loaded machine is no defect
)
TestRoomsAgainstTheirModel = RoomMachine.TestCase
