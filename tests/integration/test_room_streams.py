"""The two room streams as generated stubs see them."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import grpc
import pytest

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc
from bootstrap_grpc.server.service import ServiceConfig
from support.rooms import waiting
from support.service import RunningService, eventually, running_service


@pytest.fixture
def running() -> Iterator[RunningService]:
    with running_service(ServiceConfig(grpc_port=0, max_waiting_rooms=1_000)) as running:
        yield running


class Talk:
    """A bidirectional call whose requests a test sends one by one."""

    def __init__(self, open_stream: Callable[..., Iterator[object]]) -> None:
        self._requests: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.call = open_stream(iter(self._requests.get, None), timeout=30)

    def send(self, request: object) -> None:
        self._requests.put(request)

    def hear(self) -> object:
        return next(self.call)

    def hang_up(self) -> None:
        self._requests.put(None)


@pytest.fixture
def stub(running: RunningService) -> Iterator[rpc.BootstrapServiceStub]:
    with grpc.insecure_channel(running.grpc) as channel:
        yield rpc.BootstrapServiceStub(channel)


def test_a_stub_is_answered_what_is_known_and_then_what_becomes_known(
    stub: rpc.BootstrapServiceStub,
) -> None:
    stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[1], dp_ranks=[4]))
    talk = Talk(stub.ResolveDpRanks)
    talk.send(pb.ResolveDpRanksRequest(add=[1, 2]))
    assert talk.hear() == pb.ResolveDpRanksResponse(rooms=[1], dp_ranks=[4])
    stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[2, 3], dp_ranks=[5, 5]))
    assert talk.hear() == pb.ResolveDpRanksResponse(rooms=[2], dp_ranks=[5])
    stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[2], dp_ranks=[6]))
    assert talk.hear() == pb.ResolveDpRanksResponse(rooms=[2], dp_ranks=[6]), "its rank changed"
    talk.send(pb.ResolveDpRanksRequest(drop=[2], add=[7]))
    stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[7], dp_ranks=[0]))
    assert talk.hear() == pb.ResolveDpRanksResponse(rooms=[7], dp_ranks=[0])
    talk.hang_up()
    with pytest.raises(StopIteration):
        talk.hear()


def test_a_stub_that_has_said_all_is_answered_to_the_end(
    running: RunningService, stub: rpc.BootstrapServiceStub
) -> None:
    call = stub.ResolveDpRanks(iter([pb.ResolveDpRanksRequest(add=[1, 2])]), timeout=30)
    eventually(lambda: waiting(running) == 2, "both are waited for")
    stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[1, 2], dp_ranks=[3, 4]))
    answers = {r: k for m in call for r, k in zip(m.rooms, m.dp_ranks, strict=True)}
    assert answers == {1: 3, 2: 4}
    eventually(lambda: waiting(running) == 0, "nothing is left behind")


def test_publications_are_acknowledged_and_resent_ones_never_overwrite(
    stub: rpc.BootstrapServiceStub,
) -> None:
    talk = Talk(stub.PublishDpRanks)
    talk.send(pb.PublishDpRanksRequest(sequence=5, rooms=[1, 2], dp_ranks=[3, 4]))
    assert talk.hear() == pb.PublishDpRanksResponse(sequence=5)
    talk.send(pb.PublishDpRanksRequest(sequence=6, rooms=[1, 9], dp_ranks=[7, 7], resend=True))
    talk.send(pb.PublishDpRanksRequest(sequence=7, rooms=[2], dp_ranks=[8]))
    while talk.hear() != pb.PublishDpRanksResponse(sequence=7):
        pass
    known = stub.QueryDpRanks(pb.QueryDpRanksRequest(rooms=[1, 2, 9]))
    assert dict(zip(known.rooms, known.dp_ranks, strict=True)) == {1: 3, 2: 8, 9: 7}
    talk.hang_up()
    with pytest.raises(StopIteration):
        talk.hear()


@pytest.mark.parametrize(
    ("stream", "request_", "status"),
    [
        ("ResolveDpRanks", pb.ResolveDpRanksRequest(add=range(65_537)), "RESOURCE_EXHAUSTED"),
        ("ResolveDpRanks", pb.ResolveDpRanksRequest(add=range(1_001)), "RESOURCE_EXHAUSTED"),
        ("PublishDpRanks", pb.PublishDpRanksRequest(rooms=[1]), "INVALID_ARGUMENT"),
        (
            "PublishDpRanks",
            pb.PublishDpRanksRequest(rooms=[1], dp_ranks=[70_000]),
            "INVALID_ARGUMENT",
        ),
        (
            "PublishDpRanks",
            pb.PublishDpRanksRequest(rooms=range(65_537), dp_ranks=[0] * 65_537),
            "RESOURCE_EXHAUSTED",
        ),
    ],
)
def test_a_bad_message_ends_its_stream_and_nothing_else(
    running: RunningService,
    stub: rpc.BootstrapServiceStub,
    stream: str,
    request_: object,
    status: str,
) -> None:
    other = Talk(stub.ResolveDpRanks)
    other.send(pb.ResolveDpRanksRequest(add=[1]))
    bad = Talk(getattr(stub, stream))
    bad.send(request_)
    with pytest.raises(grpc.RpcError) as refused:
        bad.hear()
    bad.hang_up()
    assert refused.value.code().name == status  # type: ignore[attr-defined]
    eventually(lambda: waiting(running) == 1, "the refused stream left nothing behind")
    assert len(running.service.rooms) == 0
    stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[1], dp_ranks=[2]))
    assert other.hear() == pb.ResolveDpRanksResponse(rooms=[1], dp_ranks=[2])
    other.hang_up()


def test_one_publication_reaches_every_stream_that_waits(
    running: RunningService, stub: rpc.BootstrapServiceStub
) -> None:
    talks = [Talk(stub.ResolveDpRanks) for _ in range(100)]
    for talk in talks:
        talk.send(pb.ResolveDpRanksRequest(add=[7]))

    def waiters() -> int:
        holders = running.service.waiting._waiters.get(7, set())
        return len(holders) if isinstance(holders, set) else 1

    eventually(lambda: running.call(waiters) == 100, "all wait")
    stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[7], dp_ranks=[1]))
    assert all(talk.hear() == pb.ResolveDpRanksResponse(rooms=[7], dp_ranks=[1]) for talk in talks)
    for talk in talks:
        talk.call.cancel()  # type: ignore[attr-defined]
        talk.hang_up()
    eventually(lambda: waiting(running) == 0, "cancelled streams leave nothing behind")
