"""NIXL's store of values by key, as SGLang 0.4.5.post3 to 0.4.6.post5 serve it.

Anybody may write to it, so it is off unless the operator asks for it (``--http-metadata``), and
bounded. No release that is known reads it.
"""

from __future__ import annotations

from bootstrap_grpc.protos.errors import BootstrapError

__all__ = ["MetadataStore"]

MOST_KEYS = 4_096
LONGEST_KEY = 1_024
"""In characters."""
LONGEST_VALUE = 1024 * 1024
"""In bytes: the body limit of SGLang's own server."""
MOST_BYTES = 64 * 1024 * 1024
"""Of all values together."""


class MetadataStore:
    """Values by key. Not thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Keep ``value``. Raises LIMIT_EXCEEDED, and keeps what was there."""
        before = self._values.get(key)
        added = len(value) - len(before or b"")
        for what, count, limit in (
            ("characters of a metadata key", len(key), LONGEST_KEY),
            ("bytes of metadata in one value", len(value), LONGEST_VALUE),
            ("bytes of metadata", self._bytes + added, MOST_BYTES),
            ("metadata keys", len(self._values) + (before is None), MOST_KEYS),
        ):
            if count > limit:
                raise BootstrapError.limit(what, count, limit)
        self._values[key] = value
        self._bytes += added

    def delete(self, key: str) -> bool:
        """Whether there was a value."""
        value = self._values.pop(key, None)
        self._bytes -= len(value or b"")
        return value is not None
