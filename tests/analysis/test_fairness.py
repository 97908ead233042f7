import copy
from dataclasses import replace

import pytest

from servebench.analysis.fairness import SettingDifference, compare_manifests, unequal_work, varied_keys
from servebench.report.wording.comparison import unequal_text
from servebench.store.studies import load_study
from support.records import requests_frame
from support.studies import SimulatedEngine, SimulatedLoad, with_columns

MANIFEST = {
    "study_id": "s",
    "engine_version": "1.0",
    "overrides": ["engine=vllm", "engine.dtype=auto"],
    "config": {
        "engine": {
            "name": "vllm",
            "dtype": "auto",
            "max_num_seqs": 8,
            "request_timings": True,
            "extra_args": {},
            "port": 1,
        },
        "model": {"name": "m"},
        "workload": {"name": "unique", "seed": 0, "cache": "cold"},
        "load": {"concurrency": [1, 2], "warmup_requests": "auto"},
        "tracking": {"name": "none"},
        "study": {"name": "a"},
    },
    "machine": {"cpu_model": "x", "gpus": [{"name": "H100", "driver_version": "550", "clocks_max_sm": "1980"}]},
    "packages": {"numpy": "2.0"},
}


@pytest.mark.parametrize(("other", "matters"), [("sha256:b", True), ("unknown", False), (None, False)])
def test_other_weights_matter_as_far_as_they_are_known(other, matters):
    """Those of a server that was already running are unknown, and those of older manifests."""
    ours, theirs = changed((("weights",), {"digest": "sha256:a"})), changed((("weights",), {"digest": other}))
    assert [(one.key, one.matters) for one in compare_manifests(ours, theirs)] == [("weights.digest", matters)]


@pytest.mark.parametrize(
    ("a", "b", "matters"),
    [
        ("/models/tiny", "org/tiny", False),
        ("org/tiny", "./Tiny/", False),
        ("/cache/models--org--tiny/snapshots/0f1e", "org/tiny", False),
        ("models/of/tiny", "~/tiny", False),
        ("/models/tiny", "org/large", True),
        ("/cache/models--org--tiny/snapshots/0f1e", "/cache/models--org--large/snapshots/0f1e", True),
        ("org/tiny", "other/tiny", True),
        ("org/tiny", "tiny", True),
    ],
)
def test_a_folder_and_a_hub_id_of_one_name_are_one_model(a, b, matters):
    """Other weights in it are a difference of their own."""
    ours, theirs = (changed((("config", "model"), {"name": name})) for name in (a, b))
    (found,) = [one for one in compare_manifests(ours, theirs) if one.key == "model.name"]
    assert found.matters is matters
    assert found.reason


def changed(*changes):
    other = copy.deepcopy(MANIFEST)
    for path, value in changes:
        at = other
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value
    return other


@pytest.mark.parametrize(
    ("path", "value", "key", "matters"),
    [
        (("engine_version",), "2.0", "engine_version", False),
        (("config", "engine", "name"), "sglang", "engine.name", False),
        (("config", "engine", "dtype"), "float8", "engine.dtype", True),
        (("config", "engine", "max_num_seqs"), None, "engine.max_num_seqs", True),
        (("config", "engine", "extra_args"), {"enforce-eager": True}, "engine.extra_args.enforce-eager", True),
        (("config", "engine", "request_timings"), False, "engine.request_timings", False),
        (("config", "engine", "port"), 2, "engine.port", False),
        (("config", "model", "name"), "n", "model.name", True),
        (("config", "workload", "cache"), "warm", "workload.cache", True),
        (("config", "load", "concurrency"), [1], "load.concurrency", False),
        (("config", "load", "warmup_requests"), 0, "load.warmup_requests", True),
        (("machine", "gpus", 0, "driver_version"), "570", "machine.gpus.0.driver_version", True),
        (("machine", "gpus", 0, "clocks_max_sm"), "1400", "machine.gpus.0.clocks_max_sm", True),
        (("machine", "cpu_model"), "y", "machine.cpu_model", True),
        (("packages", "numpy"), "2.1", "packages.numpy", False),
    ],
)
def test_each_unequal_setting_is_listed_and_says_whether_it_matters(path, value, key, matters):
    found = compare_manifests(MANIFEST, changed((path, value)))
    assert [(one.key, one.matters) for one in found] == [(key, matters)]
    assert found[0].reason


DTYPE = (("config", "engine", "dtype"), None)


@pytest.mark.parametrize(
    ("changes", "varying", "expected"),
    [
        # only one engine has the setting
        (
            [(("config", "engine", "builder"), "torch"), (("config", "engine", "name"), "trtllm")],
            (),
            [("engine.builder", False), ("engine.name", False)],
        ),
        # equal, whatever their studies are called
        ([(("config", "study", "name"), "b"), (("config", "tracking", "name"), "mlflow")], (), []),
        # what matters comes first
        ([(("packages", "numpy"), "3"), DTYPE], (), [("engine.dtype", True), ("packages.numpy", False)]),
        # what is varied on purpose does not matter
        ([DTYPE], ["engine.dtype"], [("engine.dtype", False)]),
        ([DTYPE], ["engine.*"], [("engine.dtype", False)]),
    ],
)
def test_what_is_listed_and_what_of_it_matters(changes, varying, expected):
    found = compare_manifests(MANIFEST, changed(*changes), varying=varying)
    assert [(one.key, one.matters) for one in found] == expected
    assert all((one.baseline, one.candidate) == ("auto", "-") for one in found if one.key == "engine.dtype")


