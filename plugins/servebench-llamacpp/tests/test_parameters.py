from __future__ import annotations

import pytest
import xllamacpp

from servebench_llamacpp.parameters import fault_of_field, plain_fields, set_field


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n_batch", "64", 64),
        ("cont_batching", "False", False),
        ("rope_freq_scale", "0.5", 0.5),
        ("chat_template", "x y=z", "x y=z"),
        ("cpuparams_batch.n_threads", "3", 3),
        ("sampling.seed", "7", 7),
    ],
)
def test_a_plain_field_is_set_from_text(name: str, text: str, value: object) -> None:
    """Of the structure or of one inside it, in its own type."""
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
        ("n_batch", "many", "'many' is no int"),
        ("n_batch", "1.5", "'1.5' is no int"),
        ("cont_batching", "perhaps", "'perhaps' is no bool"),
        ("hostnames", "x", "no parameter 'hostnames'"),
    ],
)
def test_what_cannot_be_set_is_told(name: str, text: str, words: str) -> None:
    """An unknown name with the nearest one, a value of another type, a field that no word can hold."""
    fault = fault_of_field(plain_fields(xllamacpp.CommonParams()), name, text)
    assert fault is not None
    assert words in fault
    with pytest.raises(ValueError, match="parameter"):
        set_field(xllamacpp.CommonParams(), name, text)


def test_a_number_that_does_not_fit_is_told() -> None:
    """One too large for the native field."""
    with pytest.raises(ValueError, match="'n_batch' cannot be set to"):
        set_field(xllamacpp.CommonParams(), "n_batch", "9" * 30)
