#!/bin/sh
# Installs other load generators from PyPI, each in a virtual environment of its own, to be measured beside servebench:
#   tests/bench/install_peers.sh FOLDER [guidellm aiperf genai-bench inference-perf llama-benchy vllm]
# then:
#   SERVEBENCH_PEERS=FOLDER make bench
# Without names all but vLLM (several GB) are installed. One that does not install is left out and told.
set -u
folder=${1:?usage: install_peers.sh FOLDER [NAME ...]}
shift
[ $# -gt 0 ] || set -- guidellm aiperf genai-bench inference-perf llama-benchy
python=${PYTHON:-python3}
mkdir -p "$folder"
for name in "$@"; do
    [ -e "$folder/$name/.done" ] && continue
    if "$python" -m venv "$folder/$name" && "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$name"; then
        touch "$folder/$name/.done"
    else
        echo "install_peers: $name could not be installed" >&2
        rm -rf "$folder/$name"
    fi
done
