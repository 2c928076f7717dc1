"""The mesh, its errors, and the table of logical axes."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jaxprs import equations, mesh_of

from bert_jax import modeling, partitioning
from bert_jax.config import BertConfig
from input_pipeline.errors import UserError


def test_mesh_sizes():
    assert partitioning.parse_mesh("", 8) == {"data": 8, "fsdp": 1, "sequence": 1, "tensor": 1}
    assert partitioning.parse_mesh("data=2,fsdp=2,tensor=2", 8) == {"data": 2, "fsdp": 2, "sequence": 1, "tensor": 2}
    assert partitioning.parse_mesh("tensor=2,data=-1", 8) == {"data": 4, "fsdp": 1, "sequence": 1, "tensor": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("date=8", "'date'"),
        ("data=4,data=2", "at most once"),
        ("data=0", "'0'"),
        ("data=x", "'x'"),
        ("data", "''"),
        ("data=3", "is for 3 devices, but there are 8"),
        ("data=-1,fsdp=-1", "only one"),
        ("tensor=3,data=-1", "3 does not divide the number of devices: there are 8"),
    ],
)
def test_mesh_mistakes(text, words):
    with pytest.raises(UserError, match=words) as error:
        partitioning.parse_mesh(text, 8)
    assert f"--mesh={text}" in str(error.value)


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    slice_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"
    process_index: int = 0


def in_slices(count, size):
    """Devices of `count` slices of `size`, in an order that is not theirs."""
    return [Device(i, i % count) for i in range(count * size)]


@pytest.mark.parametrize(
    ("mesh", "dcn_mesh", "slices"),
    [
        ("data=8", "", {"data": 2}),
        ("data=2,fsdp=4", "", {"data": 2}),
        ("data=2,fsdp=4", "fsdp=2", {"fsdp": 2}),
        ("fsdp=8", "", {"fsdp": 2}),  # there is no other place
        ("data=2,fsdp=2,tensor=2", "data=-1", {"data": 2}),
        ("data=2,tensor=4", "tensor=2", {"tensor": 2}),
    ],
)
def test_slices_lie_on_the_axes_that_they_are_given(mesh, dcn_mesh, slices):
    devices = in_slices(2, 4)
    sizes = partitioning.parse_mesh(mesh, 8)
    arranged = partitioning.arrange(devices, sizes, dcn_mesh)
    assert arranged.shape == tuple(sizes.values()) and {d.id for d in arranged.flat} == set(range(8))
    found = partitioning.slices_of(SimpleNamespace(devices=arranged, shape=sizes))
    assert found == dict.fromkeys(sizes, 1) | slices
    # Along the other axes, and within its part of this one, a slice is whole.
    (axis,) = (i for i, name in enumerate(sizes) if name in slices)
    for part in np.split(arranged, 2, axis):
        assert len({d.slice_index for d in part.flat}) == 1


def test_four_slices_on_two_axes():
    sizes = partitioning.parse_mesh("data=2,fsdp=4", 8)
    arranged = partitioning.arrange(in_slices(4, 2), sizes, "")
    found = partitioning.slices_of(SimpleNamespace(devices=arranged, shape=sizes))
    assert (found["data"], found["fsdp"]) == (2, 2)


@pytest.mark.parametrize(
    ("mesh", "dcn_mesh", "words"),
    [
        ("data=8", "date=2", "--dcn_mesh=date=2: axis 'date' should be one of data"),
        ("data=8", "data=0", "--dcn_mesh=data=0: data needs a size"),
        ("data=8", "data=-1,fsdp=-1", "--dcn_mesh=data=-1,fsdp=-1: only one axis may be -1"),
        ("data=8", "data=4", "--dcn_mesh=data=4 is for 4 slices, but there are 2"),
        ("data=8", "fsdp=2", "--dcn_mesh=fsdp=2: fsdp=2 does not divide fsdp=1 of the mesh"),
        ("tensor=8", "", "2 slices do not lie on data=1 and fsdp=1 of the mesh"),
    ],
)
def test_slices_that_do_not_fit(mesh, dcn_mesh, words):
    with pytest.raises(UserError, match=words):
        partitioning.arrange(in_slices(2, 4), partitioning.parse_mesh(mesh, 8), dcn_mesh)


def test_slices_of_different_sizes_make_no_mesh():
    with pytest.raises(UserError, match="slices of different sizes make no mesh: 3, 2 devices"):
        partitioning.arrange([*in_slices(2, 2), Device(4, 0)], partitioning.parse_mesh("", 6))


def test_one_slice_takes_no_dcn_mesh():
    with pytest.raises(UserError, match="--dcn_mesh=data=2 is for 2 slices, but there is 1"):
        partitioning.make_mesh(dcn_text="data=2")
    assert set(partitioning.slices_of(partitioning.make_mesh()).values()) == {1}


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
    with pytest.raises(UserError, match=r"--eval_batch_size=3 must be a multiple of 4 .*use 4$"):
        partitioning.check_batch_size(Mesh, "--eval_batch_size", 3)
    with pytest.raises(UserError, match=r"--train_batch_size=6 must be a multiple of 4 .*use 4 or 8"):
        partitioning.check_batch_size(Mesh, "--train_batch_size", 6)
    with pytest.raises(UserError, match="use 12"):
        partitioning.check_batch_size(Mesh, "--train_batch_size", 8, accumulation_steps=3)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [({"data": 8}, True), ({"data": 1}, False), ({"fsdp": 8}, False), ({"data": 4, "sequence": 2}, False)],
)
def test_a_mesh_of_data_alone_cuts_rows_only(sizes, expected):
    assert partitioning.cuts_rows_only(mesh_of(**sizes)) == expected


def test_lengths_are_checked_with_the_nearest_that_fit():
    mesh = SimpleNamespace(shape={"sequence": 4})
    partitioning.check_length(mesh, 128)
    with pytest.raises(UserError, match=r"--max_seq_length=30 must be a multiple of 4 \(sequence axis\): use 28 or 32"):
        partitioning.check_length(mesh, 30)


def test_one_process_feeds_all_rows():
    mesh = partitioning.make_mesh()
    assert partitioning.local_rows(mesh, 4).tolist() == [0, 1, 2, 3]
    batch = {"input_ids": np.arange(8).reshape(4, 2)}
    np.testing.assert_array_equal(partitioning.to_global_batch(mesh, batch, 4)["input_ids"], batch["input_ids"])


def cut(shape, spec, **sizes):
    """The PartitionSpec that cut_by_data gives an array."""
    sharding = NamedSharding(mesh_of(**sizes), PartitionSpec(*spec))
    leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
    return partitioning.cut_by_data({"kernel": leaf}, {"kernel": sharding})["kernel"].spec


@pytest.mark.parametrize(
    ("shape", "spec", "sizes", "expected"),
    [
        # The first dimension that is whole, whether nothing lies on it or an axis of size 1.
        ((256, 128), (), {"data": 8}, ("data", None)),
        ((256, 128), ("fsdp", "tensor"), {"data": 8}, ("data", "tensor")),
        ((256, 512), ("fsdp", "tensor"), {"data": 4, "fsdp": 2}, ("fsdp", "data")),
        ((12, 256, 1024), (None, "tensor"), {"data": 8, "tensor": 2}, (None, "tensor", "data")),
        # The first that the data axis divides.
        ((3, 256, 128), (), {"data": 8}, (None, "data", None)),
        # Not the last into parts that do not fill the lanes, nor what is too small, nor where nothing is whole.
        ((256, 256), ("fsdp", "tensor"), {"data": 4, "fsdp": 2}, ("fsdp", "tensor")),
        ((255, 129), (), {"data": 8}, ()),
        ((256, 128), ("fsdp", "tensor"), {"data": 2, "fsdp": 2, "tensor": 2}, ("fsdp", "tensor")),
        ((256, 128), ("fsdp", "tensor"), {"fsdp": 2}, ("fsdp", "tensor")),
        ((128, 127), (), {"data": 8}, ()),
        ((128, 128), (), {"data": 8}, ("data", None)),
    ],
)
def test_the_data_axis_cuts_what_is_whole(shape, spec, sizes, expected):
    assert tuple(cut(shape, spec, **sizes)) == expected


def test_the_dimension_on_the_data_axis():
    def dimension(*spec):
        return partitioning.data_dimension(NamedSharding(mesh_of(data=8), PartitionSpec(*spec)))

    assert (dimension("data", None), dimension(None, "data"), dimension("tensor", "fsdp", "data")) == (0, 1, 2)
    assert dimension() == dimension("fsdp", "tensor") == -1


def test_the_tensor_axis_cuts_no_head():
    partitioning.check_heads(mesh_of(data=8, tensor=4), 12)
    with pytest.raises(UserError, match=r"--mesh: tensor=8 does not divide the 12 heads of attention"):
        partitioning.check_heads(mesh_of(tensor=8), 12)


def constraints(function, mesh, *arrays):
    """The specs to which a function pins activations."""
    with jax.sharding.use_abstract_mesh(mesh):
        found = equations(function, *arrays, names=["sharding_constraint"])
    return [equation.params["sharding"].spec for equation in found]


def test_activations_are_pinned_under_a_mesh_only():
    x = jnp.zeros((8, 4))
    pin = lambda x: partitioning.constrain(x, "batch", None)
    assert pin(x) is x
    assert constraints(pin, mesh_of(data=4, fsdp=2), x) == [PartitionSpec(("data", "fsdp"), None)]


def test_what_is_cut_by_hand_pins_nothing():
    part = lambda x: partitioning.constrain(x, "batch", None)
    mapped = jax.shard_map(part, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), check_vma=False)
    assert constraints(mapped, mesh_of(data=4, fsdp=2), jnp.zeros((8, 4))) == []


def test_a_parameter_is_gathered_from_where_only_its_storage_is_cut():
    gather = lambda x: partitioning.whole(x, "embed", "mlp")
    assert constraints(gather, mesh_of(fsdp=2, tensor=4), jnp.zeros((8, 4))) == [PartitionSpec(None, "tensor")]


def test_the_numbers_of_rows():
    assert partitioning.row_numbers(3).tolist() == [0, 1, 2]
    mesh = partitioning.make_mesh("", jax.devices()[:1])
    with jax.set_mesh(mesh):
        assert partitioning.row_numbers(3).tolist() == [0, 1, 2]
        numbers = lambda: partitioning.row_numbers(3)
        mapped = jax.shard_map(numbers, in_specs=(), out_specs=PartitionSpec("data"), check_vma=False)
        assert equations(mapped, names=["axis_index"])


def test_rows_keep_their_numbers_in_parts():
    parts = partitioning.split_rows(jnp.arange(12), 3)
    assert parts.tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    for number, rows in enumerate(parts):
        with partitioning.part_of_batch(number, 3):
            assert partitioning.row_numbers(4).tolist() == rows.tolist()
    assert partitioning.row_numbers(2).tolist() == [0, 1]
