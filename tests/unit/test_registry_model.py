"""The registry against the model of ``support.registry_model``, in any order of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import Registration, Shape, TopologyState
from bootstrap_grpc.server.registry import Hold
from support.registrations import REMOTE, World, rank
from support.registry_model import Claim, RegistryModel

GRACE, SETTLE = 10.0, 60.0

# Few values, so that calls meet; most claims agree in shape, so that groups become READY.
CLAIMS = st.builds(
    Claim,
    tp=st.integers(0, 1),
    port=st.sampled_from([17001, 17001, 17002, 17003]),
    owner=st.sampled_from(["", "A", "B"]),
    size=st.sampled_from([2] * 8 + [4, 1]),
    page=st.sampled_from([64] * 5 + [None, 32]),
).filter(lambda claim: claim.tp < claim.size)
# Whole numbers of seconds, so that the ends of grace and settle are met exactly.
WAITS = st.sampled_from([1.0, 5.0, 9.0, 10.0, 11.0, 50.0, 59.0, 60.0, 61.0, 200.0])


def registration(claim: Claim) -> Registration:
    shape = Shape(attn_tp_size=claim.size, page_size=claim.page)
    return rank(claim.tp, claim.port, shape=shape, owner=claim.owner)


class RegistryMachine(RuleBasedStateMachine):
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(hold_grace=GRACE, settle=SETTLE)
        self.registry = self.world.registry
        self.model = RegistryModel(GRACE, SETTLE)
        self.told: list[tuple[int, ErrorCode]] = []
        self.open: dict[int, Hold] = {}
        self.numbers = 0
        self.latest: dict[int, int] = {}
        self.notified = 0
        self.last = self.registry.topology()
        self.registry.subscribe(self._on_change)

    def _on_change(self) -> None:
        self.notified += 1

    @rule(claim=CLAIMS)
    def register(self, claim: Claim) -> None:
        outcome = self._outcome(lambda: self.world.put(registration(claim)))
        assert outcome == self.model.register(claim)
        if outcome is None:
            self.latest[claim.tp] = claim.port

    @rule(target=holds, claim=CLAIMS)
    def hold(self, claim: Claim) -> object:
        self.numbers += 1
        number = self.numbers

        def on_end(error: BootstrapError) -> None:
            assert self.open.pop(number), "told twice, or after its release"
            self.told.append((number, error.code))

        def call() -> None:
            made = self.registry.hold(registration(claim), REMOTE, on_end)
            self.open[number] = made
            assert made.registered.version == self.registry.version
            assert made.registered.generation == self.registry.topology().generation

        outcome = self._outcome(call)
        assert outcome == self.model.register(claim, number)
        if outcome is not None:
            return multiple()
        self.latest[claim.tp] = claim.port
        return number

    @rule(target=holds, data=st.data(), hold=st.booleans())
    def register_again(self, data: st.DataObject, hold: bool) -> object:
        """What is registered, by its own process or by the same one over HTTP."""
        if not self.model.ranks:
            return multiple()
        tp = data.draw(st.sampled_from(sorted(self.model.ranks)))
        claim = self.model.ranks[tp].claim
        claim = replace(claim, owner=data.draw(st.sampled_from([self.model.ranks[tp].owner, ""])))
        if hold:
            return self.hold(claim)
        self.register(claim)
        return multiple()

    @rule(number=consumes(holds))
    def release(self, number: int) -> None:
        # A hold that the registry ended is released too: its call closes afterwards.
        made = self.open.pop(number, None)
        if made is not None:
            self.registry.release(made)
            self.registry.release(made)
        self.model.release(number)

    @rule(claim=CLAIMS)
    def deregister(self, claim: Claim) -> None:
        outcome = self._outcome(lambda: self.world.leave(registration(claim)))
        assert outcome == self.model.deregister(claim.tp, claim.port, claim.owner)

    @rule(data=st.data())
    def deregister_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model.ranks:
            tp = data.draw(st.sampled_from(sorted(self.model.ranks)))
            there = self.model.ranks[tp]
            self.deregister(Claim(tp, there.claim.port, there.owner, 4, None))

    @rule(seconds=WAITS, timer=st.booleans())
    def advance(self, seconds: float, timer: bool) -> None:
        """With a timer that calls ``advance`` when it is due, or all at once."""
        end = self.world.clock.now + seconds
        while timer:
            due = self.registry.next_deadline()
            if due is None or due > end:
                break
            self.world.advance(max(0.0, due - self.world.clock.now))
            self.registry.advance()
            assert self.registry.next_deadline() != due, "due again at once"
        self.world.advance(end - self.world.clock.now)
        self.model.advance(seconds)

    @staticmethod
    def _outcome(call: Callable[[], object]) -> ErrorCode | None:
        try:
            call()
        except BootstrapError as error:
            return error.code
        return None

    # --- what must hold after every step ---

    @invariant()
    def shows_what_the_model_shows(self) -> None:
        topology = self.registry.topology()
        served = {r.key.tp_rank: (r.rank_port, r.held) for r in topology.routes}
        assert served == self.model.served
        assert (topology.state is TopologyState.READY) == self.model.ready
        assert (topology.state is TopologyState.EMPTY) == (not self.model.ranks)
        assert topology.generation == self.model.generation
        assert {r.key.tp_rank: r.code for r in topology.refused} == self.model.refused
        if self.model.ranks:
            assert topology.shape == Shape(
                attn_tp_size=self.model.shape["size"], page_size=self.model.shape.get("page")
            )
        assert sorted(self.told) == sorted(self.model.told)

    @invariant()
    def counts_agree(self) -> None:
        topology = self.registry.topology()
        assert self.registry.registered == topology.registered == len(topology.routes)
        assert self.registry.state is topology.state
        assert topology.missing_total == topology.expected - topology.registered
        assert len(topology.missing) == min(64, topology.missing_total)
        if topology.shape is not None:
            served = {route.key for route in topology.routes}
            assert served | set(topology.missing) == set(topology.shape.keys())
        for route in topology.routes:
            assert self.registry.route(route.key) == route
            assert route.generation == topology.generation
        registry = self.registry
        assert registry._confirmed == sum(r.confirmed for r in registry._ranks.values())
        assert not registry._changed
        assert not registry._ending
        assert not set(registry._ranks) & set(registry._removed)
        assert all(not made.ended for made in self.open.values())

    @invariant()
    def version_rises_with_every_visible_change(self) -> None:
        topology = self.registry.topology()
        assert topology.version == self.registry.version == self.notified
        assert topology.version >= self.last.version
        if topology.version == self.last.version:
            assert topology.routes == self.last.routes
            assert topology.state is self.last.state
            assert topology.shape == self.last.shape
            assert topology.generation == self.last.generation
            assert topology.missing == self.last.missing
            assert {r.key: r.reason for r in topology.refused} == {
                r.key: r.reason for r in self.last.refused
            }
        assert topology.generation >= self.last.generation
        self.last = topology

    @invariant()
    def serves_each_key_only_where_it_registered_last(self) -> None:
        for route in self.registry.topology().routes:
            assert route.rank_port == self.latest[route.key.tp_rank]


RegistryMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=80,
    stateful_step_count=35,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explain takes minutes
    suppress_health_check=[HealthCheck.too_slow],  # a loaded machine is no defect
)
TestRegistryAgainstItsModel = RegistryMachine.TestCase
