"""The description of the HTTP port that it serves at ``/openapi.json``."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["openapi_document"]


def openapi_document() -> bytes:
    """The OpenAPI document: ``docs/openapi.yaml`` as JSON (tested to be the same)."""
    return files("bootstrap_grpc.compat").joinpath("openapi.json").read_bytes()
