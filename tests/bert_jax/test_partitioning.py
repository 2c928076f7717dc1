"""The mesh, its errors, and the table of logical axes."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax import modeling, partitioning
from bert_jax.config import BertConfig
from input_pipeline.errors import UserError


def test_mesh_sizes():
    assert partitioning.parse_mesh("", 8) == {"data": 8, "fsdp": 1, "tensor": 1}
    assert partitioning.parse_mesh("data=2,fsdp=2,tensor=2", 8) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert partitioning.parse_mesh("tensor=2,data=-1", 8) == {"data": 4, "fsdp": 1, "tensor": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("date=8", "'date'"),
        ("data=4,data=2", "at most once"),
        ("data=0", "'0'"),
        ("data=x", "'x'"),
        ("data", "''"),
        ("data=3", "needs 3 devices, but there are 8"),
        ("data=-1,fsdp=-1", "only one"),
        ("tensor=3,data=-1", "but there are 8"),
    ],
)
def test_mesh_mistakes(text, words):
    with pytest.raises(UserError, match=words) as error:
        partitioning.parse_mesh(text, 8)
    assert f"--mesh={text}" in str(error.value)


def test_every_parameter_has_its_place():
    module = modeling.BertForPreTraining(BertConfig.named("tiny"))
    boxed = jax.eval_shape(lambda key: modeling.initialize(module, key), jax.random.key(0))
    specs = jax.tree.map(lambda s: s.spec, partitioning.parameter_shardings(partitioning.make_mesh(), boxed))
    layer = specs["bert"]["encoder"]["layer_0"]
    assert layer["attention"]["query"]["kernel"] == PartitionSpec("fsdp", "tensor")
    assert layer["attention"]["output"]["kernel"] == PartitionSpec("tensor", "fsdp")
    assert layer["feed_forward"]["intermediate"]["kernel"] == PartitionSpec("fsdp", "tensor")
    assert layer["feed_forward"]["output"]["kernel"] == PartitionSpec("tensor", "fsdp")
    assert specs["bert"]["embeddings"]["word_embeddings"]["embedding"] == PartitionSpec("tensor", "fsdp")
    assert specs["cls"]["predictions"]["output_bias"]["bias"] == PartitionSpec("tensor")


def test_batch_size_is_checked_with_the_nearest_that_fit():
    class Mesh:
        shape = {"data": 4, "fsdp": 1, "tensor": 2}  # noqa: RUF012

    partitioning.check_batch_size(Mesh, "--train_batch_size", 8)
    with pytest.raises(UserError, match=r"--train_batch_size=6 must be a multiple of 4 .*use 4 or 8"):
        partitioning.check_batch_size(Mesh, "--train_batch_size", 6)
    with pytest.raises(UserError, match="use 12"):
        partitioning.check_batch_size(Mesh, "--train_batch_size", 8, accumulation_steps=3)


def test_one_process_feeds_all_rows():
    mesh = partitioning.make_mesh()
    assert partitioning.local_rows(mesh, 4).tolist() == [0, 1, 2, 3]
    batch = {"input_ids": np.arange(8).reshape(4, 2)}
    np.testing.assert_array_equal(partitioning.to_global_batch(mesh, batch, 4)["input_ids"], batch["input_ids"])
