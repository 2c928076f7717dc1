"""The search for the best plan, with a made-up compiler."""

import dataclasses

import pytest

from bert_jax import plan_search
from bert_jax.config import BertConfig
from bert_jax.plan_search import Candidate, Result

GIB = 2**30
# What a layer keeps for each sequence of a device, and what remat costs.
KEEPS = {"none": 4, "dots": 2, "full": 1}
SLOWER = {"none": 1.0, "dots": 1.25, "full": 1.5}


def compiler(capacity=1000):
    """A compiler whose steps take memory and time that are linear in layers and sequences, and what it was asked."""
    asked = []

    def compile(candidate, layers):
        asked.append((candidate, layers))
        each = candidate.train_batch_size // (8 * candidate.gradient_accumulation_steps)
        peak = 100 + layers * KEEPS[candidate.remat] * each
        fits = peak <= capacity
        seconds = 1.0 + layers * candidate.gradient_accumulation_steps * (0.5 + SLOWER[candidate.remat] * each)
        return {
            "memory": {"peak": peak, "capacity": capacity, "fits": fits},
            "estimated_step_seconds": seconds if fits else None,
        }

    return compile, asked


def search(compile, train_batch_size=None, remats=plan_search.REMATS, layers=4):
    return list(plan_search.search([("data=8", 8)], 128, train_batch_size, remats, layers, compile))


def test_meshes_of_a_base_model():
    base = BertConfig.named("base")
    assert plan_search.meshes(1, base) == [("data=1", 1)]
    assert plan_search.meshes(4, base) == [("data=4", 4), ("data=1,fsdp=4", 4)]
    assert plan_search.meshes(256, base) == [("data=256", 256), ("data=16,fsdp=16", 256)]
    odd = dataclasses.replace(base, hidden_size=756, num_attention_heads=12)
    assert plan_search.meshes(8, odd)[1:] == [("data=2,fsdp=4", 8)]


def test_a_large_model_may_be_cut_over_two_devices():
    large = BertConfig.named("large")
    assert plan_search.meshes(16, large)[2:] == [("data=8,tensor=2", 8)]
    assert len(plan_search.meshes(16, dataclasses.replace(large, intermediate_size=4095))) == 2


def test_batches_are_powers_of_two_of_about_as_many_tokens():
    assert plan_search.batches(8, 128, None) == [(32, 256, 1), (64, 512, 1), (128, 1024, 1), (256, 2048, 1)]
    assert [size for size, *_ in plan_search.batches(4, 512, None)] == [8, 16, 32, 64]
    assert [size for size, *_ in plan_search.batches(4, 384, None)] == [8, 16, 32, 64]
    assert plan_search.batches(1, 100_000, None) == [(1, 1, 1)]


def test_a_given_batch_is_kept_by_accumulation():
    assert plan_search.batches(8, 128, 1024) == [(32, 1024, 4), (64, 1024, 2), (128, 1024, 1)]
    assert plan_search.batches(8, 128, 64) == [(8, 64, 1)]
    assert plan_search.batches(8, 128, 100) == []
    assert plan_search.batches(16, 128, 16000) == [(25, 16000, 40), (50, 16000, 20), (125, 16000, 8), (250, 16000, 4)]
    assert plan_search.batches(1, 128, 1009) == [(1, 1009, 1009), (1009, 1009, 1)]  # a prime


def test_all_layers_are_extrapolated_from_one_and_two():
    compile, asked = compiler(10**6)
    result = search(compile)[0]
    assert asked[:2] == [(Candidate("data=8", 256, 1, "none"), 1), (Candidate("data=8", 256, 1, "none"), 2)]
    full = compile(result.candidate, 4)
    assert (result.peak, result.seconds) == (full["memory"]["peak"], pytest.approx(full["estimated_step_seconds"]))
    assert (result.per_device_batch, result.fits) == (32, True)
    assert result.sequences_per_second == pytest.approx(256 / full["estimated_step_seconds"])


def test_more_remat_is_tried_where_less_does_not_fit_and_no_larger_batch_where_none_does():
    results = search(compiler(1000)[0])
    tried = [(result.per_device_batch, result.candidate.remat, result.fits) for result in results]
    assert tried == [
        *((32, "none", True), (64, "none", False), (64, "dots", True)),
        *((128, "none", False), (128, "dots", False), (128, "full", True)),
        *((256, "none", False), (256, "dots", False), (256, "full", False)),
    ]


def test_given_remat_is_kept():
    assert {result.candidate.remat for result in search(compiler()[0], remats=["dots"])} == {"dots"}


def test_what_fits_comes_first_and_the_quickest_of_it():
    results = search(compiler(1000)[0])
    ranked = plan_search.ranked(results)
    assert [result.fits for result in ranked] == sorted((result.fits for result in results), reverse=True)
    speeds = [result.sequences_per_second for result in ranked if result.fits]
    assert speeds == sorted(speeds, reverse=True) and len(speeds) == 3
    assert ranked[0].candidate.remat == "none"


def test_a_compiler_that_gives_up_is_no_fit():
    plans = [
        {"memory": {"peak": 3 * GIB, "capacity": 16 * GIB, "fits": True}, "estimated_step_seconds": 1.0},
        {"memory": {"peak": None, "capacity": None, "fits": False}, "estimated_step_seconds": None},
    ]
    result = plan_search.extrapolate(Candidate("data=8", 256, 1, "none"), 32, 12, plans)
    assert (result.peak, result.seconds, result.fits, result.sequences_per_second) == (None, None, False, 0.0)


def results_of(*seconds):
    return [Result(Candidate("data=8", 256, 1, str(s)), 32, 1, s, True) for s in seconds]


def test_the_best_is_compiled_in_full_or_the_next_that_fits():
    asked = []

    def compile(candidate):
        asked.append(candidate.remat)
        return {"memory": {"fits": candidate.remat != "1.0"}}, "text of " + candidate.remat

    result, _, text = plan_search.compile_best(results_of(3.0, 1.0, 2.0), compile)
    assert (result.seconds, text, asked) == (2.0, "text of 2.0", ["1.0", "2.0"])


def test_nothing_fits():
    unfit = [Result(Candidate("data=8", 256, 1, "full"), 32, 1, 1.0, False)]
    never = lambda candidate: pytest.fail("compiled what cannot fit")
    assert plan_search.compile_best(unfit, never) is None
    refused = lambda candidate: ({"memory": {"fits": False}}, "")
    assert plan_search.compile_best(results_of(1.0), refused) is None


def test_a_candidate_reads_as_flags():
    assert Candidate("data=4,tensor=2", 1024, 2, "dots").flags() == (
        "--mesh=data=4,tensor=2 --train_batch_size=1024 --gradient_accumulation_steps=2 --remat=dots"
    )
