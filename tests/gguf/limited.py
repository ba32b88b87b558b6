"""Opens models in a child process that may use little more memory than it has after its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CHILD = """
import json, resource, sys
from edged import gguf
from edged.errors import EdgedError
limit = int(sys.argv[1])
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + limit, now + limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[2:]:
    try:
        gguf.open(path).close()
        print(json.dumps("opened"))
    except EdgedError as e:
        print(json.dumps(f"{e.code}: {e}"))
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def open_limited(paths: Sequence[Path], limit: int = 64 << 20) -> tuple[list[str], int]:
    """What became of each model, "opened" or its error, and by how much resident memory grew in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(limit), *map(str, paths)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *results, grown = (json.loads(line) for line in done.stdout.splitlines())
    return results, grown * 1024
