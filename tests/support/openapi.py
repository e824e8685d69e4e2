"""The OpenAPI description: ``docs/openapi.yaml``, and what is served of it.

Run as a script it rewrites ``compat/openapi.json`` from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["SERVED", "SOURCE", "document"]

_ROOT = Path(__file__).resolve().parents[2]
SOURCE = _ROOT / "docs" / "openapi.yaml"
SERVED = _ROOT / "compat" / "openapi.json"


def document() -> dict[str, Any]:
    """What ``docs/openapi.yaml`` says."""
    import yaml

    loaded: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return loaded


if __name__ == "__main__":
    SERVED.write_text(json.dumps(document(), indent=1) + "\n", encoding="utf-8")
