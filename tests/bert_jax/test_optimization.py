"""Optimizers and schedule against the values of google-research/bert and of LAMB in float64."""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

from bert_jax import optimization
from bert_jax.optimization import learning_rate_schedule, make_optimizer
from input_pipeline.errors import UserError

ROLES = {"word_embeddings": "embedding", "gamma": "scale", "beta": "bias", "output_weights": "kernel"}


@pytest.fixture(scope="module")
def golden(data):
    return json.loads((data / "optimizer.json").read_text())


def as_tree(flat, golden, dtype):
    """The golden file's flat lists under Google's names, as a tree whose leaf names are roles."""
    shapes = {param["name"]: param["shape"] for param in golden["params"]}
    leaves = {}
    for name, values in flat.items():
        last = name.rsplit("/", 1)[-1]
        role = ROLES.get(last, last.removeprefix("output_"))
        leaves[(*name.split("/"), role)] = np.asarray(values, dtype).reshape(shapes[name])
    return traverse_util.unflatten_dict(leaves)


def run(golden, optimizer, dtype, count=10):
    """All parameter trees and gradient norms after each of the golden file's updates."""
    params = as_tree({param["name"]: param["init"] for param in golden["params"]}, golden, dtype)
    state = optimizer.init(params)
    step = jax.jit(lambda gradients, state, params: optimizer.update(gradients, state, params))
    history = []
    for gradients in golden["gradients"][:count]:
        updates, state = step(as_tree(gradients, golden, dtype), state, params)
        params = optax.apply_updates(params, updates)
        history.append((params, float(state.gradient_norm)))
    assert int(state.step) == count
    return history


