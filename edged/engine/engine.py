"""The engine: takes requests from any thread, computes them step by step in one, and posts what comes of it.

A step: let go what was cancelled, ask the scheduler for rows, run the op table over them, choose tokens, post events.
A step that was stopped half way is computed anew: it writes the same numbers to the same places.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter

from edged.engine.batch import Rows
from edged.engine.draft import Drafter
from edged.engine.machine import GENERATE
from edged.engine.request import (
    Done,
    EngineInfo,
    Event,
    Failed,
    FinishReason,
    PromptScores,
    Request,
    Sink,
    TopLogprobs,
    Usage,
)  # fmt: skip
from edged.engine.runner import Runner
from edged.engine.sampling.sampler import Sampler, check
from edged.engine.scheduler import Scheduler, Sequence, Step
from edged.errors import BadRequest, Busy, ContextFull, EdgedError, NotReady
from edged.gguf import memory
from edged.kernels.table import sampling_scratch_bytes

Post = Callable[[list[tuple[Sink, Event]]], None]

STEP_SECONDS = 0.25  # longest step aimed at: others wait that long for their next token
FIRST_ROWS = 64  # prompt rows of the first step, whose speed is not known yet
LEAST_ROWS = 8


class Pace:
    """How many prompt rows a step takes, measured."""

    def __init__(self, most: int, fixed: bool = False) -> None:
        """fixed: always `most`."""
        self.rows = most if fixed else min(FIRST_ROWS, most)
        self._most = most
        self._fixed = fixed

    def measure(self, n_rows: int, seconds: float) -> None:
        """A step with n_rows prompt rows took this long. Steps too short to tell are left out."""
        if not self._fixed and n_rows >= min(self.rows, FIRST_ROWS):
            rows = STEP_SECONDS / seconds * n_rows
            self.rows = max(LEAST_ROWS, min(self._most, int(self.rows + rows) // 2 // LEAST_ROWS * LEAST_ROWS))


class Job(Sequence):
    """A request in the engine; also its Handle."""

    def __init__(self, number: int, request: Request, sink: Sink, limit: int, interrupt: Callable[[], None]) -> None:
        """limit: most tokens to generate."""
        super().__init__(number, request.prompt, scored=request.prompt_logprobs, last=limit > 0,
                         deterministic=request.deterministic)
        self.request = request
        self.sink = sink
        self.limit = limit
        self.sampler: Sampler | None = None
        self.scores: list[float] = []
        self.tops: list[TopLogprobs] = []
        self.cancelled = False
        self.drafter = Drafter() if request.speculate else None
        self.submitted = perf_counter()
        self.started = 0.0
        self.first_token = 0.0
        self._interrupt = interrupt

    def cancel(self) -> None:
        self.cancelled = True
        self._interrupt()

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    def draft(self, most: int) -> list[int]:
        if self.drafter is None:
            return []
        return self.drafter.draft(self.tokens, min(most, self.limit - self.n_generated - 1))

    def usage(self) -> Usage:
        now = perf_counter()
        started = self.started or now
        first = self.first_token or now
        return Usage(self.n_prompt, self.n_generated, self.n_cached, queue_s=started - self.submitted,
                     prefill_s=first - started, decode_s=now - first,
                     drafted_tokens=self.drafter.n_drafted if self.drafter else 0,
                     accepted_tokens=self.drafter.n_accepted if self.drafter else 0)  # fmt: skip


class Engine:
    """See `EngineLike`. Made by `edged.engine.open`."""

    rank = GENERATE

    def __init__(self, info: EngineInfo, runner: Runner, pace: Pace, queue: int, speculate: bool,
                 post: Post | None) -> None:
        """queue: requests that may wait; speculate: for requests that leave it open."""
        self.info = info
        self._runner = runner
        self._pace = pace
        self._scheduler: Scheduler[Job] = Scheduler(runner.cache, runner.sizes.max_decode)
        self._speculate = speculate
        self._most = info.n_seqs + queue
        self._post = post or _post_directly
        self._stride = runner.logits.strides[0]
        self._scratch = memory.reserve(sampling_scratch_bytes(*[info.n_vocab] * 3), "sampling")
        self._changed = runner.machine.changed  # guards what follows
        self._arrived: list[Job] = []
        self._jobs: dict[int, Job] = {}
        self._closed = False
        self._events: list[tuple[Sink, Event]] = []  # of the step in progress
        self._computing: tuple[Job, ...] = ()  # the requests in the step in progress
        self._n_requests = 0
        self._counts = dict.fromkeys(("cancelled_total", "failed_total", "prompt_tokens_total", "tokens_total",
                                      "steps_total", "drafted_tokens_total", "accepted_tokens_total"), 0)  # fmt: skip
        runner.machine.add(self)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def submit(self, request: Request, sink: Sink) -> Job:
        """Queue a request. Raises ContextFull, BadRequest, Busy or NotReady at once; never blocks.

        max_tokens 0 generates nothing; more than the context has room for is cut down to that.
        """
        room = self._check(request)
        if request.speculate is None:
            request = request._replace(speculate=self._speculate)
        limit = room if request.max_tokens is None else min(room, request.max_tokens)
        with self._changed:
            if self._closed:
                raise NotReady("the engine is closed")
            if len(self._jobs) >= self._most:
                raise Busy(f"{len(self._jobs)} requests are running or waiting, as many as are allowed",
                           hint="try again later, or raise engine.queue")
            job = Job(self._n_requests, request, sink, limit, self._interrupt)
            self._n_requests += 1
            self._jobs[job.number] = job
            self._arrived.append(job)
            self._changed.notify_all()
        return job

    def stats(self) -> dict[str, float]:
        """Counters (`_total`) and gauges. `progress` moves whenever a step does."""
        scheduler, cache = self._scheduler, self._runner.cache
        running = len(scheduler.running)
        return {
            "requests_total": self._n_requests,
            **self._counts,
            "paused_total": scheduler.n_paused,
            "prefix_hits_total": scheduler.n_hits,
            "prefix_tokens_total": scheduler.n_cached,
            "running": running,
            "waiting": len(self._jobs) - running,
            "progress": self._runner.program.progress,
            "kv_blocks_used": cache.n_used,
            "kv_blocks_kept": cache.n_kept,
            "kv_blocks": cache.n_blocks,
            "kv_bytes_used": cache.used_bytes,
        }

    def close(self) -> None:
        """Cancel everything. Idempotent."""
        self._closed = True
        if not self._runner.machine.waited_for:
            self.step()
        self._runner.close([self], lambda: not self._jobs)

    # -- in the engine's thread ----------------------------------------------------------------------------------------

    def ready(self) -> bool:
        return bool(self._jobs)

    def step(self, brief: bool = False) -> bool:
        """Compute one step; False if there was nothing to do. To be called only if the machine has no thread."""
        try:
            self._take_in(self._events)
            step = self._scheduler.next_step(self._pace.rows)
            if step.decode or step.prompt:
                began = perf_counter()
                for job, _ in step.prompt:
                    job.started = job.started or began
                self._computing = tuple(job for job, _ in (*step.decode, *step.prompt))
                completed = self._runner.step([rows for _, rows in step.decode], [rows for _, rows in step.prompt])
                self._computing = ()
                if completed:
                    self._finish_step(step, perf_counter() - began, self._events)
            worked = bool(step.decode or step.prompt or self._events)
        finally:  # what a failing step has ended is told all the same
            events, self._events = self._events, []
            if events:
                self._post(events)
        return worked

    def rest(self) -> None:
        self._runner.rest()
        memory.discard(self._scratch)

    def _interrupt(self) -> None:
        """End the step in progress if nobody wants it any more. One client that goes away stops no other."""
        computing = self._computing
        if computing and all(job.cancelled for job in computing):
            self._runner.program.stop()

    def fail(self, error: Exception) -> None:
        """A fault of edged's own: nobody may be left waiting."""
        failed = Failed(EdgedError(f"a step of the engine failed: {error!r}"))
        events: list[tuple[Sink, Event]] = []
        self._computing = ()
        with self._changed:
            arrived, self._arrived = self._arrived, []
            jobs = list(self._jobs.values())
        for job in arrived:  # the scheduler lets go only what it knows
            self._scheduler.add(job)
        for job in jobs:
            self._counts["failed_total"] += 1
            self._leave(job)
            events.append((job.sink, failed))
        with contextlib.suppress(Exception):  # it may be `post` that failed
            self._post(events)

    def _take_in(self, events: list[tuple[Sink, Event]]) -> None:
        """Pass on what has arrived, let go what was cancelled."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
            cancelled = [job for job in self._jobs.values() if job.cancelled or self._closed]
        for job in arrived:
            self._scheduler.add(job)
        for job in cancelled:
            self._counts["cancelled_total"] += 1
            self._end(job, "cancelled", events)
        for job in arrived:
            if job.number in self._jobs:
                job.sampler = Sampler(self._runner.machine.library, job.request, self.info.n_vocab, self.info.n_ctx,
                                      self._scratch.__array_interface__["data"][0])  # fmt: skip
                if job.limit == 0 and not (job.request.prompt_logprobs and job.n_pending):
                    self._end_prompt_only(job, events)

    def _finish_step(self, step: Step[Job], seconds: float, events: list[tuple[Sink, Event]]) -> None:
        """The step has been computed: use its logits, which lie in the order of its rows."""
        self._scheduler.advance(step)
        self._counts["steps_total"] += 1
        if step.prompt:
            n_prompt = sum(len(rows.tokens) for _, rows in step.prompt)
            self._counts["prompt_tokens_total"] += n_prompt
            self._pace.measure(n_prompt, seconds)
        logits = self._runner.logits.__array_interface__["data"][0]
        for job, rows in (*step.decode, *step.prompt):
            if rows.n_logits:
                try:
                    self._use_logits(job, rows, logits, events)
                except EdgedError as error:  # one request's numbers are no other's business
                    self._counts["failed_total"] += 1
                    self._leave(job)
                    events.append((job.sink, Failed(error)))
                logits += rows.n_logits * self._stride

    def _use_logits(self, job: Job, rows: Rows, logits: int, events: list[tuple[Sink, Event]]) -> None:
        """Score prompt tokens and choose the next one. logits: address of the first of rows.n_logits rows."""
        assert job.sampler is not None
        end = rows.start + len(rows.tokens)
        n_right = 0
        if job.drafter:
            job.drafter.n_drafted += rows.n_draft
            self._counts["drafted_tokens_total"] += rows.n_draft
        for position in range(end - rows.n_logits, end):
            if position + 1 < len(job.tokens):
                logprob, top = job.sampler.score(logits, job.tokens[position + 1])
                job.scores.append(logprob)
                job.tops.append(top)
                job.n_scored = len(job.scores)
            else:
                self._choose(job, logits, events)
                if position + 1 == end or not self._accept(job, rows.tokens[position + 1 - rows.start]):
                    break
                n_right += 1
            logits += self._stride
        if job.drafter and rows.n_draft:
            job.drafter.learn(len(job.tokens), rows.n_draft, n_right)
        if job.limit == 0 and not job.n_pending:
            self._end_prompt_only(job, events)

    def _accept(self, job: Job, guess: int) -> bool:
        """Whether the token just chosen is the one that was computed next; then it is fed already."""
        if job.number not in self._jobs or job.tokens[-1] != guess:
            return False
        assert job.drafter is not None
        job.n_fed += 1
        job.drafter.n_accepted += 1
        self._counts["accepted_tokens_total"] += 1
        return True

    def _choose(self, job: Job, logits: int, events: list[tuple[Sink, Event]]) -> None:
        assert job.sampler is not None
        token = job.sampler.next(logits, job.request.stop_ids)
        if not job.n_generated:
            job.first_token = perf_counter()
            self._send_scores(job, events)
        job.tokens.append(token.id)
        self._counts["tokens_total"] += 1
        events.append((job.sink, token))
        if token.stop:
            self._end(job, "stop", events)
        elif job.n_generated == job.limit:
            self._end(job, "length", events)

    def _end_prompt_only(self, job: Job, events: list[tuple[Sink, Event]]) -> None:
        """Nothing was to be generated."""
        self._send_scores(job, events)
        self._end(job, "length", events)

    def _send_scores(self, job: Job, events: list[tuple[Sink, Event]]) -> None:
        if job.request.prompt_logprobs:
            events.append((job.sink, PromptScores(tuple(job.scores), tuple(job.tops))))

    def _end(self, job: Job, reason: FinishReason, events: list[tuple[Sink, Event]]) -> None:
        self._leave(job)
        events.append((job.sink, Done(reason, job.usage())))

    def _leave(self, job: Job) -> None:
        self._scheduler.remove(job)
        with self._changed:
            del self._jobs[job.number]
            if self._closed:
                self._changed.notify_all()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> int:
        """Tokens that there is room to generate. Raises ContextFull or BadRequest."""
        n, info = len(request.prompt), self.info
        if not n:
            raise BadRequest("the prompt has no tokens", param="prompt")
        if n >= info.n_ctx:
            raise ContextFull(f"the prompt has {n} tokens, the context holds {info.n_ctx} with at least one of the "
                              "answer", hint="shorten the prompt or raise engine.context")  # fmt: skip
        if min(request.prompt) < 0 or max(request.prompt) >= info.n_vocab:
            raise BadRequest(f"the prompt has tokens outside 0..{info.n_vocab - 1}", param="prompt")
        for name in ("max_tokens", "top_logprobs"):
            value = getattr(request, name)
            if value is not None and value < 0:
                raise BadRequest(f"{name} is {value}, expected 0 or more", param=name)
        check(request.sampling, info.n_vocab)
        return info.n_ctx - n


def _post_directly(events: list[tuple[Sink, Event]]) -> None:
    for sink, event in events:
        sink(event)
