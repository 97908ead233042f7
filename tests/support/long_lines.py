"""Long texts of every shape that could make a reader slow, and how the time of a reader grows with them."""

import time

SHAPES = {
    "letters": ("", "a", ""),
    "dotted names": ("", "a.", ""),
    "flags in a name": ("", "-a.", ""),
    "long flags in a name": ("", "--api-key.", ""),
    "flags": ("", "--a ", ""),
    "secret flags": ("", "--api-key ", ""),
    "dashes": ("", "-", "x"),
    "equals": ("", "=", ""),
    "colons": ("", ":", ""),
    "assignments": ("", "a=", ""),
    "keys": ("", "key=", ""),
    "secrets": ("", "api_key=abcdefgh ", ""),
    "secrets without a space": ("", "api_key=", ""),
    "secrets in a query": ("http://h/?", "api_key=x&sig=y;", ""),
    "secrets of no value": ("", "api_key=null,", ""),
    "secrets redacted": ("", "api_key=[redacted]", ""),
    "secrets mapped": ("", "password: ", ""),
    "secrets as messages": ("", "API_KEY: API_KEY ", ""),
    "secret names joined": ("", "token_", "=x"),
    "names of many kinds": ("", "aB_key.C/d@+~", "=x"),
    "open quotes": ("", "api_key=\"'", ""),
    "quoted values": ("", "api_key='\"", ""),
    "escaped quotes": ("", 'api_key=\\"', ""),
    "double quotes": ("", '"', ""),
    "single quotes": ("", "'", ""),
    "backslashes": ('api_key="', "\\", ""),
    "spaces": ("api_key", " ", ""),
    "spaces after a flag": ("--api-key", " ", "\""),
    "spaces after a scheme": ("authorization: basic", " ", '"'),
    "schemes": ("", "Bearer ", ""),
    "headers": ("", "Authorization: Basic ", ""),
    "tabs": ("answer", "\t", "x"),
    "line feeds": ("", "\n", "x"),
    "indented lines": ("", "\n    ", "x"),
    "carriage returns": ("", "50%\r", ""),
    "braces": ("", "{", ""),
    "closed braces": ("", "{}", ""),
    "brackets": ("", "[", ""),
    "open brackets of values": ("", "api_key=[", ""),
    "nested JSON": ("", '{"a":', "1"),
    "JSON": ('{"a":[', '{"b":"c"},', "1]}"),
    "digits": ("", "1", "x"),
    "digits and commas": ("", "1,", "x"),
    "numbers": ("", "1.5e", ""),
    "marked numbers": ("", "#### ", ""),
    "base64": ("", "QUJD/+", "=="),
    "tokens of JSON": ("", "eyJhbGciOi-", ""),
    "tokens of JSON, dotted": ("", "eyJhbGciOi.", ""),
    "known keys": ("", "sk-aaaaaaaaaaaaaaaaaaaa ", ""),
    "beginnings of known keys": ("", "sk-", ""),
    "private keys": ("", "-----BEGIN PRIVATE KEY-----", ""),  # pragma: allowlist secret
    "URLs": ("", "http://", ""),
    "URLs with passwords": ("", "http://user:pass@host/ ", ""),  # pragma: allowlist secret
    "users without a host": ("http://", "a:b", ""),
    "at signs": ("http://", "a@", ""),
    "colours": ("", "\x1b[31m", ""),
    "escapes": ("", "\x1b", ""),
    "open escapes": ("\x1b[", "1;", "x"),
    "flags of regions": ("", "\U0001f3f4\U000e0067", ""),
    "joiners": ("", "\u200d", ""),
    "letters of others": ("", "\u0416\u00df", ""),
    "emoji": ("", "\U0001f600", ""),
    "replacements": ("", "\ufffd", ""),
    "nulls": ("", "\x00", ""),
    "fences": ("", "```", ""),
    "fences of lines": ("", "```\n", "x"),
    "open fence": ("```", " ", "x"),
    "answers": ("", "answer ", "x"),
    "functions": ("", "async def f\n", ""),
    "async": ("", "async ", ""),
    "samples": ("", 'a{b="c"} ', ""),
    "labels": ("a{", 'b="c",', "} 1"),
    "open labels": ("", 'a{b="', ""),
    "comments": ("", "# ", ""),
    "events": ("", "data: x\n", ""),
    "words of a log": ("", "INFO 01-01 12:00:00 loading weights took ", ""),
    "markers begun": ("", "Prefetching ", ""),
    "hints begun": ("", "ModuleNotFoundError: CUDA error: Capture ", ""),
    "tables of a log": ("", "|   ", ""),
    "paths": ("", "/a-b_c", ""),
    "errors": ("", "error: ", ""),
    "underscores": ("", "_", ""),
    "mixed case": ("", "aB", ""),
}  # fmt: skip
"""Begin, what is repeated, end."""


def long_text(name, size):
    """Return a text of about this size."""
    begin, unit, end = SHAPES[name]
    return begin + unit * (size // len(unit)) + end


def seconds(reader, text):
    """Return the CPU time that a reader takes."""
    began = time.thread_time()
    reader(text)
    return time.thread_time() - began
