"""The helper itself: it stops a daemon at any moment of its end."""

from __future__ import annotations

import threading

import pytest

from tests.service.running import PATIENCE, Running, until


def test_stop_between_the_end_of_the_loop_and_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that ends by itself closes its loop; its thread lives a little longer."""
    stopping = threading.Event()

    class Lingering(Running):
        def _run(self) -> None:
            super()._run()
            assert stopping.wait(PATIENCE)

    with Lingering() as running:
        running.call(running.daemon.stop)
        until(lambda: running.code is not None)
        join = running._thread.join

        def release(patience: float) -> None:
            stopping.set()
            join(patience)

        monkeypatch.setattr(running._thread, "join", release)
    assert running.code == 0
