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


@pytest.fixture(scope="session")
def vnni_emulated() -> load.Library:
    """The tensor types' kernels of x86_64_vnni512, its three instructions written out for any x86-64-v3 processor."""
    from tests.kernels import emulated

    return emulated.library()


@pytest.fixture(scope="session")
def arm_libraries() -> None:
    """The libraries of both AArch64 levels, where load.py looks for them."""
    from edged.kernels import build

    for level in LEVELS:
        if level.family == "aarch64":
            build.build(build.TARGETS[level.name], build.library_path(level.name))
