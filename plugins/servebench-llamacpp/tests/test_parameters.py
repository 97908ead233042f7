import pytest
import xllamacpp

from servebench_llamacpp.parameters import field_problem, plain_fields, set_field


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n_batch", "64", 64),
        ("cont_batching", "False", False),
        ("rope_freq_scale", "0.5", 0.5),
        ("chat_template", "x y=z", "x y=z"),
        ("cpuparams_batch.n_threads", "3", 3),
        ("sampling.seed", "7", 7),
        ("cache_type_k", "q8_0", 8),
        ("flash_attn_type", "Enabled", 1),
    ],
)
def test_a_plain_field_is_set_from_text(name, text, value):
    parameters = xllamacpp.CommonParams()
    set_field(parameters, name, text)
    holder = parameters
    for part in name.split("."):
        holder = getattr(holder, part)
    assert holder == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("n_bach", "1", "did you mean 'n_batch'?"),
        ("cpuparams.nthreads", "1", "did you mean 'cpuparams.n_threads'?"),
        ("zzz", "1", "the plain fields of xllamacpp.CommonParams"),
        ("n_batch", "many", "int (got 'many')"),
        ("n_batch", "1.5", "int (got '1.5')"),
        ("cont_batching", "perhaps", "bool (got 'perhaps')"),
        ("flash_attn_type", "on", "must be one of auto, disabled, enabled (got 'on')"),
        ("hostnames", "x", "no parameter 'hostnames'"),
    ],
)
def test_what_cannot_be_set(name, text, words):
    """An unknown name (with the nearest one), a value of another type, and a field that text cannot express."""
    problem = field_problem(plain_fields(xllamacpp.CommonParams()), name, text)
    assert words in problem
    with pytest.raises(ValueError, match="parameter"):
        set_field(xllamacpp.CommonParams(), name, text)


def test_a_number_that_is_too_large():
    with pytest.raises(ValueError, match="'n_batch' cannot be set to"):
        set_field(xllamacpp.CommonParams(), "n_batch", "9" * 30)
