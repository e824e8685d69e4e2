"""Forks and spawned children beside live streams."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from bootstrap_grpc.client import (
    BootstrapClient,
)
from support.serve import child_environment, serving


def _resolve_in_child(address: str, answer: Connection) -> None:
    with BootstrapClient(address) as client:
        resolver, publisher = client.resolver(), client.publisher()
        resolver.submit([os.getpid()])
        publisher.publish(os.getpid(), 3)
        deadline = time.monotonic() + 20
        while not (known := resolver.poll()) and time.monotonic() < deadline:
            time.sleep(0.005)
        answer.send(known == {os.getpid(): 3})


# In a process of its own: what it forks should have no other test's streams.
_MULTIPROCESSING = """
import sys
sys.path.insert(0, sys.argv[3])
from support.rooms import collect
from test_forks import in_child
from bootstrap_grpc.client import BootstrapClient
if __name__ == "__main__":
    with BootstrapClient(sys.argv[1]) as client:
        resolver, publisher = client.resolver(), client.publisher()
        resolver.submit([1]); publisher.publish(1, 0); collect(resolver, 1)
        for _ in range(5):
            print(in_child(sys.argv[2], sys.argv[1]))
        resolver.submit([2]); publisher.publish(2, 1)
        print(collect(resolver, 1) == {2: 1})
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_resolve_and_publish_for_themselves_beside_the_parents_streams(
    tmp_path: Path, method: str
) -> None:
    program = tmp_path / "program.py"  # spawn runs it again
    program.write_text(_MULTIPROCESSING)
    with serving(tmp_path) as service:
        said = forking(str(program), service.grpc, method, str(Path(__file__).parent))
        assert said.split() == ["True"] * 6


def in_child(method: str, address: str) -> object:
    """What ``_resolve_in_child`` says in a child of this process."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_resolve_in_child, args=(address, sender))
    child.start()
    sender.close()
    assert receiver.poll(40), "the child must answer, not hang"
    answer: object = receiver.recv()
    child.join(20)
    assert child.exitcode == 0
    receiver.close()
    return answer


def forking(*command: str) -> str:
    """What a program that forks prints."""
    environment = {**child_environment(), "PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("PYTHONWARNINGS")  # the interpreter warns of forks with threads, rightly
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_FORK = """
import os, signal, sys, time
from bootstrap_grpc.client import BootstrapClient, ForkedError
client = BootstrapClient(sys.argv[1])
resolver, publisher, cache = client.resolver(), client.publisher(), client.topology_cache()
resolver.submit([1]); publisher.publish(1, 1); assert publisher.flush(20); cache.wait(20)

def in_child():
    for call in (lambda: resolver.submit([2]), lambda: publisher.publish(2, 2)):
        try:
            call()
        except ForkedError:
            continue
        raise AssertionError("the parent's streams are not the child's")
    resolver.poll(); resolver.close(); publisher.close()
    with client.publisher() as own:  # of the same client, which connects anew
        own.publish(4, 4); assert own.flush(20)
    assert client.query_dp_ranks([4]) == {4: 4}
    client.close()

for _ in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a hang ends the child, and the test
        try:
            in_child()
            os._exit(0)
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    publisher.publish(3, 3); assert publisher.flush(20)
while cache.age():
    time.sleep(0.001)
client.close()
"""


def test_a_fork_pauses_the_streams_and_both_sides_go_on(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert forking("-c", _FORK, service.grpc).split() == ["0"] * 10
