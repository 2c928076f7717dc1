import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_bert import CONFIG, random_params

from bert_jax import finetuning, optimization, partitioning, training
from bert_jax.heads import TaskHead
from bert_jax.task_modeling import BertForTask
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.family import Losses
from bert_jax.tasks.regression import Regression
from input_pipeline.packed_batches import PackedBatches
from input_pipeline.task_features import NO_LABEL, make_features

PLAIN = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
HEAD = TaskHead("classification", ("x", "y", "z"))
COUNT = 40


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The least that a family of tokens has."""

    head: TaskHead = TaskHead("tagging", ("O", "B", "I"))  # noqa: RUF009 (a named tuple)
    num_choices: int = 1

    def losses(self, logits, labels):
        chosen = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        losses = jax.nn.logsumexp(logits, axis=-1) - chosen
        return Losses(losses, jnp.argmax(logits, axis=-1) == labels, (labels != NO_LABEL).astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Choices:
    head: TaskHead = TaskHead("multiple_choice", ("choice",))  # noqa: RUF009
    num_choices: int = 4

    def losses(self, logits, labels):
        chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        weights = jnp.ones(labels.shape)
        return Losses(jax.nn.logsumexp(logits, axis=1) - chosen, jnp.argmax(logits, axis=1) == labels, weights)


def random_features(kind="classification"):
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 20, COUNT)
    sequences = [(rng.integers(5, CONFIG.vocab_size, n), rng.integers(0, 2, n)) for n in lengths]
    labels = {
        "classification": rng.integers(0, 3, COUNT).astype(np.int32),
        "regression": rng.normal(size=COUNT).astype(np.float32),
        "tagging": np.where(rng.random(lengths.sum()) < 0.5, rng.integers(0, 3, lengths.sum()), NO_LABEL),
        "multiple_choice": rng.integers(0, 4, COUNT // 4).astype(np.int32),
    }[kind]
    return make_features(sequences, range(COUNT), labels)


def task_of(kind="classification", config=PLAIN, **options):
    family = {
        "classification": Classification(HEAD, None),
        "regression": Regression(TaskHead("regression", ("value",)), None),
        "tagging": Tokens(),
        "multiple_choice": Choices(),
    }[kind]
    return finetuning.FinetuningTask(BertForTask(config, family.head), family, **options)


def unpacked_logits(task, params, features):
    """The logits of each sequence in a row of its own."""
    ends, width = np.cumsum(features.lengths), features.lengths.max()
    rows = [
        [np.pad(x[end - length : end], (0, width - length)) for length, end in zip(features.lengths, ends)]
        for x in (features.input_ids, features.segment_ids)
    ]
    mask = np.arange(width) < features.lengths[:, None]
    ids, segments = (np.array(x, np.int32) for x in rows)
    logits = jax.jit(task.module.apply)({"params": params}, ids, mask.astype(np.int32), segments)
    of_tokens = task.family.head.of_tokens
    return [np.asarray(x)[:length] if of_tokens else np.asarray(x) for x, length in zip(logits, features.lengths)]


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "multiple_choice"])
def test_the_loss_of_a_packed_batch_is_that_of_its_examples(kind):
    task, features = task_of(kind), random_features(kind)
    params = random_params(PLAIN, task.family.head)
    choices = task.family.num_choices
    batches = PackedBatches(features, num_choices=choices, batch_size=8, num_train_steps=1, seed=0)
    batch = batches.batch(0)
    loss, _ = task.loss(params, batch, task.normalizers(batch), None)
    logits, starts = unpacked_logits(task, params, features), np.concatenate([[0], np.cumsum(features.lengths)])
    total = weight = 0.0
    for number in batches.examples_of(0):
        own = np.stack(logits[number * choices : (number + 1) * choices])
        labels = features.labels[number : number + 1]
        if kind == "tagging":
            labels = features.labels[starts[number] : starts[number + 1]][None]
        losses = task.family.losses(own.reshape(1, -1) if choices > 1 else own, labels)
        total += float(jnp.sum(losses.losses * losses.weights))
        weight += float(jnp.sum(losses.weights))
    assert float(loss) == pytest.approx(total / weight, abs=1e-5)


@pytest.mark.parametrize("kind", ["classification", "tagging", "multiple_choice"])
def test_accumulated_parts_give_the_gradient_of_the_whole(kind):
    task, features = task_of(kind), random_features(kind)
    params = random_params(PLAIN, task.family.head)
    schedule = optimization.learning_rate_schedule(1e-3, 10, 0)
    optimizer = optimization.make_optimizer("bert_adam", schedule)
    whole = partitioning.replicated(partitioning.make_mesh("", jax.devices()[:1]))
    moments = []
    for parts in (1, 2):
        batch = PackedBatches(
            features,
            num_choices=task.family.num_choices,
            batch_size=8,
            num_train_steps=1,
            seed=0,
            accumulation_steps=parts,
        ).batch(0)
        state = {"step": jnp.int32(0), "params": params, "opt_state": optimizer.init(params)}
        shardings = jax.tree.map(lambda _: whole, state)
        step = training.make_train_step(task, optimizer, schedule, 0, shardings, parts)
        after, metrics = jax.jit(step)(state, batch)
        moments.append((after["opt_state"].first_moment, metrics["loss"]))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-6), *moments)


def test_a_frozen_encoder_gets_no_gradient_and_no_dropout():
    task = task_of(config=CONFIG, freeze_encoder=True)
    params, features = random_params(CONFIG, HEAD), random_features()
    batch = PackedBatches(features, batch_size=8, num_train_steps=1, seed=0).batch(0)
    key = jax.random.key(0)
    gradient = jax.grad(lambda params: task.loss(params, batch, task.normalizers(batch), key)[0])(params)
    encoder = jax.tree.leaves([gradient["bert"]["encoder"], gradient["bert"]["embeddings"]])
    assert not any(np.any(leaf) for leaf in encoder)
    assert np.any(gradient["classifier"]["kernel"])


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_predictions_come_in_order_whatever_the_number_of_devices(kind):
    task, features = task_of(kind, config=CONFIG), random_features(kind)
    params = random_params(CONFIG, task.family.head)
    function = lambda params, batch: task.logits(params, batch)
    logits = finetuning.predict_logits(
        function, params, features, mesh=partitioning.make_mesh(), of_tokens=kind == "tagging"
    )
    expected = unpacked_logits(task, params, features)
    assert [x.shape for x in logits] == [x.shape for x in expected]
    for ours, right in zip(logits, expected):
        np.testing.assert_allclose(ours, right, atol=1e-5)
