"""Calls of a function in another sandbox: only plain values pass, as lines of JSON. `sandbox` runs this file inside both.

A verdict and the code that it is about never share an interpreter, so the code cannot reach the verdict.
"""

import builtins
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

GONE = 98
"""The exit status of a caller whose function is gone, without an answer."""
LINE_BYTES_MAX = 32 << 20
TEXT_MAX = 200
sys.set_int_max_str_digits(0)


def pack(value: Any) -> Any:
    """Return a value as JSON can hold it, with the kinds that JSON lacks as `{kind: content}`. Raises TypeError for objects."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    kind = next((kind for kind in (tuple, frozenset, set) if isinstance(value, kind)), None)
    if kind is None and not isinstance(value, Iterable):
        raise TypeError(f"a value of type {type(value).__name__} cannot be passed between sandboxes")
    return {kind.__name__ if kind else "iterator": [pack(item) for item in value]}


def unpack(value: Any) -> Any:
    """Return the value of `pack`. Raises ValueError for anything else."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in content}
    if kind == "bytes":
        return bytes.fromhex(content)
    makers: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter}
    return complex(*content) if kind == "complex" else makers[kind](unpack(content))


def serve(function: Callable[..., Any], calls: int, answers: int) -> None:
    """Call the function for each line of a pipe, and write what it returns, raises and changes in its arguments to another."""
    with os.fdopen(calls, "rb") as reading, os.fdopen(answers, "wb", buffering=0) as writing:
        for line in reading:
            before = json.loads(line)
            arguments, named = unpack(before)
            reply: dict[str, Any] = {}
            try:
                reply["value"] = pack(function(*arguments, **named))
                if (after := pack(arguments)) != before[0]:
                    reply["arguments"] = after
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the function raises is its answer
                reply["raised"] = [type(error).__name__, str(error)[:TEXT_MAX]]
            writing.write(json.dumps(reply).encode() + b"\n")


def remote(calls: int, answers: int) -> Callable[..., Any]:
    """Return a function that calls the one that is served at the other ends of the pipes.

    It changes lists, dictionaries and sets that it gets as that does, and ends this process if that is gone.
    """
    reading, writing = os.fdopen(answers, "rb"), os.fdopen(calls, "wb", buffering=0)

    def call(*arguments: Any, **named: Any) -> Any:
        try:
            writing.write(json.dumps([pack(list(arguments)), pack(named)]).encode() + b"\n")
            line = reading.readline(LINE_BYTES_MAX)
        except BrokenPipeError:
            line = b""
        if not line:
            os._exit(GONE)
        reply = json.loads(line)
        if "raised" in reply:
            raise _error(*map(str, reply["raised"]))
        for old, new in zip(arguments, unpack(reply.get("arguments", [])), strict=False):
            if isinstance(old, list):
                old[:] = new
            elif isinstance(old, (dict, set)):
                old.clear()
                old.update(new)
        return unpack(reply["value"])

    return call


def _error(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {text}")
