"""The environment of the programs that servebench starts: the variables named here, and no current folder on their paths.

An environment holds keys of clouds, trackers and other services. Engines, tools and code of models do not need them and may
print them. `engine.env` and `launch.pass_env` add variables.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from servebench.util.redaction import SECRET_LENGTH_MIN
from servebench.util.secret_patterns import secret_name

_NAMES = """
    PATH HOME USER LOGNAME SHELL TERM LANG LANGUAGE TZ TMPDIR TMP TEMP HOSTNAME VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD
    LIBRARY_PATH CPATH C_INCLUDE_PATH CC CXX MAX_JOBS RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
    GLIBC_TUNABLES SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY FTP_PROXY http_proxy https_proxy all_proxy no_proxy ftp_proxy
"""
NAMES = frozenset(_NAMES.split())
"""Variables that every child gets, if they are set."""
_FAMILIES = """
    LC_ XDG_ PYTHON SERVEBENCH_ COVERAGE_ COV_CORE_ CONDA_ PYENV_ MALLOC_ NUMBA_
    CUDA_ CUDNN_ CUBLAS_ NVIDIA_ NVCC_ NVTE_ NCCL_ UCX_ GLOO_ FI_ NVSHMEM_ ROCM_ ROCR_ HIP_ HSA_ RCCL_ AMD_ GPU_ MIOPEN_ AITER_
    ONEAPI_ ZE_ SYCL_ CCL_ XLA_ JAX_ TPU_ NEURON_ HABANA_ PT_HPU_ ASCEND_
    HF_ HUGGINGFACE_ HUGGING_FACE_ TRANSFORMERS_ TOKENIZERS_ SAFETENSORS_ MODELSCOPE_
    VLLM_ SGLANG_ SGL_ TRTLLM_ TLLM_ TRT_ TENSORRT_ TRITON_ LMDEPLOY_ TM_ OLLAMA_ LLAMA_ GGML_ FLASHINFER_ DG_ LMCACHE_
    MOONCAKE_ NIXL_ TORCH_ TORCHINDUCTOR_ PYTORCH_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ BLIS_ DNNL_ ONEDNN_
    RAY_ SLURM_ SLURMD_ SBATCH_ PMI_ PMIX_ OMPI_ I_MPI_
"""
FAMILIES = tuple(_FAMILIES.split())
"""Beginnings of names that every child gets: of engines and of what they are built on."""
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
"""The keys that engines fetch models with."""
CONTAINER_VARIABLES = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS")
"""What docker and podman find their daemon by."""
SCHEDULER_SECRETS = ("SLURM_JWT", "RAY_AUTH_TOKEN")
"""The keys by which a cluster knows its user."""
PROXIES, NOT_BY_PROXY = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), ("no_proxy", "NO_PROXY")
FOLDER_LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH")
"""Lists of folders in which an empty entry means the current folder."""
SAFE_PATH = "PYTHONSAFEPATH"
PROBE_TIMEOUT_S = 4.0
OUR_SAFE_PATH = "servebench"
"""The value that `protect_process` sets; engines do not inherit it, because a script may import what lies next to it."""


def absolute_entries(value: str) -> str:
    """Return a list of folders such as PATH without entries that mean the current folder or one below it."""
    return os.pathsep.join(entry for entry in value.split(os.pathsep) if Path(entry).is_absolute())


def child_environment(extra: Mapping[str, str] | None = None, *names: str) -> dict[str, str]:
    """Return the environment of a child: the variables of `NAMES`, `FAMILIES` and `names` that are set, then `extra`.

    A name that ends in `_` stands for a family. Secrets are passed only if `names` has them by their full name or `extra`
    holds them. Lists of folders lose relative entries.
    """
    families = FAMILIES + tuple(name for name in names if name.endswith("_"))
    found = {}
    for name, value in os.environ.items():
        secret = secret_name(name) and len(value) >= SECRET_LENGTH_MIN
        if name in names or (not secret and (name in NAMES or name.startswith(families))):
            found[name] = absolute_entries(value) if name in FOLDER_LISTS else value
    if found.get(SAFE_PATH) == OUR_SAFE_PATH:
        del found[SAFE_PATH]
    return {**found, **(extra or {})}


def without_proxy(host: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a child reach a host without a proxy; empty if neither the environment nor `extra`, its
    additional variables, names a proxy."""
    known = {**os.environ, **extra}
    if not any(known.get(name) for name in PROXIES):
        return {}
    # the first is what Python's clients look at first
    spared = next((known[name] for name in NOT_BY_PROXY if known.get(name)), "")
    hosts = [one.strip() for one in spared.split(",") if one.strip()]
    return dict.fromkeys(NOT_BY_PROXY, ",".join(hosts if host in hosts else [*hosts, host]))


def command_environment(command: Sequence[str], extra: Mapping[str, str] | None = None, *names: str) -> dict[str, str]:
    """Return the environment of an engine's command: that of a child, and where Python runs a module or a text, without the
    current folder on its path (`-P`, which Python before 3.11 does not know)."""
    environment = child_environment(extra, *names)
    if Path(command[0]).name.startswith("python") and {"-m", "-c"} & set(command[1:]):
        environment.setdefault(SAFE_PATH, "1")
    return environment


def job_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of servebench in a job of a scheduler: that of this process without secrets, so that the user's
    own script of the job finds what it needs; the engine of the job gets less."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in (*HUB_TOKENS, *SCHEDULER_SECRETS) or not secret_name(name) or len(value) < SECRET_LENGTH_MIN
    }
    return {**kept, **python_environment(extra)}


def python_environment(extra: Mapping[str, str] | None = None, *names: str) -> dict[str, str]:
    """Return the environment of a Python process that must find the same modules as this one, and none in the current
    folder."""
    here = None
    with suppress(OSError):
        here = str(Path.cwd())
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    package = str(Path(__file__).resolve().parents[2])
    found = [path for path in sys.path if Path(path).is_absolute() and (path != here or path in named)]
    paths = found if package in found else [*found, package]
    return {**child_environment(None, *names), "PYTHONPATH": os.pathsep.join(paths), SAFE_PATH: "1", **(extra or {})}


def find_program(name: str) -> str | None:
    """Return the path of a program as `shutil.which` does, but not one that only a relative entry of PATH finds."""
    found = shutil.which(name)
    if found is None or Path(found).is_absolute() or os.sep in name:
        return found
    return shutil.which(name, path=absolute_entries(os.environ.get("PATH", os.defpath)))


def protect_process() -> None:
    """Keep the current folder out of what this process and its children run: relative entries of PATH, and Python's path."""
    for name in ("PATH", "PYTHONPATH"):
        if name in os.environ:
            os.environ[name] = absolute_entries(os.environ[name])
    os.environ.setdefault(SAFE_PATH, OUR_SAFE_PATH)


def program_output(*command: str, env: Mapping[str, str] | None = None) -> str | None:
    """Return what a program prints; None when it is not there, fails or hangs. No probe is fatal."""
    try:
        # a session of its own, so that whatever the program started goes with it
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            env=child_environment(env),
        )  # fmt: skip
    except OSError:
        return None
    try:
        text = process.communicate(timeout=PROBE_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        _abandon(process)
        return None
    return text.decode(errors="replace").strip() if process.returncode == 0 else None


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill it and do not wait for long: a program that hangs in a driver cannot even be killed."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)
    if process.returncode is None:
        process.returncode = -signal.SIGKILL  # else its garbage collection warns
