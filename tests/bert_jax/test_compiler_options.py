"""Options of the compiler for TPU: given where they help, and left out where a compiler lacks them."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax import compiler_options


class Lowered:
    """A program that counts how it is compiled; its compiler fails where it is given options."""

    def __init__(self, error=None):
        self.error, self.asked = error, []

    def compile(self, compiler_options=None):
        self.asked.append(compiler_options)
        if compiler_options and self.error:
            raise self.error
        return "compiled"


def mesh_of(platform, size, kind="TPU v5 lite"):
    device = SimpleNamespace(platform=platform, device_kind=kind)
    return SimpleNamespace(devices=np.array([device] * size), size=size)


def test_tpus_are_told_how_to_hide_transfers():
    lowered = Lowered()
    assert compiler_options.compile_lowered(lowered, mesh_of("tpu", 4)) == "compiled"
    (options,) = lowered.asked
    assert options["xla_enable_async_all_reduce"] == "true"


@pytest.mark.parametrize(
    ("platform", "size", "kind"),
    [("tpu", 1, "TPU v5 lite"), ("tpu", 8, "TPU v4"), ("cpu", 8, "cpu"), ("gpu", 8, "NVIDIA H100")],
)
def test_others_are_told_nothing(platform, size, kind):
    lowered = Lowered()
    assert compiler_options.compile_lowered(lowered, mesh_of(platform, size, kind)) == "compiled"
    assert lowered.asked == [None]


@pytest.mark.parametrize(
    "message",
    [
        "INVALID_ARGUMENT: No such compile option: 'xla_new'",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. It should\nnot be",
    ],
)
def test_a_compiler_that_does_not_take_them_goes_without(caplog, message):
    lowered = Lowered(jax.errors.JaxRuntimeError(message))
    assert compiler_options.compile_lowered(lowered, mesh_of("tpu", 4)) == "compiled"
    assert len(lowered.asked) == 2 and lowered.asked[1] is None
    assert caplog.messages == [f"transfers are not hidden beside work: {message.splitlines()[0]}"]


@pytest.mark.parametrize(
    "error", [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 43G exceeds available HBM"), ValueError("no")]
)
def test_other_errors_are_the_callers(error):
    lowered = Lowered(error)
    with pytest.raises(type(error), match=str(error)):
        compiler_options.compile_lowered(lowered, mesh_of("tpu", 4))
    assert len(lowered.asked) == 1
