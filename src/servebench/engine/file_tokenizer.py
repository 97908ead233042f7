"""Counts tokens with a model's `tokenizer.json` in a process of its own, with limits of memory and time.

    python -m servebench.engine.file_tokenizer FILE

The package `tokenizers` is Rust code that aborts, panics or never ends on some files. The process answers each line of standard
input, a list of texts in JSON, with a line: their numbers of tokens, or the reason why there are none. Its first line says
whether the file could be read.
"""

import json
import os
import resource
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from servebench.util.bounded_file import read_bytes
from servebench.util.children import python_environment
from servebench.util.errors import EngineError
from servebench.util.signals import end_by_closing, leave_stopping_to_the_parent

FILE_BYTES_MAX = 256 << 20
"""The largest known ones have 35 MB."""
MEMORY_BYTES_MAX = 8 << 30
BATCH_CHARACTERS = 4 << 20
TIME_MIN_S, CHARACTERS_PER_S = 120.0, 20_000
"""What a batch may take: tokenizers count a hundred times as fast on a machine that has nothing else to do."""
REASON_MAX = 300
END_TIMEOUT_S = 1.0
ORPHAN_CHECK_S = 1.0
PARALLEL = 8
"""Counts that are made at once."""


class ExactTokenizer:
    """Truncate by bisection over characters: token counts grow with the text, except for a token or two at the cut."""

    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text."""
        raise NotImplementedError

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix of at most this many tokens, with few counts."""
        if self.count([text])[0] <= tokens:
            return text
        low, high = 0, len(text)
        while high - low > 1:
            step = max(1, (high - low) // PARALLEL)
            cuts = list(range(low + step, high, step))
            counts = self.count([text[:cut] for cut in cuts])
            fitting = [cut for cut, count in zip(cuts, counts, strict=True) if count <= tokens]
            low = max(fitting, default=low)
            high = min((cut for cut in cuts if cut > low), default=high)
        return text[:low]


class FileTokenizer(ExactTokenizer):
    """The parent's end. `count` may be called by several threads."""

    def __init__(self, path: Path) -> None:
        """Start the process, which reads the file. Raises EngineError if it is not a tokenizer."""
        self.name = str(path)
        self._lock = threading.Lock()
        command = [sys.executable, "-P", "-m", __name__, str(path.absolute())]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try:
            self._process = subprocess.Popen(command, env=python_environment(), **pipes)
        except OSError as error:
            raise EngineError(f"no process to read {path} with: {error}") from error
        # nothing signals the last count, so the process ends with the object
        weakref.finalize(self, end_by_closing, self._process, END_TIMEOUT_S)
        self._ask(b"", TIME_MIN_S, "cannot read")

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, without special tokens. Raises EngineError."""
        counts: list[int] = []
        for batch in _batches(texts):
            limit_s = TIME_MIN_S + sum(map(len, batch)) / CHARACTERS_PER_S
            counts += self._ask(json.dumps(batch).encode() + b"\n", limit_s, "cannot count tokens with")
        return counts

    def _ask(self, line: bytes, limit_s: float, failed: str) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(limit_s, process.kill)
        late.daemon = True
        with self._lock:
            began = time.monotonic()
            late.start()
            try:
                process.stdin.write(line)
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
            except (OSError, ValueError):
                # aborted by the package, or killed for its memory or its time
                waited_s = time.monotonic() - began
                reason = f"no answer within {limit_s:.0f} s" if waited_s >= limit_s else "the package crashed"
                answer = {"error": reason}
            finally:
                late.cancel()
        if "error" in answer:
            raise EngineError(
                f"the package tokenizers {failed} {self.name}: {answer['error']}; set model.tokenizer to another file"
            )
        return answer["counts"]


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    left = BATCH_CHARACTERS
    for text in texts:
        if batch and len(text) > left:
            yield batch
            batch, left = [], BATCH_CHARACTERS
        batch.append(text)
        left -= len(text)
    if batch:
        yield batch


def main(arguments: Sequence[str]) -> None:
    """Read the file, then count until standard input ends."""
    leave_stopping_to_the_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    threading.Thread(target=_leave_with_the_parent, args=(os.getppid(),), daemon=True).start()
    reader: list[Any] = []
    _answer(lambda: reader.append(_read(Path(arguments[0]))))
    for line in sys.stdin.buffer:
        _answer(partial(_count, reader[0], json.loads(line)))


def _read(path: Path) -> Any:
    from tokenizers import Tokenizer

    reader = Tokenizer.from_buffer(read_bytes(path, FILE_BYTES_MAX))
    # those of a file are for training; they would change the counts
    reader.no_truncation()
    reader.no_padding()
    return reader


def _count(reader: Any, texts: Sequence[str]) -> list[int]:
    return [len(one.ids) for one in reader.encode_batch(texts, add_special_tokens=False)]


def _answer(count: Callable[[], Any]) -> None:
    try:
        answer: dict[str, Any] = {"counts": count()}
    except BaseException as error:  # noqa: BLE001 - a panic of the package is no Exception
        answer = {"error": " ".join(str(error).split())[:REASON_MAX] or type(error).__name__}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _leave_with_the_parent(parent: int) -> None:
    """End this process when its parent is gone: the end of standard input is not seen during a count."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