@pytest.mark.parametrize("varying", ["gpu.count", "gpu.*"])
def test_who_varies_the_gpus_varies_what_follows_from_them(varying):
    """`gpu.count=2` sets the tensor parallelism."""
    one, two = (
        changed(
            (("config", "gpu"), {"name": "h100", "count": count}), (("config", "engine", "tensor_parallel_size"), size)
        )
        for count, size in ((1, None), (2, 2))
    )
    assert {found.key for found in compare_manifests(one, two) if found.matters} == {
        "gpu.count",
        "engine.tensor_parallel_size",
    }
    assert [found.key for found in compare_manifests(one, two, varying=[varying]) if found.matters] == []


def test_a_sweep_of_one_study_varies_its_own_overrides_and_so_does_a_choice_of_engines():
    words = (("overrides",), ["engine=sglang", "engine.dtype=float8"])
    other = changed(words, (("config", "engine", "name"), "sglang"))
    assert varied_keys(MANIFEST, other) == ("engine.*", "engine.dtype")
    assert varied_keys(MANIFEST, changed(words)) == ("engine.*", "engine.dtype", "cores"), "two files of one engine"
    assert varied_keys(MANIFEST, changed((("study_id",), "t"), (("overrides",), ["engine.dtype=x"]))) == ()
    assert varied_keys(MANIFEST, changed((("overrides",), ["engine=vllm", "engine.dtype=auto", "model=big"]))) == (
        "model.*",
    )


