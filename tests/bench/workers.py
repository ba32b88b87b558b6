"""The engines under test, each in a process of its own that waits while the other one is measured.

`python -m tests.bench.workers NAME MODEL THREADS` answers one JSON line per JSON line on stdin:
{"prompt": [ids], "n": tokens} -> {"prompt_s": s, "decode_s": s, "tokens": n after the first}
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

Answer = Callable[[list[int], int], dict[str, Any]]
READY = {"ready": True}


def edged(model: str, threads: int) -> Answer:
    """Greedy, by edged's own clocks."""
    from edged.cli import generate
    from edged.config import load as load_config
    from edged.service.loader import load

    loaded = load(load_config(flags={"model.path": model, "engine.threads": threads, "engine.context": 2048}))

    def answer(prompt: list[int], n: int) -> dict[str, Any]:
        wanted = generate.request(loaded, prompt, n, {"temperature": 0.0}, ignore_eos=True)
        usage = generate.stream(loaded, wanted, (), lambda text: None)
        assert (usage.cached_tokens, usage.completion_tokens) == (0, n)
        return {"prompt_s": usage.prefill_s, "decode_s": usage.decode_s, "tokens": n - 1}

    return answer


def xllamacpp(model: str, threads: int) -> Answer:
    """Greedy, by llama.cpp's own clocks, with its defaults otherwise."""
    server = xllamacpp_server(model, threads, context=2048, parallel=1)

    def answer(prompt: list[int], n: int) -> dict[str, Any]:
        reply = server.handle_completions({"prompt": prompt, "n_predict": n, "temperature": 0.0, "ignore_eos": True,
                                           "cache_prompt": False})  # fmt: skip
        times = reply["timings"]
        assert (times["cache_n"], times["prompt_n"], times["predicted_n"]) == (0, len(prompt), n)
        return {"prompt_s": times["prompt_ms"] / 1e3, "decode_s": times["predicted_ms"] / 1e3, "tokens": n - 1}

    return answer


def xllamacpp_server(model: str, threads: int, context: int, parallel: int) -> Any:
    """llama.cpp's server inside this process. `context` is for each of the `parallel` sequences."""
    import xllamacpp as llama

    params = llama.CommonParams()
    params.model.path = model
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_ctx = context * parallel
    params.n_parallel = parallel
    params.verbosity = 0
    return llama.Server(params)


ENGINES = {"edged": edged, "xllamacpp": xllamacpp}


class Worker:
    """One engine in a child process."""

    def __init__(self, name: str, model: Path, threads: int) -> None:
        self.name = name
        command = [sys.executable, "-m", __name__, name, str(model), str(threads)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        assert self._read() == READY

    def ask(self, prompt: list[int], n: int) -> dict[str, Any]:
        """One request."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps({"prompt": prompt, "n": n}) + "\n")
        self.child.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit code {self.child.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.child.communicate()  # the end of its stdin ends it


def main(name: str, model: str, threads: str) -> None:
    """The child."""
    answer = ENGINES[name](model, int(threads))
    print(json.dumps(READY), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        print(json.dumps(answer(wanted["prompt"], wanted["n"])), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
