"""Tests that share a service must run on one node."""

import pytest


@pytest.mark.xdist_group("groups")
def test_a_group_is_kept(request: pytest.FixtureRequest) -> None:
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@groups"), "pytest-xdist ignores groups with this pytest"