HARMLESS = (
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY"),
    *("TRANSFORMERS_VERBOSITY", "VLLM_LOGGING_LEVEL", "SGLANG_LOG_LEVEL", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"),
    "PYTHONUNBUFFERED",
)
MATTERING = (
    *("MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "VLLM_ATTENTION_BACKEND", "CUDA_VISIBLE_DEVICES", "VLLM_USE_V1"),
    "NCCL_P2P_DISABLE",
)


@pytest.mark.parametrize(
    ("name", "matters"), [*((name, False) for name in HARMLESS), *((name, True) for name in MATTERING)]
)
def test_a_variable_of_the_environment_matters_where_it_can_change_speed_or_answers(name, matters):
    path = ("config", "engine", "env")
    ours, theirs = changed((path, {})), changed((path, {name: "1"}))
    (found,) = compare_manifests(ours, theirs)
    assert (found.key, found.baseline, found.candidate) == (f"engine.env.{name}", "-", "1")
    assert found.matters is matters
    assert found.reason


def test_a_harmless_variable_of_two_values_is_listed_too():
    path = ("config", "engine", "env")
    (found,) = compare_manifests(changed((path, {"HF_HOME": "a"})), changed((path, {"HF_HOME": "b"})))
    assert (found.baseline, found.candidate, found.matters) == ("a", "b", False)


@pytest.mark.parametrize("part", ["config", "overrides", "machine", "cold_start", "study_id", "packages"])
@pytest.mark.parametrize("value", [5, "x", [], [1], None, {"engine": 5}])
def test_a_manifest_of_strange_parts_is_compared_all_the_same(part, value):
    strange = {**MANIFEST, part: value}
    assert isinstance(compare_manifests(MANIFEST, strange), tuple)
    assert compare_manifests(strange, strange) == ()
    assert isinstance(varied_keys({**strange, "study_id": "s"}, MANIFEST), tuple)


def test_the_remedy_names_the_option():
    """A few keys as they are, many by their group; what does not matter is no part of it."""
    few = compare_manifests(MANIFEST, changed((("config", "engine", "dtype"), "fp8"), (("packages", "numpy"), "9")))
    assert "(engine.dtype)" in unequal_text(few)
    assert unequal_text(few).endswith("--varying 'engine.dtype'")
    flags = {f"flag-{number}": True for number in range(7)}
    many = compare_manifests(MANIFEST, changed((("config", "engine", "extra_args"), flags)))
    assert " and 3 more)" in unequal_text(many)
    assert unequal_text(many).endswith("--varying 'engine.*'")


def test_another_file_of_weights_matters():
    def command(*argv):
        return {**MANIFEST, "command": {"argv": list(argv)}}

    gguf = command("llama-server", "--model", "/models/m.Q4_1.gguf")
    assert compare_manifests(gguf, copy.deepcopy(gguf)) == ()
    (found,) = compare_manifests(gguf, command("vllm", "serve", "org/m"))
    assert (found.key, found.baseline, found.candidate, found.matters) == (
        "weights", "m.Q4_1.gguf", "as published", True,
    )  # fmt: skip


def made_of(answered, asked):
    return {"output_tokens_mean": answered, "output_tokens_asked_mean": asked}


NO_TOKENS = dict.fromkeys(
    f"{one}_mean" for one in ("input_tokens", "output_tokens", "input_tokens_planned", "output_tokens_asked")
)


@pytest.mark.parametrize(
    ("ours", "theirs", "keys"),
    [
        ({"input_tokens_mean": 128.0}, {"input_tokens_mean": 129.0}, []),
        ({"input_tokens_mean": 128.0}, {"input_tokens_mean": 95.0}, ["input_tokens_mean"]),
        ({"output_tokens_mean": 64.0}, {"output_tokens_mean": 58.0}, ["output_tokens_mean"]),
        ({"input_tokens_mean": 128.0}, {}, []),
        # lengths that vary are longer by chance where few requests were planned so, and engines that stop early are not
        (made_of(16.4, 16.4), made_of(17.9, 17.9), []),
        (made_of(16.4, 16.4), made_of(17.9, 16.4), ["output_tokens_mean"]),
        (made_of(16.4, 16.4), made_of(16.4, 17.9), []),
    ],
)
def test_unequal_work_is_seen_from_the_servers_token_counts(ours, theirs, keys, make_study):
    study = load_study(make_study(*[(SimulatedEngine(), SimulatedLoad(levels=(4,), requests=20))] * 2))
    alone = [replace(run, tables=lambda *_: requests_frame([])) for run in study.runs]
    runs = [with_columns(run, **NO_TOKENS | values) for run, values in zip(alone, (ours, theirs), strict=True)]
    found = unequal_work(*runs)
    assert [one.key for one in found if one.matters] == keys
    assert not any(one.matters for one in unequal_work(*runs, on_purpose=keys))


@pytest.mark.parametrize(("longer", "unequal"), [(1.0, False), (1.2, True)])
def test_prompts_without_a_plan_are_compared_request_by_request(longer, unequal, make_study):
    """Turns of a conversation: the mean prompt depends on which turns a point has."""
    study = load_study(make_study(*[(SimulatedEngine(), SimulatedLoad(levels=(4,), requests=20))] * 2))
    runs = [
        with_columns(run, **NO_TOKENS | {"input_tokens_mean": mean})
        for run, mean in zip(study.runs, (300.0, 330.0), strict=True)
    ]
    other = runs[1].requests.assign(prompt_tokens=lambda own: own["prompt_tokens"] * longer)
    runs[1] = replace(runs[1], tables=lambda *_: other)
    assert any(one.matters for one in unequal_work(*runs)) is unequal


def test_the_option_for_many_keys_names_each_key_that_has_no_group():
    keys = ("input_tokens_mean", *(f"engine.k{i}" for i in range(5)))
    many = [SettingDifference(key=key, baseline="1", candidate="2", matters=True, reason="") for key in keys]
    assert unequal_text(many).endswith("--varying 'input_tokens_mean,engine.*'")


@pytest.mark.parametrize(
    ("ours", "theirs", "cores"),
    [
        ({"env": {"VLLM_CPU_OMP_THREADS_BIND": "0"}}, {}, ("1", "2")),
        ({"env": {"VLLM_CPU_OMP_THREADS_BIND": "0-1"}}, {}, None),
        ({"env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}}, {"threads": 1}, ("2", "1")),
        ({"env": {"VLLM_CPU_OMP_THREADS_BIND": "all"}}, {"threads": 8}, None),
        ({"env": {"OMP_NUM_THREADS": "1"}}, {"threads": 2}, ("1", "2")),
        ({"env": {"OMP_NUM_THREADS": 1}}, {"threads": 1}, None),
    ],
)
@pytest.mark.parametrize("study", ["s", None])
def test_the_cores_of_an_engine_are_compared_however_they_are_said(ours, theirs, cores, study):
    """Within a study that chooses two engine files as across studies."""
    sides = [
        {
            **{
                "study_id": study,
                "overrides": [f"engine={name}"],
                "machine": {"cpu_count": 2, "cpu_threads_usable": 2},
            },
            "config": {"launch": {"name": "process"}, "engine": {"name": name, **engine}},
        }
        for name, engine in (("a", ours), ("b", theirs))
    ]
    found = {one.key: one for one in compare_manifests(*sides, varying=varied_keys(*sides))}
    assert (("cores" in found) and (found["cores"].baseline, found["cores"].candidate)) == (cores or False)
    assert not any(one.matters for key, one in found.items() if key.startswith("engine.env."))
    assert "cores" not in found or found["cores"].matters
    assert not any(one.matters for one in compare_manifests(*sides, varying=["cores", *varied_keys(*sides)]))


def test_cores_of_an_engine_that_was_not_started_here_are_unknown():
    machine = {"machine": {"cpu_count": 2, "cpu_threads_usable": 2}}
    ours, theirs = (
        {**machine, "config": {"launch": {"name": launch}, "engine": {"threads": 1}}}
        for launch in ("process", "attach")
    )
    assert "cores" not in {one.key for one in compare_manifests(ours, theirs)}
