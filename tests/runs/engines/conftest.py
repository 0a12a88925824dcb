"""A Ray cluster for all tests of engines."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """One cluster of two CPUs, since its start takes seconds."""
    pytest.importorskip("ray", reason="the package ray is not installed; pip install 'numerate[ray]'")
    from numerate.runs.engines import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with ray.connected_cluster(None, 2):
            yield
