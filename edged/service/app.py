"""The daemon's whole life, and the only place that wires its parts.

    App(config).run() -> exit code

The socket answers from the start, /health with 503 and the reasons, while a thread loads the model. A self-test token
must come out before the daemon calls itself ready. Then it answers until a signal, the end of its model, or `stop()`.

| exit code | why |
|---|---|
| 0 | a signal or `stop()` asked for it |
| 75 (EX_TEMPFAIL) | the model file was changed in place: the unit restarts and checks it again |

A socket or a model that cannot be opened is raised as a named error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, MutableMapping

from edged.api.context import Loaded
from edged.config import Config
from edged.service import loader
from edged.service.loader import Post

Load = Callable[[Config, Post], Loaded]


class App:
    """One daemon. `load(config, post)` opens the models; tests pass one that opens a stub."""

    def __init__(self, config: Config, load: Load = loader.load_all,
                 environ: MutableMapping[str, str] = os.environ) -> None:
        self._config = config
        self._load = load
        self._environ = environ

    def run(self) -> int:
        """Serve until told to stop; returns the exit code. Raises EdgedError if it cannot start."""
        import asyncio  # not at import: commands that load a model without serving come through this module too

        from edged.service.daemon import Daemon

        daemon = Daemon(self._config, self._load, self._environ)
        code = asyncio.run(daemon.run())
        if daemon.left_behind:
            # threads that did not stop when asked would hold up the interpreter's own end
            logging.shutdown()
            os._exit(code)
        return code
