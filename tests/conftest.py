"""What tests share: the real models, and an emulated AArch64 processor.

EDGED_TEST_MODELS   folder that already holds the model files; otherwise edged's own `pull` fetches them into its cache
EDGED_REQUIRE_ARM   1: a test that needs AArch64 fails where it cannot run, instead of being skipped
EDGED_SOAK          1 (`make soak`): `scaled(n, soak=m)` is m, and tests marked `soak` are run
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests import arm as emulator

# no timing in tests: a busy two-core machine is not a fault of the code under test
settings.register_profile("edged", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("edged")

SOAK = os.environ.get("EDGED_SOAK") == "1"

# the very files that golden/ was made with: file name, SHA-256
MODELS = {
    "smollm2-135m-instruct": (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": (
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "all-minilm-l6-v2": (
        "all-MiniLM-L6-v2.Q8_0.gguf",
        "48d0facbee0e790927a4477e0f0d2bfcb852b5d8f37b7fc575539a1bf5876719",
    ),
}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the long loops to `make soak`, which runs the scaled ones, too."""
    if SOAK:
        for item in items:
            if "scaled" in getattr(item, "fixturenames", ()):
                item.add_marker("soak")
    else:
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="a long loop: make soak"))


@pytest.fixture(scope="session")
def scaled() -> Callable[..., int]:
    """`scaled(1000, soak=1_000_000)`: how often a loop runs, in `make test` and in `make soak`."""
    return lambda sample, *, soak: soak if SOAK else sample


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding; tied."""
    return _model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M; a base model, without a chat template."""
    return _model("gemma3-270m")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """all-MiniLM-L6-v2, Q8_0; converted when it is pulled."""
    return _model("all-minilm-l6-v2")


@pytest.fixture(scope="session")
def arm() -> Callable:
    """`run_arm` of tests/arm.py: `arm("cortex-a72", ["-c", "..."])` returns the CompletedProcess."""
    try:
        emulator.root()
    except emulator.ArmUnavailableError as error:
        if os.environ.get("EDGED_REQUIRE_ARM") == "1":
            pytest.fail(f"EDGED_REQUIRE_ARM=1, but AArch64 cannot be emulated: {error}")
        pytest.skip(f"AArch64 cannot be emulated: {error}")
    return emulator.run_arm


def _model(catalogue_name: str) -> Path:
    file_name, sha256 = MODELS[catalogue_name]
    given = Path(os.environ.get("EDGED_TEST_MODELS", ""), file_name)
    if given.is_file():
        path = given
    else:
        from edged.store.pull import pull  # here, not above: tests of other parts do without the store

        path = pull(catalogue_name).path
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        pytest.fail(f"{path}: SHA-256 is {digest}, expected {sha256}: golden files do not apply to it")
    return path
