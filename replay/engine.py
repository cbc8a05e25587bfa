"""A pretended llama-server at work: requests read their prompts, then make tokens, and slow each other down.

All requests of one phase move at one pace, so the work done is one number per phase, and a request ends when that
number reaches its mark. Starting, ending and every change of pace cost the logarithm of the slots.
Counterpart: `world` tells it the time and asks what is next.
"""

from heapq import heappop, heappush

from replay.costs import ModelCosts

NEVER_US = 1 << 62
NOTHING_US = 1e-3
"""What a token takes where it takes nothing: work has to come to its end."""
_CLOSE_ENOUGH = 1e-6
"""Work is a float; a mark that is missed by less than this is reached."""


class Job:
    """One request in an engine. Weights are slots."""

    __slots__ = ("answer_tokens", "gone", "phase", "rid", "weight")

    def __init__(self, rid: int, answer_tokens: float, weight: int) -> None:
        self.rid = rid
        self.answer_tokens = answer_tokens
        self.weight = weight
        self.phase = 0
        """0: reads its prompt; 1: makes tokens."""
        self.gone = False


class Engine:
    """One replica."""

    __slots__ = (
        "_answer",
        "_done",
        "_fixed",
        "_marks",
        "_paces",
        "_prompt",
        "_since_us",
        "_weights",
        "elsewhere",
        "jobs",
        "version",
    )

    def __init__(self, costs: ModelCosts, now_us: int) -> None:
        self._prompt = costs.prefill
        self._answer = costs.decode
        # A prompt's fixed time is work as well: so many tokens more.
        self._fixed = costs.prefill.fixed_us / (costs.prefill.token_us or NOTHING_US)
        self._marks: tuple[list[tuple[float, int, Job]], list[tuple[float, int, Job]]] = ([], [])
        """Per phase: the work at which a job has done its own, as a heap."""
        self._done = [0.0, 0.0]
        self._weights = [0, 0]
        self._paces = [1.0, 1.0]
        """Microseconds per token."""
        self._since_us = now_us
        self.elsewhere = 0
        """Slots at work in other replicas, where that slows this one down."""
        self.jobs: dict[int, Job] = {}
        self.version = 0
        """Changes whenever `next_us` may have."""

    @property
    def busy(self) -> int:
        return self._weights[0] + self._weights[1]

    def start(self, now_us: int, rid: int, prompt_tokens: float, answer_tokens: float, weight: int) -> None:
        """Begin at once."""
        self._move(now_us)
        job = Job(rid, answer_tokens, weight)
        self.jobs[rid] = job
        heappush(self._marks[0], (self._done[0] + self._fixed + prompt_tokens, rid, job))
        self._weights[0] += weight
        self._change()

    def remove(self, now_us: int, rid: int) -> Job | None:
        """It works on this one no more."""
        job = self.jobs.pop(rid, None)
        if job is not None:
            self._move(now_us)
            job.gone = True
            self._weights[job.phase] -= job.weight
            self._change()
        return job

    def look(self, now_us: int) -> tuple[list[Job], list[Job]]:
        """What has happened by now: jobs that made their first token, and jobs that are done."""
        self._move(now_us)
        begun: list[Job] = []
        ended: list[Job] = []
        prompts, answers = self._marks
        while prompts and (prompts[0][2].gone or prompts[0][0] <= self._done[0] + _CLOSE_ENOUGH):
            _, rid, job = heappop(prompts)
            if job.gone:
                continue
            self._weights[0] -= job.weight
            self._weights[1] += job.weight
            job.phase = 1
            begun.append(job)
            # The first token comes with the end of the prompt.
            heappush(answers, (self._done[1] + max(0.0, job.answer_tokens - 1), rid, job))
        while answers and (answers[0][2].gone or answers[0][0] <= self._done[1] + _CLOSE_ENOUGH):
            _, rid, job = heappop(answers)
            if job.gone:
                continue
            self._weights[1] -= job.weight
            del self.jobs[rid]
            ended.append(job)
        if begun or ended:
            self._change()
        return begun, ended

    def next_us(self) -> int:
        """When to look again, if nothing changes until then."""
        next_us = NEVER_US
        for phase, marks in enumerate(self._marks):
            while marks and marks[0][2].gone:
                heappop(marks)
            if marks:
                ahead_us = (marks[0][0] - self._done[phase]) * self._paces[phase]
                next_us = min(next_us, self._since_us + max(0, -int(-ahead_us // 1)))
        return next_us

    def slow_down(self, now_us: int, elsewhere: int) -> None:
        """So many slots work in other replicas now."""
        if elsewhere != self.elsewhere:
            self._move(now_us)
            self.elsewhere = elsewhere
            self._change()

    def _move(self, now_us: int) -> None:
        passed_us = now_us - self._since_us
        if passed_us:
            self._since_us = now_us
            if self._weights[0]:
                self._done[0] += passed_us / self._paces[0]
            if self._weights[1]:
                self._done[1] += passed_us / self._paces[1]

    def _change(self) -> None:
        prompts, answers = self._weights
        costs = self._prompt
        self._paces[0] = (costs.token_us or NOTHING_US) * (
            1.0 + costs.same * max(0, prompts - 1) + costs.other * answers + costs.elsewhere * self.elsewhere
        )
        costs = self._answer
        self._paces[1] = (costs.token_us or NOTHING_US) * (
            1.0 + costs.same * max(0, answers - 1) + costs.other * prompts + costs.elsewhere * self.elsewhere
        )
        self.version += 1
