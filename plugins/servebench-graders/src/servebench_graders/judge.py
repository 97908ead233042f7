"""A language model judges the answers: by a rubric, or against the answers of another run. The judge is any OpenAI-compatible
endpoint; if it is down, slow or replies nonsense, the rows say so."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from servebench.plugin import (
    ConfigError,
    Endpoint,
    Grade,
    Item,
    ItemAnswer,
    Judged,
    OpenPromptScorer,
    PositiveInt,
    QualitySettings,
    Seconds,
    StrictSettings,
    read_answers,
    tls_context,
)
from servebench_graders.judge_client import Call, Reply, call_all
from servebench_graders.verdicts import absolute_grade, pairwise_grade

RUBRIC = (
    "Is the answer correct, does it do what was asked, and is it clear? A wrong fact or a task not done costs most."
)
REASON_MAX = 120
DIGEST_LENGTH = 16
PROMPTS = Path(__file__).parent / "prompts"


@dataclass(frozen=True, kw_only=True)
class JudgeEndpoint(StrictSettings):
    """The judge. `base_url` ends in `/v1`; `api_key_env` is the variable with its key. With `reference`, the folder of a run
    that was judged on the same prompts, answers are compared with that run's; else each gets a score from 1 to `scale`.

    `timeout_s` limits one reply. `enforce_schema` sends the schema of a verdict, which helps small judges. After
    `give_up_after` failures in a row the judge is not called again.
    """

    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    reference: str | None = None
    rubric: str = RUBRIC
    scale: Annotated[int, Ge(2)] = 5
    concurrency: PositiveInt = 4
    timeout_s: Seconds = 60.0
    give_up_after: PositiveInt = 5
    max_tokens: PositiveInt = 200
    ca_file: str | None = None
    verify_tls: bool = True
    enforce_schema: bool = False
    input_usd_per_mtok: Annotated[float, Ge(0)] | None = None
    output_usd_per_mtok: Annotated[float, Ge(0)] | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeSettings(QualitySettings):
    """The settings of all scorers and those of the judge."""

    judge: JudgeEndpoint = field(default_factory=JudgeEndpoint)


@cache
def _prompt_template(name: str) -> str:
    """Return a prompt to the judge with places for `str.format`."""
    return (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def _as_answer(item_id: str, reply: Reply) -> ItemAnswer:
    """Return a reply in the form in which the memory stores it."""
    return ItemAnswer(
        item_id=item_id,
        text=reply.text,
        error=reply.error,
        prompt_tokens=reply.input_tokens,
        output_tokens=reply.output_tokens,
    )


class JudgeScorer(OpenPromptScorer):
    """Open tasks, answered by the engine and judged by another model. Each answer is judged twice, against a reference in
    both orders or by the same rubric; how often both verdicts agree is stored, with tokens and cost.

    The score is 0 to 1. Nothing is right or wrong. Rows of your own file need `prompt` and may have `id`.
    """

    name = "judge"
    method = "a language model's verdict, twice an answer"
    settings_type = JudgeSettings
    max_tokens = 300

    def __init__(self, settings: QualitySettings | None = None) -> None:
        super().__init__(settings)
        judge = self._judge
        against = "against a reference, places changed" if judge.reference else f"1 to {judge.scale} by a rubric, twice"
        self.method = f"judged by {judge.model}, {against}"  # type: ignore[misc]

    @property
    def _judge(self) -> JudgeEndpoint:
        return self.settings.judge if isinstance(self.settings, JudgeSettings) else JudgeEndpoint()

    def check(self) -> list[str]:
        """See Scorer.check. The judge is not called: it may start while the load runs."""
        judge = self._judge
        remedies = {
            "base_url": "set the judge's address, such as quality.judge.base_url=http://host:8000/v1",
            "model": "set the name of the judge's model",
        }
        faults = [
            f"quality.judge.{name} is not set; {remedy}"
            for name, remedy in remedies.items()
            if not getattr(judge, name)
        ]
        if judge.base_url and not re.match(r"https?://[^/\s]+", judge.base_url):
            faults.append(
                f"quality.judge.base_url={judge.base_url} is not a URL; it must begin with http:// or https://"
            )
        if judge.api_key_env and not os.environ.get(judge.api_key_env):
            faults.append(f"quality.judge.api_key_env={judge.api_key_env}: that variable is not set; export it")
        try:
            if judge.reference is not None and not self._reference(judge.reference):
                faults.append(
                    f"quality.judge.reference={judge.reference} has no judged answers; set it to a run of quality=judge"
                )
            self.own_items(1)
        except ConfigError as error:
            faults += error.faults
        try:
            tls_context(judge.ca_file or True)
        except ConfigError as error:
            faults += [f"quality.judge.{fault}" if judge.ca_file else fault for fault in error.faults]
        return faults

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """See Scorer.evaluate. Errors of the judge are stored in rows; only errors of the data are raised."""
        items, judge = self.own_items(count), self._judge
        answers = self.ask(items, endpoint, "tasks", concurrency)
        others = self._reference(judge.reference) if judge.reference is not None else {}
        calls = {
            (item.item_id, order): text
            for item, answer in zip(items, answers, strict=True)
            if answer.error is None
            for order, text in enumerate(self._prompts(item, answer, others))
        }
        replies = self._replies(calls, endpoint)
        judged = []
        for item, answer in zip(items, answers, strict=True):
            both = [replies[item.item_id, order] for order in (0, 1) if (item.item_id, order) in replies]
            judged.append(Judged(item=item, answer=answer, grade=self._graded(answer, both)))
        return judged

    def _replies(self, calls: Mapping[tuple[str, int], str], endpoint: Endpoint) -> dict[tuple[str, int], Reply]:
        """Return the judge's reply to each call; those in the endpoint's memory are reused, unless they failed."""
        memory, watch = endpoint.memory, endpoint.watch
        keys = {call: self._key(call, prompt) for call, prompt in calls.items()}
        known = {} if memory is None else {call: memory.known[key] for call, key in keys.items() if key in memory.known}
        left = [call for call in calls if call not in known]

        def keep(place: int, reply: Reply) -> None:
            if memory is not None:
                memory.add(keys[left[place]], _as_answer(left[place][0], reply))

        def report(done: int) -> None:
            if watch is not None:
                watch(f"judged by {self._judge.model}, {done}/{len(left)} verdicts")

        report(0)
        fresh = call_all([calls[call] for call in left], self._call(), on_reply=keep, watch=report)
        replies = {
            call: Reply(text=one.text, input_tokens=one.prompt_tokens, output_tokens=one.output_tokens)
            for call, one in known.items()
        }
        return replies | dict(zip(left, fresh, strict=True))

    def _key(self, call: tuple[str, int], prompt: str) -> str:
        """Return the memory's key of a call: the judge, the prompt, and the order of the two answers."""
        judge = self._judge
        parts = (judge.base_url, judge.model, judge.max_tokens, judge.enforce_schema, prompt)
        return f"verdict {call[1]} {call[0]} {hashlib.sha256(repr(parts).encode()).hexdigest()[:DIGEST_LENGTH]}"

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade: one answer by the rubric."""
        if answer.error is not None:
            return Grade(correct=None, extracted=None)
        return self._graded(answer, call_all(self._prompts(item, answer, {}), self._call()))

    def _reference(self, folder: str) -> dict[tuple[str, str], str]:
        """Return the answers of another run by id and prompt: different prompts of the same id are not compared."""
        try:
            rows = read_answers(Path(folder).expanduser())
        except ConfigError as error:
            raise ConfigError([f"quality.judge.reference: {fault}" for fault in error.faults]) from error
        return {
            (row["item_id"], row["prompt"]): row["answer"]
            for row in rows
            if row["benchmark"] == self.name and row["outcome"] == "ok"
        }

    def _prompts(self, item: Item, answer: ItemAnswer, others: Mapping[tuple[str, str], str]) -> list[str]:
        """Return the two prompts to the judge about an answer; none if the reference has no answer to the same task."""
        judge = self._judge
        if judge.reference is None:
            template = _prompt_template("judge_absolute")
            text = template.format(rubric=judge.rubric, task=item.prompt, answer=answer.text, scale=judge.scale)
            return [text, text]
        other = others.get((item.item_id, item.prompt))
        if other is None:
            return []
        pairs = ((answer.text, other), (other, answer.text))
        template = _prompt_template("judge_pairwise")
        return [template.format(rubric=judge.rubric, task=item.prompt, first=a, second=b) for a, b in pairs]

    def _verdict(self) -> dict[str, Any]:
        """Return the schema of a verdict. The reason comes first, so that the judge reasons before it decides."""
        judge = self._judge
        key, numbers = ("better", [0, 1, 2]) if judge.reference else ("score", list(range(1, judge.scale + 1)))
        reason = {"type": "string", "maxLength": REASON_MAX}
        return {
            "type": "object",
            "properties": {"reason": reason, key: {"type": "integer", "enum": numbers}},
            "required": ["reason", key],
            "additionalProperties": False,
        }

    def _call(self) -> Call:
        judge = self._judge
        alike = ("concurrency", "timeout_s", "give_up_after", "max_tokens", "ca_file", "verify_tls")
        return Call(
            base_url=(judge.base_url or "").rstrip("/"),
            model=judge.model or "",
            key=os.environ.get(judge.api_key_env) if judge.api_key_env else None,
            schema=self._verdict() if judge.enforce_schema else None,
            **{name: getattr(judge, name) for name in alike},
        )

    def _graded(self, answer: ItemAnswer, replies: Sequence[Reply]) -> Grade:
        judge = self._judge
        if answer.error is not None:
            return Grade(correct=None, extracted=None)
        if not replies:
            return Grade(correct=None, extracted=None, note="no verdict: the reference has no answer to this task")
        pairwise = judge.reference is not None
        grade = pairwise_grade(replies, answer.text) if pairwise else absolute_grade(replies, answer.text, judge.scale)
        detail = dict(grade.detail or {})
        prices = (judge.input_usd_per_mtok, judge.output_usd_per_mtok)
        if prices[0] is not None and prices[1] is not None:
            spent = detail["judge_input_tokens"] * prices[0] + detail["judge_output_tokens"] * prices[1]
            detail["judge_cost_usd"] = spent / 1e6
        return replace(grade, detail=detail)
