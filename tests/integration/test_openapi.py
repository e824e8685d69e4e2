"""What ``docs/openapi.yaml`` says of the HTTP port, and generated requests against a real one.

``BOOTSTRAP_GRPC_FUZZ_REQUESTS=5000`` makes it 5,000 requests instead of a few hundred.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from support.http_shim import payload
from support.openapi import SERVED, SOURCE, document
from support.serve import ServeProcess, serving

schemathesis = pytest.importorskip("schemathesis")  # not in the environment of lowest versions

SHORT = 500
REQUESTS = int(os.environ.get("BOOTSTRAP_GRPC_FUZZ_REQUESTS", str(SHORT)))
TIMEOUT = 20.0  # seconds; an answer that takes as long is a hang

SCHEMA = schemathesis.openapi.from_dict(document())
OPERATIONS = {operation.ok().label: operation.ok() for operation in SCHEMA.get_all_operations()}
INPUTS = {"parameters", "requestBody"}
CASES = [
    (label, mode)
    for label, operation in OPERATIONS.items()
    for mode in schemathesis.GenerationMode
    # A request that carries nothing cannot be an invalid one.
    if mode is schemathesis.GenerationMode.POSITIVE
    or INPUTS & {*operation.definition.raw, *document()["paths"][operation.path]}
]
CHECKS = [
    schemathesis.specs.openapi.checks.status_code_conformance,
    schemathesis.specs.openapi.checks.content_type_conformance,
    schemathesis.specs.openapi.checks.response_headers_conformance,
    schemathesis.specs.openapi.checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A service whose prefill server is READY until a generated registration says otherwise."""
    folder = tmp_path_factory.mktemp("openapi")
    with serving(folder, "--http-hold", "0.02", "--http-metadata", "--expected-ranks", "2") as one:
        assert call(one, "PUT", "/route", payload())[0] == 200
        yield one
        assert "Traceback" not in one.log
        assert " ERROR " not in one.log


def call(server: ServeProcess, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.http, timeout=TIMEOUT)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("label", "mode"), CASES)
def test_no_generated_request_is_a_fault_or_a_hang(
    server: ServeProcess, label: str, mode: Any
) -> None:
    send_generated(server, OPERATIONS[label], mode, REQUESTS // len(CASES))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_no_query_of_an_empty_service_is_a_fault_or_a_hang(tmp_path: Path, mode: Any) -> None:
    """Where dialects A and B wait, and the others answer 503."""
    with serving(tmp_path, "--http-hold", "0.02") as server:
        send_generated(server, OPERATIONS["GET /route"], mode, REQUESTS // len(CASES))
        assert "Traceback" not in server.log


def send_generated(server: ServeProcess, operation: Any, mode: Any, requests: int) -> None:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=requests,
        deadline=None,
        database=None,
        derandomize=REQUESTS == SHORT,  # the short run is the same each time
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        response = case.call(
            base_url=f"http://{server.http}", timeout=TIMEOUT, allow_redirects=False
        )
        assert response.status_code != 500, response.text
        assert response.headers["bootstrap-server-id"]
        # What is generated to be no valid request may be refused in any of the ways described.
        case.validate_response(response, checks=CHECKS)

    send()
    assert call(server, "GET", "/health") == (200, b"OK")


def test_the_description_is_served(server: ServeProcess) -> None:
    status, body = call(server, "GET", "/openapi.json")
    assert (status, json.loads(body)) == (200, document())


def test_what_is_served_is_what_is_written() -> None:
    served = json.loads(SERVED.read_text(encoding="utf-8"))
    assert served == document(), f"run: python tests/support/openapi.py ({SOURCE} has changed)"


def test_every_path_is_described() -> None:
    from bootstrap_grpc.compat.config import HttpConfig
    from bootstrap_grpc.compat.endpoints import Endpoints
    from bootstrap_grpc.server.registry import RankRegistry, RegistryConfig
    from bootstrap_grpc.server.rooms import RoomTable

    registry = RankRegistry(RegistryConfig("s"), clock=lambda: 0.0, wall_clock=lambda: 0.0)
    endpoints = Endpoints(registry, RoomTable(lambda: 0.0), HttpConfig(metadata=True))
    assert {"/route", *endpoints._paths} == set(document()["paths"])
    for path, target in endpoints._paths.items():
        methods = {method.lower() for method in target.operations} - {"head"}
        assert methods == set(document()["paths"][path]) - {"parameters"}


def test_the_description_knows_every_key_of_every_dialect() -> None:
    from bootstrap_grpc.compat.dialects.table import DIALECTS

    schemas = document()["components"]["schemas"]
    for dialect in DIALECTS:
        schema = schemas[f"Registration{dialect.name}"]
        parts = [schema, *schema.get("allOf", [])]
        names = [name for part in parts for name in part.get("properties", ())]
        if dialect.name == "D":
            names += schemas["RegistrationC"]["properties"]
        assert set(names) == dialect.known_keys
