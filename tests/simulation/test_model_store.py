"""The model store does what the port says: the parts of the conformance suite that need no search."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from clew.ports.store import Store
from tests.conformance.store.conftest import OpenStore
from tests.conformance.store.test_commit import *  # noqa: F403
from tests.conformance.store.test_deployments import *  # noqa: F403
from tests.conformance.store.test_fleet import *  # noqa: F403
from tests.conformance.store.test_numbers_namespaces_retention import *  # noqa: F403
from tests.conformance.store.test_reading import *  # noqa: F403
from tests.conformance.store.test_tasks import *  # noqa: F403
from tests.simulation.model_store import ModelData, ModelStore


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def store() -> Store:
    """An empty store."""
    return ModelStore(ModelData(), now)


@pytest.fixture
def open_durable() -> OpenStore:
    """Opens the same store again and again."""
    data = ModelData()

    async def open_again() -> Store:
        return ModelStore(data, now)

    return open_again