def assert_close(tree, flat, golden, tolerance):
    expected = as_tree(flat, golden, np.float64)
    for value, right in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, right, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_bert_adam_equals_the_reference(golden, dtype, tolerance):
    with jax.enable_x64(True) if dtype is np.float64 else contextlib.nullcontext():
        history = run(golden, make_optimizer("bert_adam", learning_rate_schedule(0.01, 12, 3)), dtype)
    for update, flat in zip((1, 2, 5, 10), golden["adam"]["params_after_updates_1_2_5_10"]):
        assert_close(history[update - 1][0], flat, golden, tolerance)
    np.testing.assert_allclose([norm for _, norm in history], golden["adam"]["gradient_norms"], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
@pytest.mark.parametrize(
    ("variant", "clip_norm", "trust_ratio", "updates"),
    [
        ("paper", 0.0, "all", (1, 2, 5, 10)),
        ("nvlamb", 1.0, "all", (10,)),
        ("fused_lamb_default", 1.0, "decayed", (10,)),
    ],
)
def test_lamb_equals_the_formulae(golden, variant, clip_norm, trust_ratio, updates, dtype, tolerance):
    with jax.enable_x64(True) if dtype is np.float64 else contextlib.nullcontext():
        rates = jnp.asarray(golden["lamb"]["lr_per_update"])
        optimizer = make_optimizer("lamb", lambda step: rates[step], clip_norm=clip_norm, trust_ratio=trust_ratio)
        history = run(golden, optimizer, dtype)
    for update, flat in zip(updates, golden["lamb"][variant]):
        assert_close(history[update - 1][0], flat, golden, tolerance)


def test_adamw_equals_optax(golden):
    optimizer = make_optimizer("adamw", lambda step: 0.01, weight_decay=0.1, clip_norm=0.0)
    ours, _ = run(golden, optimizer, np.float32)[-1]
    params = as_tree({param["name"]: param["init"] for param in golden["params"]}, golden, np.float32)
    reference = optax.adamw(0.01, weight_decay=0.1, mask=optimization.decay_mask)
    state = reference.init(params)
    for gradients in golden["gradients"]:
        updates, state = reference.update(as_tree(gradients, golden, np.float32), state, params)
        params = optax.apply_updates(params, updates)
    for value, right in zip(jax.tree.leaves(ours), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(value, right, rtol=0, atol=2e-6)


def test_first_update_of_one_scalar():
    """No bias correction and epsilon outside the root: 3.16 times the step of the usual AdamW."""
    params = {"kernel": jnp.zeros(1)}
    for name, change in (("bert_adam", -3.16218e-3), ("adamw", -1e-3)):
        optimizer = make_optimizer(name, lambda step: 1e-3, weight_decay=0.0)
        updates, _ = optimizer.update({"kernel": jnp.ones(1)}, optimizer.init(params), params)
        assert updates["kernel"][0] == pytest.approx(change, abs=5e-9)


def test_schedule_equals_the_reference(golden):
    for case in golden["schedule"]:
        schedule = learning_rate_schedule(case["init_lr"], case["num_train_steps"], case["num_warmup_steps"])
        rates = [float(schedule(step)) for step in case["steps"]]
        np.testing.assert_allclose(rates, case["lr_float64"], rtol=1e-6)


@pytest.mark.parametrize(
    ("total", "warmup", "expected"),
    [
        (
            1_000_000,
            10_000,
            {0: 0.0, 5000: 5e-5, 9999: 9.999e-5, 10_000: 9.9e-5, 500_000: 5e-5, 1_000_000: 0.0, 1_000_001: 0.0},
        ),
        (1_000_000, 0, {0: 1e-4, 999_999: 1e-10}),
        (100, 100, {0: 0.0, 99: 9.9e-5, 100: 0.0, 101: 0.0}),
    ],
)
def test_schedule_at_its_edges(total, warmup, expected):
    schedule = jax.jit(learning_rate_schedule(1e-4, total, warmup))
    for step, rate in expected.items():
        assert float(schedule(jnp.int32(step))) == pytest.approx(rate, rel=1e-6, abs=0)


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_a_rate_falls_with_a_power_of_what_is_left(power):
    """PolyWarmUpScheduler of NVIDIA's DeepLearningExamples, which has power 0.5, for updates counted from 0."""
    steps = np.arange(7038 + 5)
    expected = np.where(steps < 2001, 6e-3 * steps / 2001, 6e-3 * np.maximum(1 - steps / 7038, 0.0) ** power)
    schedule = jax.jit(learning_rate_schedule(6e-3, 7038, 2001, power))
    np.testing.assert_allclose(schedule(jnp.asarray(steps)), expected, rtol=1e-6, atol=0)
    assert float(learning_rate_schedule(1e-4, 100, 100, power)(100)) == 0
    assert float(learning_rate_schedule(1e-4, 100, 0, power)(0)) == np.float32(1e-4)


def test_power_0_is_a_constant_rate_until_the_end():
    rates = learning_rate_schedule(1e-4, 10, 2, 0.0)(jnp.arange(12))
    np.testing.assert_allclose(rates, [0, 5e-5, *[1e-4] * 8, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_schedule_that_begins_anew_is_one_of_its_own_steps(power):
    own, anew = learning_rate_schedule(4e-3, 1563, 200, power), learning_rate_schedule(4e-3, 8601, 200, power, 7038)
    steps = jnp.asarray([0, 1, 199, 200, 1562, 1563])
    np.testing.assert_array_equal(anew(steps + 7038), own(steps))


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_decay_from_the_peak_does_not_drop(power):
    steps = (5, 9, 10, 60, 110, 111)
    rates = [float(optimization.polynomial_rate(step, 1e-3, 110, 10, 10, power)) for step in steps]
    np.testing.assert_allclose(rates, [5e-4, 9e-4, 1e-3, 1e-3 * 0.5**power, 0, 0], rtol=1e-6)
    assert float(optimization.polynomial_rate(10, 1e-3, 10, 10, 10, power)) == 0


def test_bad_settings_are_named():
    for arguments, complaint in (
        ((1e-4, 0, 0), "--num_train_steps must be at least 1, not 0"),
        ((1e-4, 10, -1), "--num_warmup_steps must be at least 0, not -1"),
        ((float("nan"), 10, 1), "--learning_rate must be .*, not nan"),
        ((-1.0, 10, 1), r"--learning_rate must be .*, not -1\.0"),
        ((1e-4, 10, 1, -0.5), r"--lr_decay_power must be .*, not -0\.5"),
    ):
        with pytest.raises(UserError, match=complaint):
            learning_rate_schedule(*arguments)
    with pytest.raises(UserError, match=r"--optimizer must be one of bert_adam, adamw, lamb, not 'sgd'"):
        make_optimizer("sgd", lambda step: 0.1)
    with pytest.raises(UserError, match=r"--weight_decay must be .*, not -0\.1"):
        make_optimizer("lamb", lambda step: 0.1, weight_decay=-0.1)


def unrolled_tree():
    """Every kind of parameter of the model, two layers, the word table with a zero padding row."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    norm = lambda: {"scale": normal(4), "bias": normal(4)}
    layer = lambda: {
        "attention": {"query": {"kernel": normal(4, 2, 2), "bias": normal(2, 2)}, "layer_norm": norm()},
        "feed_forward": {"output": {"kernel": normal(8, 4), "bias": normal(4)}, "layer_norm": norm()},
    }
    return {
        "bert": {
            "embeddings": {
                "word_embeddings": {"embedding": normal(6, 4).at[5].set(0)},
                "position_embeddings": {"embedding": normal(5, 4)},
                "token_type_embeddings": {"embedding": normal(2, 4)},
                "layer_norm": norm(),
            },
            "encoder": {"layer_0": layer(), "layer_1": layer()},
        },
        "cls": {
            "predictions": {"output_bias": {"bias": normal(6)}},
            "seq_relationship": {"kernel": normal(4, 2), "bias": normal(2)},
        },
    }


def scanned(tree):
    """The same tree with its layers stacked."""
    encoder = tree["bert"]["encoder"]
    layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), encoder["layer_0"], encoder["layer_1"])
    return tree | {"bert": tree["bert"] | {"encoder": {"layers": layers}}}


@pytest.mark.parametrize("name", ["bert_adam", "adamw"])
@pytest.mark.parametrize("form", [lambda tree: tree, scanned])
def test_only_kernels_and_embeddings_decay(name, form):
    params = form(unrolled_tree())
    optimizer = make_optimizer(name, lambda step: 0.1, weight_decay=0.01)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    after = traverse_util.flatten_dict(optax.apply_updates(params, updates))
    for path, before in traverse_util.flatten_dict(params).items():
        if path[-1] in ("kernel", "embedding"):
            np.testing.assert_allclose(after[path], before * 0.999, rtol=2e-7)
            assert np.all((after[path] != before) | (before == 0))
        else:
            np.testing.assert_array_equal(after[path], before)


def test_decay_is_counted():
    kinds = "weight decay on {} kernels and embeddings, none on {} biases and scales"
    assert optimization.decay_summary(unrolled_tree()) == kinds.format(8, 16)
    assert optimization.decay_summary(scanned(unrolled_tree())) == kinds.format(6, 10)


def test_unknown_role_is_an_error():
    with pytest.raises(ValueError, match=r"parameter pooler/weights: the last name must be one of kernel, "):
        optimization.decay_mask({"pooler": {"weights": jnp.zeros(2)}})


@pytest.mark.parametrize("name", ["bert_adam", "adamw", "lamb"])
def test_stacked_layers_are_updated_like_single_ones(name):
    """LAMB would fail this with one trust ratio for a whole stack. Padding rows stay exactly zero."""
    optimizer = make_optimizer(name, learning_rate_schedule(0.1, 10, 0))
    results = []
    for form in (lambda tree: tree, scanned):
        params = form(unrolled_tree())
        state = optimizer.init(params)
        for power in (1, 2, 3):
            gradients = jax.tree.map(lambda x: jnp.sign(x) * jnp.abs(x) ** power, form(unrolled_tree()))  # noqa: B023
            updates, state = optimizer.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
        assert not params["bert"]["embeddings"]["word_embeddings"]["embedding"][5].any()
        results.append(params)
    for one, stacked in zip(jax.tree.leaves(scanned(results[0])), jax.tree.leaves(results[1]), strict=True):
        np.testing.assert_allclose(one, stacked, rtol=0, atol=1e-6)


def test_state_is_float32_for_half_precision_parameters():
    params = {"kernel": jnp.ones(3, jnp.bfloat16)}
    optimizer = make_optimizer("bert_adam", lambda step: 0.1)
    updates, state = optimizer.update(params, optimizer.init(params), params)
    assert updates["kernel"].dtype == jnp.bfloat16
    assert state.first_moment["kernel"].dtype == state.second_moment["kernel"].dtype == jnp.float32


def test_global_norm_is_over_all_arrays():
    assert float(optimization.global_norm({"a": jnp.full((2, 2), 2.0), "b": jnp.full(1, 3.0)})) == 5.0
