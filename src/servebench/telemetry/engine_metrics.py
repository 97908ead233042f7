"""The engine's own metrics: Prometheus text, or TensorRT-LLM's JSON list of iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import orjson

from servebench.contracts.telemetry import COMBINE, Reading, Subject, TelemetrySource
from servebench.util.bounded_http import client

TIMEOUT_S = 3.0
"""TensorRT-LLM's endpoint may take two seconds; a server that takes longer is too busy to be asked."""

BYTES_MAX = 8_000_000
"""More than any engine's metrics; of what is larger nothing is kept, so that a broken server cannot fill the memory."""


class EngineMetricsSource(TelemetrySource):
    """`GET` of the engine's `metrics_path`."""

    name = "engine"

    def __init__(self, subject: Subject) -> None:
        """Nothing is asked yet."""
        super().__init__(subject)
        self._http: httpx.Client | None = None

    def open(self) -> str | None:
        """Connect, and see that there are metrics."""
        path, running = self.subject.engine.metrics_path, self.subject.running
        if path is None:
            return f"{self.subject.engine.name} has no metrics endpoint"
        self._http = client(running.headers, verify_tls=running.verify_tls, timeout_s=TIMEOUT_S, bytes_max=BYTES_MAX)
        try:
            answer = self._http.get(f"{running.root_url}{path}")
            if answer.status_code != httpx.codes.OK:
                return f"{path} answers {answer.status_code}"
            if not any(True for _ in series(answer.content)):
                return f"{path} answers nothing that can be read"
        except (httpx.HTTPError, ValueError) as error:
            return f"{path} cannot be read: {error}"
        return None

    def sample(self) -> bytes | None:
        """The text as it came."""
        assert self._http is not None
        answer = self._http.get(f"{self.subject.running.root_url}{self.subject.engine.metrics_path}")
        if answer.status_code != httpx.codes.OK:
            return None
        return answer.content

    def readings(self, t_ns: int, sample: bytes) -> Sequence[Reading]:
        """The vocabulary's words first, then every series as the engine names it, buckets of histograms left out."""
        found = list(series(sample))
        raw = [
            Reading(t_ns=t_ns, source=self.name, name=None, raw_name=name, labels=labels, value=value)
            for name, labels, value in found
            if not name.endswith("_bucket")
        ]
        words = [
            Reading(t_ns=t_ns, source=self.name, name=word, raw_name=name, labels="", value=value)
            for word, (name, value) in translated(found, self.subject.engine.metrics).items()
        ]
        return words + raw

    def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            self._http.close()


def translated(
    found: Sequence[tuple[str, str, float]], names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, float]]:
    """Word of the vocabulary -> (the engine's name, value), series of one name combined.

    A name may be a sum of names (`a + b`); it counts when all of them are there. The first name that is there wins.
    """
    values: dict[str, list[float]] = {}
    for name, _, value in found:
        values.setdefault(name, []).append(value)
    result: dict[str, tuple[str, float]] = {}
    for word, candidates in names.items():
        combine = max if COMBINE.get(word) == "max" else sum
        for candidate in candidates:
            parts = candidate.split(" + ")
            if all(part in values for part in parts):
                result[word] = (candidate, float(sum(combine(values[part]) for part in parts)))
                break
    return result


def series(text: bytes) -> Iterator[tuple[str, str, float]]:
    """Name, labels (`a="x",b="y"`, sorted) and value of each series. Raises ValueError for what is neither form."""
    start = text.lstrip()[:1]
    if start in (b"[", b"{"):
        yield from _json_series(orjson.loads(text))
    else:
        yield from _prometheus_series(text.decode("utf-8", errors="replace"))


def _prometheus_series(text: str) -> Iterator[tuple[str, str, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.value == sample.value:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                yield sample.name, labels, float(sample.value)


def _json_series(document: Any) -> Iterator[tuple[str, str, float]]:
    """Numbers of the document by their path; of a list of iterations only the last tells how things stand."""
    if isinstance(document, list):
        document = document[-1] if document else {}
    if not isinstance(document, dict):
        raise ValueError("metrics are neither Prometheus text nor a JSON object")
    yield from _flat("", document)


def _flat(prefix: str, document: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", "", float(value)
