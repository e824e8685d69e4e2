"""Peers for tests: a release that cannot be had skips the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.sglang_matrix import Peers
from support.sglang_members import Member
from support.sglang_release import ReleaseUnavailableError

__all__ = ["SkippingPeers"]


class SkippingPeers(Peers):
    """Where a release cannot be had, the test that asks for it is skipped with the reason."""

    def root(self, member: Member) -> Path:
        try:
            return super().root(member)
        except ReleaseUnavailableError as error:
            pytest.skip(str(error))
