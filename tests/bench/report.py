"""Results as a table for people and as JSON lines for programs."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """One figure of one engine: the median of its runs. `target`: what edged must reach, as text; "" for none."""

    bench: str
    model: str
    engine: str
    unit: str
    runs: tuple[float, ...]
    target: str = ""
    more: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.runs)


class Report:
    """Prints each result as it comes, with edged's ratio to the peer where both were measured."""

    def __init__(self, jsonl: Path | None) -> None:
        self.jsonl = jsonl
        self.results: list[Result] = []
        print(f"{'bench':<14} {'model':<24} {'engine':<10} {'median':>9} {'min':>9} {'max':>9} {'unit':<6} edged/peer")

    def compare(self, bench: str, model: str, unit: str, runs: dict[str, list[float]], target: str = "") -> None:
        """Add the peer's result, then edged's. runs: by engine."""
        for engine in sorted(runs, key=lambda engine: engine == "edged"):
            self.add(Result(bench, model, engine, unit, tuple(runs[engine]), target if engine == "edged" else ""))

    def add(self, result: Result) -> None:
        ratio = self._ratio(result)
        self.results.append(result)
        shown = f"{ratio:.2f}x" if ratio else ""
        goal = f" (target {result.target})" if result.target else ""
        extra = "".join(f"  {name} {value:.1f}" for name, value in result.more.items())
        spread = f"{result.median:>9.1f} {min(result.runs):>9.1f} {max(result.runs):>9.1f} {result.unit:<6}"
        print(f"{result.bench:<14} {result.model:<24} {result.engine:<10} {spread} {shown}{goal}{extra}", flush=True)
        if self.jsonl is not None:
            row = {**asdict(result), "median": result.median, "ratio": ratio}
            with self.jsonl.open("a") as out:
                out.write(json.dumps(row) + "\n")

    def _ratio(self, result: Result) -> float | None:
        """edged's median over the peer's, when edged's result comes after the peer's."""
        for other in self.results:
            same = (other.bench, other.model) == (result.bench, result.model)
            if same and result.engine == "edged" and other.engine != "edged" and other.median:
                return result.median / other.median
        return None
