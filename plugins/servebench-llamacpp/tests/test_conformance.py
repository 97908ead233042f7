"""The suite that all plugins run, with the real llama.cpp."""

import os
from pathlib import Path

import yaml

from servebench.plugin import ModelSettings, PackagedFile
from servebench.testing import EngineConformance
from servebench_llamacpp.engine import LlamaCppEngine

CONF = Path(__file__).parents[3] / "conf/model/smollm2-135m-instruct.yaml"


class TestLlamaCpp(EngineConformance):
    """Embedded: there is no program to stand in for."""

    engine = LlamaCppEngine
    # its threads wait for one another by spinning: on a machine that is busy one is faster than all
    settings = {"max_num_seqs": 2, "max_model_len": 256, "threads": 1}
    overload = 6
    has_timings = True
    failures = {"model_missing": "cannot load the model /m.gguf: failed to load"}

    def real_model(self):
        described = yaml.safe_load(CONF.read_text())
        return ModelSettings(name=described["name"], gguf=PackagedFile(**described["gguf"]))

    def real_cache_dir(self, folder):
        return Path(os.environ.get("SERVEBENCH_CACHE") or Path.home() / ".cache" / "servebench")
