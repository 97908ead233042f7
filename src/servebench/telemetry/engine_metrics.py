"""Read the engine's own metrics: Prometheus text, or TensorRT-LLM's JSON list of iterations."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import httpx
import orjson

from servebench.contracts.telemetry import COMBINE, Reading, TelemetrySource
from servebench.util.bounded_http import client

TIMEOUT_S = 3.0
"""TensorRT-LLM's endpoint may take two seconds; a sample that takes longer is lost."""

BYTES_MAX = 8_000_000
"""More than any engine's metrics. A larger response is dropped, so that a broken server cannot fill the memory."""

LINE_CHARACTERS_MAX = 1 << 14
"""The parser takes quadratic time for the labels of a line."""


class EngineMetricsSource(TelemetrySource):
    """`GET` of the engine's `metrics_path`."""

    name = "engine"
    _http: httpx.Client | None = None

    def open(self) -> str | None:
        """Connect and check that there are metrics."""
        path, running = self.subject.engine.metrics_path, self.subject.running
        if path is None:
            return f"{self.subject.engine.name} has no metrics endpoint"
        self._http = client(running.headers, verify_tls=running.verify_tls, timeout_s=TIMEOUT_S, bytes_max=BYTES_MAX)
        try:
            answer = self._http.get(f"{running.root_url}{path}")
            if answer.status_code != httpx.codes.OK:
                return f"{path} returns {answer.status_code}"
            if not any(True for _ in parse_series(answer.content)):
                return f"{path} returns no metrics"
        except (httpx.HTTPError, ValueError) as error:
            return f"{path} cannot be read: {error}"
        return None

    def sample(self) -> bytes | None:
        """Return the response body as received."""
        assert self._http is not None
        answer = self._http.get(f"{self.subject.running.root_url}{self.subject.engine.metrics_path}")
        return answer.content if answer.status_code == httpx.codes.OK else None

    def readings(self, t_ns: int, sample: bytes) -> Sequence[Reading]:
        """Return the readings under the common names, then every series under the engine's name, without histogram buckets."""
        all_series = list(parse_series(sample))
        raw = [
            Reading(t_ns=t_ns, source=self.name, name=None, raw_name=name, labels=labels, value=value)
            for name, labels, value in all_series
            if not name.endswith("_bucket")
        ]
        named = [
            Reading(t_ns=t_ns, source=self.name, name=name, raw_name=raw_name, labels="", value=value)
            for name, (raw_name, value) in translate_names(all_series, self.subject.engine.metrics).items()
        ]
        return named + raw

    def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            self._http.close()


def translate_names(
    all_series: Sequence[tuple[str, str, float]], names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, float]]:
    """Return {common name: (the engine's name, value)}, with the series of one name combined. A name may be a sum of names (`a +
    b`), which needs all of them. The first available name wins."""
    values: dict[str, list[float]] = {}
    for name, _, value in all_series:
        values.setdefault(name, []).append(value)
    result: dict[str, tuple[str, float]] = {}
    for common, candidates in names.items():
        combine = max if COMBINE.get(common) == "max" else sum
        for candidate in candidates:
            parts = candidate.split(" + ")
            if all(part in values for part in parts):
                result[common] = (candidate, float(sum(combine(values[part]) for part in parts)))
                break
    return result


def parse_series(text: bytes) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels (`a="x",b="y"`, sorted) and value of each series. Raises ValueError for any other format."""
    start = text.lstrip()[:1]
    if start in (b"[", b"{"):
        yield from _json_series(orjson.loads(text))
    else:
        yield from _prometheus_series(text.decode("utf-8", errors="replace"))


def _prometheus_series(text: str) -> Iterator[tuple[str, str, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    if (longest := max(map(len, text.split("\n")))) > LINE_CHARACTERS_MAX:
        raise ValueError(f"a line has {longest} characters, and the limit is {LINE_CHARACTERS_MAX}")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if isfinite(sample.value):
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                yield sample.name, labels, float(sample.value)


def _json_series(document: object) -> Iterator[tuple[str, str, float]]:
    """Yield the numbers of the document by their path; of a list of iterations only the last one is current."""
    if isinstance(document, list):
        document = document[-1] if document else {}
    if not isinstance(document, dict):
        raise ValueError("metrics are neither Prometheus text nor a JSON object")
    yield from _flat("", document)


def _flat(prefix: str, document: Mapping[str, object]) -> Iterator[tuple[str, str, float]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", "", float(value)
