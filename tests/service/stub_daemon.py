"""A daemon with a stub engine as a process of its own: python -m tests.service.stub_daemon SOCKET SCRIPT.

SCRIPT: endless (5 ms a token) | fast (as fast as it goes) | held (accepts, then stands still as in a long prefill)
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

from edged.api.context import Loaded
from edged.config import Config, ServerConfig
from edged.service.app import App
from edged.service.loader import Post
from tests.stub_engine import StubEngine, endless, stub_model


def main() -> int:
    path, script = sys.argv[1:]

    def load(config: Config, post: Post) -> Loaded:
        engine = StubEngine(endless(65), post=post, n_ctx=10**7, delay=0.005 if script == "endless" else 0.0)
        if script == "held":
            engine.hold()
            engine.step(1)  # the self-test's
        model = stub_model(engine)
        return Loaded(model, None, model.close)

    logging.basicConfig(level=logging.INFO)
    return App(replace(Config(), server=ServerConfig(socket=path)), load).run()


if __name__ == "__main__":
    sys.exit(main())
