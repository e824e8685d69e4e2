"""Real processes of the installed ``bootstrap-grpc`` command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bootstrap_grpc.client import BootstrapClient
from bootstrap_grpc.protos.model import RankKey, Registration, Shape, Topology

__all__ = ["PATIENCE", "Process", "Service", "environment", "run", "until"]

SCRIPT = Path(sys.executable).with_name("bootstrap-grpc")
PATIENCE = 30.0  # seconds after which something that should come soon never will


def environment(address: str | None = None, **variables: str) -> dict[str, str]:
    """This process's environment with only the given BOOTSTRAP_GRPC variables."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BOOTSTRAP_GRPC_")}
    clean |= {"COLUMNS": "100", "PYTHONUNBUFFERED": "1"} | variables
    return clean if address is None else clean | {"BOOTSTRAP_GRPC_ADDRESS": address}


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true result of ``condition``, which is asked until then."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:g} s"
        time.sleep(0.02)
    return result


class Process:
    """A running command whose stderr and stdout go to files."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str]) -> None:
        self.out = folder / "stdout"
        self.err = folder / "stderr"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.popen = subprocess.Popen(
                [SCRIPT, *arguments],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=dict(env),
            )

    @property
    def log(self) -> str:
        return self.err.read_text("utf-8")

    def wait_for_log(self, text: str) -> None:
        def shown() -> bool:
            assert text in self.log or self.popen.poll() is None, self.log
            return text in self.log

        until(shown, f"{text!r} in the log")

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        return self.popen.wait(timeout)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


class Service(Process):
    """A running ``bootstrap-grpc serve`` on free ports."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str]) -> None:
        self.port_file = folder / "ports.json"
        ports = ("--port", "0", "--http-port", "0", "--port-file", str(self.port_file))
        super().__init__(folder, "serve", *ports, *arguments, env=env)
        try:
            until(lambda: self.port_file.exists() or self.popen.poll() is not None, "the port file")
            assert self.popen.poll() is None, self.log
            self.ports: dict[str, Any] = json.loads(self.port_file.read_text())
        except BaseException:
            self.end()
            raise

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command against this service."""
        return run(*arguments, env=environment(self.address), stdin=stdin)

    def json(self, *arguments: str) -> Any:
        """The JSON document of a command that exits 0 or 3."""
        done = self.run(*arguments, "--json")
        assert done.returncode in (0, 3), done
        return json.loads(done.stdout)

    def topology(self) -> Topology:
        """What the service knows, asked without a process of its own."""
        with BootstrapClient(self.address) as client:
            return client.get_topology()

    def register(self, port: int, key: RankKey | None = None, shape: Shape | None = None) -> None:
        """Registers a rank, without a process of its own."""
        with BootstrapClient(self.address) as client:
            rank = Registration(key or RankKey(), "127.0.0.1", port, shape or Shape())
            client.register_rank(rank)

    def http(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.ports["http"], timeout=PATIENCE)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


def run(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [SCRIPT, *arguments],
        env=dict(environment() if env is None else env),
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
