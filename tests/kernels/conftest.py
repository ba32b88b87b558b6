"""The kernel libraries that this processor can run."""

from __future__ import annotations

import pytest

from edged.kernels import load
from edged.kernels.table import LEVELS


HERE = [level.name for level in LEVELS if load.cpu_features().issuperset(level.features)]


@pytest.fixture(scope="session", params=HERE)
def library(request: pytest.FixtureRequest) -> load.Library:
    """Each level that this processor can run, in turn; all of them must have been built."""
    return load.open(request.param)
