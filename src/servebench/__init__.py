"""servebench: which serving engine, with which settings, for my model, my GPU and my workload?"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("servebench-suite")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0.0.0"
