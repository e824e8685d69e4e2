"""What the benchmarks share. Importing it makes ``tests/support`` importable as ``support``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

sys.path.append(str(ROOT / "tests"))
