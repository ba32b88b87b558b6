"""`python -m tests.engine.golden_on_arm MODEL N`: greedy ids after golden prompts, as JSON; runs in the AArch64 root.

Reads the prompts, a JSON list of lists of ids, from stdin, and prints {"level": name, "ids": [[...], ...]}.
"""

from __future__ import annotations

import json
import sys

from edged import engine, gguf
from edged.config import EngineConfig
from edged.engine.request import Event, Request, Sampling, Token


def main(path: str, n: int) -> None:
    with gguf.open(path) as model:
        running = engine.open(EngineConfig(context=512, threads=1), model, thread=False)
        answers = []
        for prompt in json.load(sys.stdin):
            events: list[Event] = []
            running.submit(Request(tuple(prompt), n, Sampling(temperature=0.0)), events.append)
            while running.step():
                pass
            answers.append([event.id for event in events if isinstance(event, Token)])
        print(json.dumps({"level": running.info.kernel_level, "ids": answers}))
        running.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
