"""A language model judges the answers: by a rubric, or against the answers of another run. The judge is any OpenAI-compatible
endpoint; if it is down, slow or replies nonsense, the rows say so."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice
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
    access_problems,
    read_answers,
)
from servebench_graders.verdicts import absolute_grade, pairwise_grade

RUBRIC = (
    "Is the answer correct, does it do what was asked, and is it clear? A wrong fact or a task not done costs most."
)
REASON_MAX = 120
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

    @property
    def trust(self) -> bool | str:
        """Whom to trust, as the clients take it."""
        return self.verify_tls and (self.ca_file or True)


@dataclass(frozen=True, kw_only=True)
class JudgeSettings(QualitySettings):
    """The settings of all scorers and those of the judge."""

    judge: JudgeEndpoint = field(default_factory=JudgeEndpoint)


@cache
def _prompt_template(name: str) -> str:
    """Return a prompt to the judge with places for `str.format`."""
    return (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


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
        try:
            if judge.reference is not None and not self._reference(judge.reference):
                faults.append(
                    f"quality.judge.reference={judge.reference} has no judged answers; set it to a run of quality=judge"
                )
            self.own_items(1)
        except ConfigError as error:
            faults += error.faults
        return faults + access_problems("quality.judge", judge.api_key_env, judge.trust)

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """See Scorer.evaluate. Errors of the judge are stored in rows; only errors of the data are raised."""
        items, judge = self.own_items(count), self._judge
        answers = self.ask(items, endpoint, "tasks", concurrency)
        others = self._reference(judge.reference) if judge.reference is not None else {}
        calls = [
            self._calls(item, answer, others) if answer.error is None else []
            for item, answer in zip(items, answers, strict=True)
        ]
        replies = iter(self._replies(list(chain(*calls)), endpoint))
        return [
            Judged(item=item, answer=answer, grade=self._graded(answer, list(islice(replies, len(own)))))
            for item, answer, own in zip(items, answers, calls, strict=True)
        ]

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade: one answer by the rubric."""
        if answer.error is not None:
            return Grade(correct=None, extracted=None)
        return self._graded(answer, self._replies(self._calls(item, answer, {}), None))

    def _replies(self, calls: Sequence[Item], endpoint: Endpoint | None) -> list[ItemAnswer]:
        """Return the judge's replies; those in the endpoint's memory are reused, unless they failed."""
        judge = self._judge
        key = os.environ.get(judge.api_key_env or "")
        target = Endpoint(
            base_url=(judge.base_url or "").rstrip("/"),
            model=judge.model or "",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            verify_tls=judge.trust,
            memory=endpoint.memory if endpoint is not None else None,
            watch=endpoint.watch if endpoint is not None else None,
        )
        options = {"timeout_s": judge.timeout_s, "api": "chat", "give_up_after": judge.give_up_after}
        return self.ask(calls, target, f"verdicts by {judge.model}", judge.concurrency, **options)

    def _reference(self, folder: str) -> dict[tuple[str, str], str]:
        """Return the answers of another run by id and prompt: different prompts of the same id are not compared."""
        try:
            rows = read_answers(Path(folder).expanduser())
        except ConfigError as error:
            raise ConfigError([f"quality.judge.reference: {fault}" for fault in error.faults]) from error
        return {
            (row["item_id"], row["prompt"]): row["answer"]
            for row in rows
            if row["benchmark"] == self.name and row["outcome"] == "ok" and row.get("error") is None
        }

    def _calls(self, item: Item, answer: ItemAnswer, others: Mapping[tuple[str, str], str]) -> list[Item]:
        """Return the two questions to the judge about an answer; none if the reference has no answer to the same task."""
        judge = self._judge
        if judge.reference is None:
            template = _prompt_template("judge_absolute")
            prompts = [
                template.format(rubric=judge.rubric, task=item.prompt, answer=answer.text, scale=judge.scale)
            ] * 2
        else:
            other = others.get((item.item_id, item.prompt))
            if other is None:
                return []
            pairs = ((answer.text, other), (other, answer.text))
            template = _prompt_template("judge_pairwise")
            prompts = [template.format(rubric=judge.rubric, task=item.prompt, first=a, second=b) for a, b in pairs]
        verdict = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": self._verdict()}}
        return [
            Item(
                item_id=f"{order} {item.item_id}",
                prompt=prompt,
                # another judge is asked again
                expected=f"{judge.base_url} {judge.model}",
                max_tokens=judge.max_tokens,
                body={"response_format": verdict} if judge.enforce_schema else {},
            )
            for order, prompt in enumerate(prompts)
        ]

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

    def _graded(self, answer: ItemAnswer, replies: Sequence[ItemAnswer]) -> Grade:
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
