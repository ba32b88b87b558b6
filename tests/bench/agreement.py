"""Agreement with the golden files: the best token of each step, beside llama.cpp as it is built here.

The reference was made by llama.cpp with AVX-512 and VNNI; this says how much two builds of it differ.
"""

from __future__ import annotations

from pathlib import Path

from edged import gguf, tokenizers
from tests.bench.daemon import xllamacpp
from tests.bench.report import Report, Result
from tests.engine.golden import SURE, answer_ids, cases, compare

GOLDEN_NAMES = {"smollm2-135m-instruct": "smollm2", "gemma3-270m": "gemma3"}


def run(report: Report, model: str, path: Path, threads: int, rounds: int) -> None:
    """Adds `agreement`, in percent of all steps, and the steps missed although the reference was sure."""
    name = GOLDEN_NAMES[model]
    references = [step["top"] for case in cases(name) for step in case["steps"]]
    peer = _best_of_peer(path, name, threads)
    own = [int(step.ours.argmax()) for step in compare(path, name)]
    for engine, ids in {"xllamacpp": peer, "edged": own}.items():
        said = [(top, id) for top, id in zip(references, ids, strict=True) if id is not None]
        missed = [top[0][1] - top[1][1] for top, id in said if top[0][0] != id]
        percent = 100 * (1 - len(missed) / len(said))
        more = {"steps": float(len(said)), "missed sure": float(sum(margin >= SURE for margin in missed))}
        report.add(Result("agreement", model, engine, "%", (percent,), "97 %", more))


def _best_of_peer(path: Path, name: str, threads: int) -> list[int | None]:
    """llama.cpp's best id after the prompt and the first k reference ids, for every step.

    None where it says nothing: the token ends inside a character.
    """
    best: list[int | None] = []
    with gguf.open(path) as model, xllamacpp(path, threads, 2048, 1) as daemon:
        tokenizer = tokenizers.open(model.meta)
        for case in cases(name):
            answer, places = answer_ids(case, tokenizer)
            for place in places:
                body = {"prompt": case["prompt_ids"] + answer[:place], "n_predict": 1, "n_probs": 10,
                        "temperature": -1, "cache_prompt": True}  # fmt: skip
                reported = daemon.post("/completion", body).get("completion_probabilities")
                best.append(reported[0]["id"] if reported else None)
    return best
