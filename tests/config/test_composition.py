"""Command lines, from the words to jobs or to the faults that are told."""

import json
import re
import shlex
from pathlib import Path

import pytest

import servebench
from servebench.config import compose_jobs
from servebench.registry.conf import install_command
from servebench.registry.registry import PluginInfo, Registry
from servebench.util.errors import ConfigError

ATTACHED = "launch=attach launch.base_url=http://h/v1"


def problem_lines(line, registry):
    with pytest.raises(ConfigError) as caught:
        compose_jobs(shlex.split(line), registry)
    for fault in caught.value.faults:
        assert "\n" not in fault
        assert "HYDRA_FULL_ERROR" not in fault
    return caught.value.faults


ENGINES = "llamacpp, openai, sglang, trtllm, vllm"
FAULTS = [
    ("engine=vlm", f"engine=vlm: no such engine; did you mean 'vllm'? available: {ENGINES}"),
    ("engine=base", f"engine=base: no such engine; available: {ENGINES}"),
    ("engine=5", f"engine=5: no such engine; available: {ENGINES}"),
    ("engine=attach", f"engine=attach: no such engine; did you mean launch=attach? available: {ENGINES}"),
    ("engin=vllm", "engin=vllm: no such config group; did you mean 'engine'?"),
    ("port=1", "port=1: no such config group; did you mean 'engine.port'?"),
    ("load.concurency=[1]", "load.concurency: unknown key; did you mean 'load.concurrency'?"),
    ("load.trace.path=x", "load.trace: unknown key; did you mean 'load.replay'? (from load.trace.path=x)"),
    ("telemetry.engin=1", "telemetry.engin: unknown key; known keys: telemetry.enabled, telemetry.interval_s"),
    ("+telemetry.name=engine", "telemetry.name: unknown key; did you mean 'engine.name'?"),
    ("load.trace_headers=true", "load.trace_headers: unknown key; did you mean 'load.span_headers'?"),
    ("load=trace", "load=trace is no longer there; load=replay takes its place"),
    ("workload.seed=x", "workload.seed must be an integer (got 'x')"),
    ("engin.port=1", "engin.port: unknown key; did you mean 'engine.port'?"),
    ("engine.port=abc", "engine.port must be an integer (got 'abc')"),
    ("load.concurrency=[0]", "load.concurrency[0] must be at least 1 (got 0, from load.concurrency=[0])"),
    ("engine={port:-1}", "engine.port must be at least 0 (got -1, from engine={port:-1})"),
    (
        "engine=[openai,llamacpp]",
        "engine=[openai,llamacpp]: a run has one engine; use -m engine=openai,llamacpp for one run each",
    ),
    ("engine=openai,llamacpp " + ATTACHED, "engine=openai,llamacpp: several values make several runs; add -m"),
    (
        "load.concurrency=1,2",
        "load.concurrency=1,2: several values make several runs; add -m; "
        "for one run with a list write load.concurrency=[1,2]",
    ),
    ("load.rate", "load.rate: not an override; write load.rate=VALUE"),
    ("'load.rate = 1'", "load.rate = 1: an override has no spaces around ="),
    ("foo", "foo: not an override; write group=option or group.key=value"),
    ("engine.dtype='${nope}'", "engine.dtype: interpolation key 'nope' not found (from engine.dtype=${nope})"),
    (
        "engine.extra_args=[--foo]",
        "engine.extra_args must be a mapping, as in '{name: value}' (got [--foo])",
    ),
    ("load.concurrency={a:1}", "load.concurrency must be a list (got {a:1})"),
    ("study.name=last", "study.name=last is how commands name a study by its age; choose another"),
    ("-m study.name=a,b", "study.name=a,b: all runs of a command are one study; give one value"),
    ("-m tracking=none,mlflow", "tracking.name=none,mlflow: all runs of a command are one study; give one value"),
    (
        "hydra.run.dir=x",
        "hydra.run.dir=x: has no effect; set study.dir for the folder of all studies, study.name for this one",
    ),
    (
        "hydra.job.chdir=true",
        "hydra.job.chdir=true: has no effect; of Hydra's settings those of hydra/launcher have one, and -m for sweeps",
    ),
    ("hydra.searchpath=[file://x]", "hydra.searchpath: add a folder with --config-dir DIR"),
    ("engine.dtype=???", "engine.dtype is required; set engine.dtype=VALUE"),
    ("~engine", "engine must be chosen, with engine=NAME"),
    (
        "experiment=nope",
        "experiment=nope: no such experiment; available: demo, h100_llama70b_fp8, h100x2_gptoss120b_sharegpt, "
        "rtx4090_qwen1p5b, rtx5090_qwen7b_baseline, rtx5090_qwen7b_extreme, rtx5090_qwen7b_fine, rtx5090_qwen7b_overload",
    ),
    ("quality=mmlu quality.items=0", "quality.items must be at least 1 or 'all' (got 0)"),
    (
        "load.rate=[5]",
        "load.rate and load.concurrency cannot be used together; use load=rate load.rate=[...], or set load.concurrency=null",
    ),
    ("--config-dir nowhere", "--config-dir nowhere: folder not found"),
    ("-cn mine", "--config-name mine: no such file in conf/; add its folder with --config-dir DIR"),
    ("-m engine=glob(x*)", "engine=glob(x*): nothing matches"),
    (
        "-m engine.seed=interval(1,3)",
        "engine.seed=interval(1,3): an interval cannot be swept; list values, as in engine.seed=1,2,4",
    ),
    ("launch=attach", "launch.base_url is required with launch=attach: launch.base_url=http://HOST:PORT/v1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "fault"), FAULTS)
def test_each_fault_is_one_line(line, fault, registry):
    assert problem_lines(line, registry) == [fault]


@pytest.mark.slow
@pytest.mark.parametrize("override", ["load.concurrency=[1,2", "engine.dtype='a", "=", "engine.env={A:"])
def test_syntax_errors_name_the_override(override, registry):
    (line,) = problem_lines(shlex.quote(override), registry)
    assert line.startswith(override)
    assert len(line) < 250


def test_faults_of_all_kinds_are_told_together(registry):
    line = "engine=vlm gpu=h1000 engine.port=8.5 load.concurency=1 load.requests=x foo=[ quality=mmul launch=attach"
    starts = [
        *("foo=[: invalid override", "engine=vlm: no such engine", "gpu=h1000: no such gpu", "quality=mmul: no such"),
        *("engine.port must be", "load.concurency: unknown key", "load.requests must be"),
        *("launch.base_url is required",),
    ]
    faults = problem_lines(line, registry)
    assert sorted(fault[:12] for fault in faults) == sorted(start[:12] for start in starts)


@pytest.mark.slow
def test_the_faults_of_all_jobs_are_told_once(registry):
    faults = problem_lines(f"-m {ATTACHED} engine=openai,vlm load=quick,fin load.repeats=0,1", registry)
    assert len(faults) == 3
    assert [re.split("[: ]", fault)[0] for fault in faults] == ["load.repeats", "load=fin", "engine=vlm"]


def test_keys_of_an_unknown_engine_are_not_guessed_at(registry):
    assert len(problem_lines("engine=vlm engine.anything=1", registry)) == 1
    assert len(problem_lines("engine=vlm engine.anything=1 engine.port=x", registry)) == 2


MISSING = (
    f"engine=llamacpp is not installed: {install_command('servebench-llamacpp')}, "
    "or choose another engine with engine=NAME (installed: openai)"
)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["", "engine=llamacpp", "engine.threads=4", "-m engine.seed=1,2"])
def test_the_missing_default_engine_says_how_to_get_it(line, make_registry):
    assert problem_lines(line, make_registry(plugin=False)) == [MISSING]


def test_a_file_that_inherits_an_engine_that_is_not_installed_says_how_to_get_it(tmp_path, make_registry):
    """Hydra only says that it could not load `engine/llamacpp`."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "mine.yaml").write_text("defaults:\n  - llamacpp\ndevice: cpu\n")
    assert problem_lines(f"-cd {tmp_path} engine=mine", make_registry(plugin=False)) == [
        f"engine/mine.yaml inherits llamacpp: {MISSING}"
    ]


@pytest.mark.parametrize("here", [True, False])
def test_a_plugin_is_installed_from_the_checkout_that_servebench_runs_from(here, tmp_path, monkeypatch):
    root = Path(servebench.__file__).parents[2]
    monkeypatch.chdir(root if here else tmp_path)
    place = "./plugins/servebench-tgi" if here else root / "plugins" / "servebench-tgi"
    assert install_command("servebench-tgi") == f"pip install {place}"
    assert install_command("servebench-other") == "pip install servebench-other"


def test_the_default_engine_is_not_needed_for_others(make_registry):
    jobs = compose_jobs(shlex.split(f"-m engine=openai engine.port=1,2 {ATTACHED}"), make_registry(plugin=False))
    assert [job.settings.engine.port for job in jobs] == [1, 2]


@pytest.mark.parametrize(
    ("status", "error", "why"),
    [
        ("broken", "ImportError: no", "its plugin servebench-llamacpp 1.0 failed to load (ImportError: no)"),
        ("disabled", None, "its plugin servebench-llamacpp is disabled by SERVEBENCH_DISABLE_PLUGINS; unset it"),
    ],
)
def test_a_plugin_that_did_not_load_is_told(status, error, why, make_registry):
    info = PluginInfo(name="llamacpp", distribution="servebench-llamacpp", version="1.0", status=status, error=error)
    assert problem_lines("engine=llamacpp", make_registry(plugin=False, plugins=(info,))) == [f"engine=llamacpp: {why}"]


def test_an_engine_with_a_file_and_no_class(registry):
    (line,) = problem_lines("engine=vllm engine.whatever=1", registry)
    assert line.startswith("engine=vllm has a config file but no installed plugin provides it")


SWEEPS = [
    (f"-m engine=openai,llamacpp engine.port=1 {ATTACHED}", [("openai", 1), ("llamacpp", 1)]),
    ("-m engine=llamacpp engine.port=range(1,4)", [("llamacpp", 1), ("llamacpp", 2), ("llamacpp", 3)]),
    (
        f"-m engine.port=1,2 engine=openai,llamacpp {ATTACHED}",
        [("openai", 1), ("llamacpp", 1), ("openai", 2), ("llamacpp", 2)],
    ),
    (f"-m {ATTACHED} engine=glob(*,exclude=[vllm,sglang,trtllm])", [("llamacpp", 0), ("openai", 0)]),
    ("-m engine.port=1,2 engine.port=7", [("llamacpp", 7)]),
    ("-m", [("llamacpp", 0)]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "expected"), SWEEPS)
def test_sweeps_are_in_hydras_order(line, expected, registry):
    jobs = compose_jobs(shlex.split(line), registry)
    assert [(job.settings.engine.name, job.settings.engine.port) for job in jobs] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "addresses"),
    [
        ("launch.base_url=http://[::1]:8000/v1", ["http://[::1]:8000/v1"]),
        ("'launch.base_url=\"http://[::1]:8000/v1\"'", ["http://[::1]:8000/v1"]),
        ("launch.base_url=http://[fe80::1%25eth0]/v1", ["http://[fe80::1%25eth0]/v1"]),
        ("-m launch.base_url=http://[::1]:1/v1,https://[::2]/v1", ["http://[::1]:1/v1", "https://[::2]/v1"]),
    ],
)
def test_an_address_in_brackets_needs_no_quotes(words, addresses, registry):
    jobs = compose_jobs(shlex.split(f"engine=openai launch=attach {words}"), registry)
    assert [job.resolved["launch"]["base_url"] for job in jobs] == addresses


def test_keys_that_only_the_swept_engine_has(registry):
    jobs = compose_jobs(["-m", "engine=llamacpp", "engine.threads=1,2"], registry)
    assert [job.resolved["engine"]["threads"] for job in jobs] == [1, 2]
    assert jobs[1].overrides == ("engine=llamacpp", "engine.threads=2")


def test_resolved_is_the_whole_config(registry):
    (job,) = compose_jobs(
        ["engine.extra_args.some-flag=true", "engine.env.OMP_NUM_THREADS=4", "hydra.sweeper.params=null"], registry
    )
    assert json.loads(json.dumps(job.resolved)) == job.resolved
    assert "hydra" not in job.resolved
    assert job.resolved["engine"]["extra_args"] == {"some-flag": True}
    assert job.settings.engine.env == {"OMP_NUM_THREADS": "4"}
    assert job.overrides == ("engine.extra_args.some-flag=true", "engine.env.OMP_NUM_THREADS=4")


SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
MODELS = [
    ("model.name=foo", "foo", None, None),
    ("model.path=/models/some-folder", "some-folder", None, "/models/some-folder"),
    ("model.path=/models/some.Q4_0.gguf", "some.Q4_0", None, "/models/some.Q4_0.gguf"),
    ("model=qwen2.5-7b-instruct model.path=/q", "Qwen/Qwen2.5-7B-Instruct", 28, "/q"),
    ("model=qwen2.5-7b-instruct model.name=served", "served", 28, None),
    ("model.revision=main", SMOLLM2, 30, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "name", "layers", "path"), MODELS)
def test_a_model_named_by_hand_is_no_preset(line, name, layers, path, registry):
    model = compose_jobs(line.split(), registry)[0].settings.model
    assert (model.name, model.layers, model.path) == (name, layers, path)
    assert (model.gguf is None) == (name != SMOLLM2)


@pytest.fixture
def folder(tmp_path):
    """A user's config folder: an experiment that sweeps, one that does not, a load and broken files."""
    files = {
        "experiment/sweeping.yaml": "# @package _global_\ndefaults:\n  - override /load: sweep\n  - _self_\n"
        "engine:\n  seed: 3\nhydra:\n  sweeper:\n    params:\n      engine.port: 1,2\n",
        "experiment/plain.yaml": "# @package _global_\ndefaults:\n  - override /gpu: h100\n  - _self_\n",
        "load/mine.yaml": "defaults:\n  - base\n  - _self_\nname: mine\nconcurrency: [2]\nrepeats: 0\n",
        "load/good.yaml": "defaults:\n  - base\n  - _self_\nname: good\nconcurrency: 3\n",
        "load/broken.yaml": "name: [\n",
        "load/orphan.yaml": "defaults:\n  - bse\n  - _self_\nname: orphan\n",
        "experiment/bare.yaml": "load:\n  timeout_s: 3\n",
        "load/typo.yaml": "defaults:\n  - base\n  - _self_\nname: typo\nconcurency: 3\n",
    }
    for name, text in files.items():
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "mine"


@pytest.mark.slow
def test_an_experiments_sweep_comes_first(folder, registry):
    words = ["-m", "--config-dir", str(folder), "experiment=sweeping"]
    jobs = compose_jobs([*words, "load.repeats=1,2"], registry)
    assert [(job.settings.engine.port, job.settings.load.repeats) for job in jobs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(job.settings.load.name == "sweep" and job.settings.engine.seed == 3 for job in jobs)
    assert [job.settings.engine.port for job in compose_jobs([*words, "engine.port=9"], registry)] == [9]


def test_each_swept_experiment_brings_its_own_sweep(folder, registry):
    jobs = compose_jobs(["-m", "-cd", str(folder), "experiment=sweeping,plain"], registry)
    assert [(job.settings.engine.port, job.settings.gpu.name) for job in jobs] == [
        (1, "none"),
        (2, "none"),
        (0, "h100"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("experiment=sweeping", "experiment=sweeping sweeps engine.port, so it makes several runs; add -m"),
        (
            "experiment=bare",
            "{folder}/experiment/bare.yaml must begin with the line '# @package _global_', and then set keys",
        ),
        ("load=mine", "load.repeats must be at least 1 (got 0, from {folder}/load/mine.yaml)"),
        ("load=typo", "load.concurency: unknown key; did you mean 'load.concurrency'? (from {folder}/load/typo.yaml)"),
    ],
)
def test_faults_of_files_name_them(word, fault, folder, registry):
    assert problem_lines(f"-cd {folder} {word}", registry) == [fault.format(folder=folder)]


def test_a_null_section_is_a_fault_of_its_own(registry):
    faults = problem_lines("engine.env=null workload=unique workload.output_tokens.mean=0", registry)
    assert faults[0] == "engine.env must be a mapping (got null)"


def test_files_that_cannot_be_composed(folder, registry):
    (line,) = problem_lines(f"-cd {folder} load=broken", registry)
    assert f"{folder}/load/broken.yaml, line 2" in line
    (line,) = problem_lines(f"-cd {folder} load=orphan", registry)
    assert line.startswith("in 'load/orphan': could not load 'load/bse'")
    (folder / "load/binary.yaml").write_bytes(b"\xff\xfe")
    (line,) = problem_lines(f"-cd {folder} load=binary", registry)
    assert line == f"{folder}/load/binary.yaml is not a text file in UTF-8: invalid start byte"


def test_a_users_folder_adds_options(folder, registry):
    (job,) = compose_jobs(["--config-dir", str(folder), "load=good"], registry)
    assert job.settings.load.concurrency == (3,)
    assert "good" in problem_lines(f"-cd {folder} load=nothing", registry)[0]


def test_a_hidden_file_is_told(folder, registry):
    (folder / "load" / "quick.yaml").write_text("name: quick\n")
    (line,) = problem_lines(f"-cd {folder}", registry)
    assert line.startswith(f"{folder}/load/quick.yaml is hidden by")


def from_package(registry):
    """The registry, with a plugin's config files where a plugin has them."""
    return Registry(registry.manager, (), registry.kinds, (*registry.config_paths, "pkg://servebench_ollama.conf"))


def test_a_file_that_a_plugin_hides_is_told(folder, registry):
    (folder / "engine").mkdir(exist_ok=True)
    (folder / "engine" / "ollama.yaml").write_text("defaults: [base, _self_]\nname: ollama\n")
    (line,) = problem_lines(f"-cd {folder}", from_package(registry))
    assert line.startswith(f"{folder}/engine/ollama.yaml is hidden by")


def test_a_config_file_may_have_a_searchpath_of_its_own(folder, registry, recwarn):
    """Hydra then looks at all others again, and warns of those that it does not find."""
    (folder / "far").mkdir()
    (folder / "far" / "engine").mkdir()
    (folder / "far" / "engine" / "mine.yaml").write_text("defaults: [llamacpp, _self_]\nmax_num_seqs: 7\n")
    (folder / "wide.yaml").write_text(
        f"defaults: [config, override engine: mine, _self_]\nhydra:\n  searchpath: [file://{folder}/far]\n"
    )
    (job,) = compose_jobs(["-cd", str(folder), "-cn", "wide"], from_package(registry))
    assert job.settings.engine.max_num_seqs == 7
    assert not [str(one.message) for one in recwarn if "is not available" in str(one.message)]


def test_another_primary_config(folder, registry):
    (folder / "nightly.yaml").write_text("defaults:\n  - config\n  - _self_\nload:\n  repeats: 5\n")
    (job,) = compose_jobs(["-cd", str(folder), "-cn", "nightly"], registry)
    assert job.settings.load.repeats == 5
    assert len(problem_lines(f"-cd {folder} -cn nothing", registry)) == 1


def test_a_plugin_folder_that_is_not_there_hurts_nobody(make_registry):
    registry = make_registry(plugin=False)
    broken = Registry(registry.manager, (), registry.kinds, ("pkg://no_such_package.conf", "/no/such/folder"))
    assert len(compose_jobs(f"engine=openai {ATTACHED}".split(), broken)) == 1


def test_nothing_is_written(registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    compose_jobs(["-m", "engine.port=1,2"], registry)
    assert sorted(tmp_path.iterdir()) == before
    assert Path.cwd() == tmp_path


def test_a_users_own_conf_folder_is_not_picked_up(registry, tmp_path, monkeypatch):
    (tmp_path / "conf" / "load").mkdir(parents=True)
    (tmp_path / "conf" / "load" / "local.yaml").write_text("name: local\n")
    monkeypatch.chdir(tmp_path)
    assert "local" not in problem_lines("load=local", registry)[0].partition("available:")[2]


def test_durations_are_seconds(registry):
    words = [
        "load=slo",
        "slo=interactive",
        "load.search.budget_s=10m",
        "load.timeout_s=2h",
        "engine.ready_timeout_s=90s",
    ]
    (job,) = compose_jobs([*words, "engine.extra_args={idle_s: 10s}"], registry)
    assert job.settings.load.search is not None
    assert job.settings.load.search.budget_s == 600
    assert job.settings.load.timeout_s == 7200
    assert job.settings.engine.ready_timeout_s == 90
    assert job.settings.engine.extra_args == {"idle_s": "10s"}
    with pytest.raises(ConfigError, match=r"load\.timeout_s"):
        compose_jobs(["load.timeout_s=soon"], registry)


def test_one_seed_that_the_others_follow():
    from servebench.registry.registry import registry as installed

    registry = installed()
    words = ["engine=vllm", "launch=emulated", "quality=gsm8k"]
    (job,) = compose_jobs([*words, "seed=7"], registry)
    assert (job.settings.workload.seed, job.settings.quality.seed, job.settings.launch.seed) == (7, 7, 7)
    (job,) = compose_jobs([*words, "seed=7", "quality.seed=1"], registry)
    assert (job.settings.workload.seed, job.settings.quality.seed) == (7, 1)


def test_an_endpoint_is_an_attached_server(registry):
    (job,) = compose_jobs(["endpoint=host:8000", "model.name=m", "duration=60s"], registry)
    assert (job.settings.engine.name, job.settings.launch.name) == ("openai", "attach")
    assert job.settings.launch.base_url == "http://host:8000"
    assert job.settings.load.duration_s == 60
    with pytest.raises(ConfigError, match="endpoint"):
        compose_jobs(["endpont=host:8000"], registry)


def test_a_renamed_preset_names_the_new_one(registry):
    with pytest.raises(ConfigError, match="load=slo"):
        compose_jobs(["load=search_slo"], registry)
