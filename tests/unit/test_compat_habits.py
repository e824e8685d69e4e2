from __future__ import annotations

import pytest

from bootstrap_grpc.compat.habits import TRIAL_SECONDS, Habits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def habits(clock: Clock) -> Habits:
    return Habits(clock, learned_for=60.0, max_peers=3)


def use_once(habits: Habits, address: str) -> bool:
    """A client that closes after one request; whether its connection was kept."""
    token = habits.begin_trial(address)
    if token is not None:
        habits.end_trial(address, token, closed_by_peer=True)
    return token is not None


def test_two_single_uses_are_learned_for_a_minute(habits: Habits, clock: Clock) -> None:
    assert [use_once(habits, "a") for _ in range(5)] == [True, True, False, False, False]
    clock.now += 59.9
    assert not use_once(habits, "a")
    assert use_once(habits, "b"), "each address for itself"
    clock.now += 0.2
    assert [use_once(habits, "a") for _ in range(3)] == [True, True, False]


def test_clients_that_come_at_once_leave_no_more_than_two(habits: Habits) -> None:
    tokens = [habits.begin_trial("a") for _ in range(8)]
    assert [token is not None for token in tokens] == [True, True] + [False] * 6


def test_never_more_than_two_a_minute(habits: Habits, clock: Clock) -> None:
    closed_by_client: list[float] = []
    for _ in range(2000):
        if use_once(habits, "a"):
            closed_by_client.append(clock.now)
        clock.now += 0.37
    for at in closed_by_client:
        assert len([t for t in closed_by_client if at <= t < at + 60.0]) <= 2


def test_pooled_clients_are_all_kept_in_the_end(habits: Habits) -> None:
    waiting, kept = 16, 0
    for _ in range(16):
        tokens = [habits.begin_trial("a") for _ in range(waiting)]
        for token in tokens:
            if token is not None:
                habits.end_trial("a", token, closed_by_peer=False)
                kept += 1
        waiting = 16 - kept
    assert kept == 16
    assert len(habits) == 0, "nothing is left to remember"


def test_an_idle_connection_is_no_trial_for_ever(habits: Habits, clock: Clock) -> None:
    assert habits.begin_trial("a") is not None
    assert habits.begin_trial("a") is not None
    assert habits.begin_trial("a") is None
    clock.now += TRIAL_SECONDS
    assert habits.begin_trial("a") is not None


def test_the_table_is_bounded(habits: Habits) -> None:
    for address in "abcdef":
        use_once(habits, address)
    assert len(habits) == 3
    token = habits.begin_trial("a")
    assert token is not None
    for address in "xyz":
        use_once(habits, address)
    habits.end_trial("a", token, closed_by_peer=True)
    habits.end_trial("gone", 1.0, closed_by_peer=False)
    assert len(habits) <= 3
