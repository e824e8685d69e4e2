"""The shipped stubs are what bootstrap.proto says, compiled anew with buf."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import bootstrap_pb2_grpc as pb_grpc

PROTOS = Path(pb.__file__).parent
SERVICE = pb.DESCRIPTOR.services_by_name["BootstrapService"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorProto:
    """bootstrap.proto as buf compiles it now; buf has its own compiler and needs no network."""
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    if buf is None:
        if os.environ.get("CI"):
            pytest.fail("buf is not installed: pip install buf-bin (extra dev)")
        pytest.skip("buf is not installed: pip install buf-bin (extra dev)")
    folder = tmp_path_factory.mktemp("proto")
    shutil.copy(PROTOS / "bootstrap.proto", folder)
    image = folder / "image.binpb"
    subprocess.run(
        [buf, "build", str(folder), "--as-file-descriptor-set", "-o", str(image)],
        check=True,
        timeout=50,
        env={**os.environ, "HOME": str(folder)},  # its cache
    )
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file
    return file


def comparable(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """Without what depends on the compiler: path, comments, and names that follow from others."""
    copy = descriptor_pb2.FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("name")
    copy.ClearField("source_code_info")

    def strip(message: descriptor_pb2.DescriptorProto) -> None:
        for field in message.field:
            field.ClearField("json_name")
        for nested in message.nested_type:
            strip(nested)

    for message in copy.message_type:
        strip(message)
    return copy


def test_the_messages_are_those_of_the_proto(compiled: descriptor_pb2.FileDescriptorProto) -> None:
    shipped = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    assert comparable(shipped) == comparable(compiled), (
        "the stubs are older than bootstrap.proto: run protos/hatch_build.py"
    )


def test_a_stub_of_another_proto_would_be_noticed(
    compiled: descriptor_pb2.FileDescriptorProto,
) -> None:
    for change in (
        lambda file: setattr(file.message_type[0].field[0], "number", 99),
        lambda file: file.message_type[1].field.pop(),
        lambda file: setattr(file.service[0].method[0], "server_streaming", True),
        lambda file: setattr(file.enum_type[0].value[0], "name", "OTHER"),
    ):
        other = descriptor_pb2.FileDescriptorProto.FromString(compiled.SerializeToString())
        change(other)
        assert comparable(other) != comparable(compiled)


class RecordingChannel:
    """Takes the calls that a stub makes of its channel: path to (kind, request, response)."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[str, Any, Any]] = {}

    def _recorder(self, kind: str) -> Callable[..., Callable[..., None]]:
        def record(path: str, **options: Any) -> Callable[..., None]:
            request = options["request_serializer"]
            response = options["response_deserializer"]
            self.calls[path] = (kind, request, response)
            return lambda: None

        return record

    def __getattr__(self, kind: str) -> Callable[..., Callable[..., None]]:
        return self._recorder(kind)


def test_the_service_stub_calls_each_method_as_the_proto_declares_it() -> None:
    channel = RecordingChannel()
    stub = pb_grpc.BootstrapServiceStub(channel)
    assert len(channel.calls) == len(SERVICE.methods) == 10
    for method in SERVICE.methods:
        assert hasattr(stub, method.name)
        kind, request, response = channel.calls[f"/{SERVICE.full_name}/{method.name}"]
        shape = ("stream" if method.client_streaming else "unary") + (
            "_stream" if method.server_streaming else "_unary"
        )
        assert kind == shape
        assert request(getattr(pb, method.input_type.name)()) == b""
        assert type(response(b"")) is getattr(pb, method.output_type.name)


@pytest.mark.parametrize("name", ["bootstrap_pb2.pyi", "bootstrap_pb2_grpc.pyi"])
def test_the_type_stubs_name_everything(name: str) -> None:
    text = (PROTOS / name).read_text()
    if name == "bootstrap_pb2.pyi":
        for message in pb.DESCRIPTOR.message_types_by_name.values():
            body = text.split(f"class {message.name}(")[1].split("\nclass ")[0]
            for field in message.fields:
                assert re.search(rf"\b{field.name}\b", body), f"{message.name}.{field.name}"
        for enum in pb.DESCRIPTOR.enum_types_by_name.values():
            for value in enum.values:
                assert re.search(rf"^{value.name}\b", text, re.MULTILINE), value.name
    else:
        for method in SERVICE.methods:
            assert f"def {method.name}(" in text
