"""The mesh, and the one table that says which logical axis lies on which of its axes."""

import collections
import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from input_pipeline.errors import UserError

MESH_AXES = ("data", "fsdp", "sequence", "tensor")

# Parameters: "embed" is the hidden axis of every weight, cut by fsdp; "vocab", "heads" and "mlp" are cut by tensor.
# Activations between layers: their rows are cut by data and fsdp, their length by sequence; attention gathers keys and
# values. What the tensor axis cuts follows from the weights.
LOGICAL_AXES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "length": "sequence",
    "vocab": "tensor",
    "heads": "tensor",
    "mlp": "tensor",
    "embed": "fsdp",
    "position": None,
    "layers": None,
}


def parse_mesh(text: str, num_devices: int) -> dict[str, int]:
    """Reads --mesh ("data=4,tensor=2"); an axis not named has size 1, and "" means all devices on data.

    One axis may be -1: it takes what the others leave.

    Raises:
        UserError: unknown axis, bad size, or sizes whose product is not the number of devices.
    """
    if not text:
        return dict.fromkeys(MESH_AXES, 1) | {"data": num_devices}
    return _axis_sizes("--mesh", text, num_devices, "device")


def _axis_sizes(flag: str, text: str, total: int, what: str) -> dict[str, int]:
    """Axis -> size, 1 where it is not named; their product is `total`, the number of what lies on them."""
    sizes, named = dict.fromkeys(MESH_AXES, 1), set()
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = name.strip()
        if name not in MESH_AXES or name in named:
            raise UserError(f"{flag}={text}: axis {name!r} should be one of {', '.join(MESH_AXES)}, each at most once")
        named.add(name)
        try:
            sizes[name] = int(value)
        except ValueError:
            sizes[name] = 0
        if sizes[name] < 1 and sizes[name] != -1:
            raise UserError(f"{flag}={text}: {name} needs a size of at least 1 (or -1 for the rest), not {value!r}")
    if list(sizes.values()).count(-1) > 1:
        raise UserError(f"{flag}={text}: only one axis may be -1")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    there = f"there {'are' if total > 1 else 'is'} {total}"
    if -1 in sizes.values() and total % fixed:
        raise UserError(f"{flag}={text}: {fixed} does not divide the number of {what}s: {there}")
    sizes = {name: total // fixed if size == -1 else size for name, size in sizes.items()}
    if (product := math.prod(sizes.values())) != total:
        raise UserError(
            f"{flag}={text} is for {product} {what}{'s' * (product > 1)}, but {there}: the product of the sizes must "
            f"be the number of {what}s"
        )
    return sizes


def parse_dcn_mesh(text: str, sizes: dict[str, int], num_slices: int) -> dict[str, int]:
    """Reads --dcn_mesh ("data=2"): how many slices lie on each axis of the mesh, which is slow between them.

    With "" as many lie on data as can, and the rest on fsdp: what tensor exchanges is needed at once.

    Args:
        sizes: of the whole mesh.

    Raises:
        UserError: unknown axis, bad size, a product that is not the number of slices, or sizes that do not divide
            those of the mesh.
    """
    if text:
        slices = _axis_sizes("--dcn_mesh", text, num_slices, "slice")
    else:
        on_data = math.gcd(sizes["data"], num_slices)
        slices = dict.fromkeys(MESH_AXES, 1) | {"data": on_data, "fsdp": num_slices // on_data}
    for name, count in slices.items():
        if sizes[name] % count:
            problem = f"--dcn_mesh={text}: {name}={count} does not divide {name}={sizes[name]} of the mesh"
            if not text:
                problem = (
                    f"{num_slices} slices do not lie on data={sizes['data']} and fsdp={sizes['fsdp']} of the mesh: "
                    "make one of them a multiple, or say by --dcn_mesh on which axes they lie"
                )
            raise UserError(problem)
    return slices


def slice_of(device: Any) -> int:
    """The number of the slice of a device; devices without any are in one."""
    return getattr(device, "slice_index", 0) or 0


def make_mesh(text: str = "", devices: list[jax.Device] | None = None, dcn_text: str = "") -> Mesh:
    """Makes the mesh of --mesh and --dcn_mesh over all devices (of all processes)."""
    devices = jax.devices() if devices is None else devices
    sizes = parse_mesh(text, len(devices))
    return Mesh(arrange(devices, sizes, dcn_text), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def arrange(devices: Sequence[Any], sizes: dict[str, int], dcn_text: str = "") -> np.ndarray:
    """Devices in the shape of a mesh, so that neighbours have links to each other.

    Raises:
        UserError: slices that do not fit (see parse_dcn_mesh).
    """
    counts = collections.Counter(map(slice_of, devices))
    slices = parse_dcn_mesh(dcn_text, sizes, len(counts))
    shape = tuple(sizes[name] for name in MESH_AXES)
    if len(counts) == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    if len(set(counts.values())) > 1:
        raise UserError(f"slices of different sizes make no mesh: {', '.join(map(str, counts.values()))} devices")
    outer = tuple(slices[name] for name in MESH_AXES)
    inner = tuple(size // count for size, count in zip(shape, outer))
    return mesh_utils.create_hybrid_device_mesh(inner, outer, devices, allow_split_physical_axes=True)


def slices_of(mesh: Mesh) -> dict[str, int]:
    """Axis -> how many slices lie on it."""
    numbers = np.vectorize(slice_of, otypes=[int])(mesh.devices)
    lines = {
        name: numbers[(0,) * i + (slice(None),) + (0,) * (numbers.ndim - i - 1)] for i, name in enumerate(mesh.shape)
    }
    return {name: len(set(line.tolist())) for name, line in lines.items()}


def partition_spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """Looks logical axis names up in the table; None stays whole."""
    return PartitionSpec(*(LOGICAL_AXES[axis] if axis else None for axis in axes))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pins an activation to its place under the mesh in force; nothing without one, and within jax.shard_map."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return x
    if "length" in axes and x.shape[axes.index("length")] % mesh.shape["sequence"]:
        # Where lengths vary, one that cannot be cut stays whole.
        axes = tuple(None if axis == "length" else axis for axis in axes)
    return jax.lax.with_sharding_constraint(x, partition_spec(axes))


def whole(parameter: jax.Array, *axes: str | None) -> jax.Array:
    """A parameter with logical axes as its use needs it: gathered from where only its storage is cut."""
    return constrain(parameter, *(None if axis == "embed" else axis for axis in axes))


# Which of how many parts of a batch, one after the other, is being traced.
_part: contextvars.ContextVar[tuple[jax.Array | int, int]] = contextvars.ContextVar("part", default=(0, 1))


@contextlib.contextmanager
def part_of_batch(number: jax.Array | int, count: int) -> Iterator[None]:
    """Says that what is traced in it sees one of the `split_rows` of a batch."""
    token = _part.set((number, count))
    try:
        yield
    finally:
        _part.reset(token)


def split_rows(x: jax.Array, count: int) -> jax.Array:
    """[rows, ...] -> [count, rows / count, ...]: row i is in part i modulo count, so that none leaves its device."""
    x = x.reshape(-1, count, *x.shape[1:])
    return constrain(jnp.swapaxes(x, 0, 1), None, "batch", *(None,) * (x.ndim - 2))


def row_numbers(rows: int) -> jax.Array:
    """The numbers, in the whole batch, of the rows of an array: uint32 [rows].

    It knows of jax.shard_map over data and of part_of_batch.
    """
    part, count = _part.get()
    row = jax.lax.iota(jnp.uint32, rows)
    if "data" in jax.sharding.get_abstract_mesh().manual_axes:
        row = row + jax.lax.axis_index("data").astype(jnp.uint32) * jnp.uint32(rows)
    return row if count == 1 else row * jnp.uint32(count) + jnp.uint32(part)


def parameter_shardings(mesh: Mesh, boxed_parameters: Any) -> Any:
    """Maps parameters that carry logical names (flax `Partitioned` boxes) to a tree of NamedShardings."""
    names = nn.get_partition_spec(boxed_parameters)
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, partition_spec(tuple(spec))),
        names,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


# Smaller arrays are not worth a transfer of their own.
_WORTH_CUTTING = 2**14
_LANES = 128


def cut_by_data(shapes: Any, shardings: Any) -> Any:
    """Shardings that lie on the data axis too, in the first dimension that is whole so far and that it divides.

    The last one is cut only into parts that fill the lanes of a TPU.
    """

    def cut(leaf, sharding):
        size = sharding.mesh.shape["data"]
        spec = list(sharding.spec) + [None] * (leaf.ndim - len(sharding.spec))
        if size == 1 or leaf.size < _WORTH_CUTTING:
            return sharding
        for i, axis in enumerate(spec):
            parts = size * (_LANES if i == leaf.ndim - 1 else 1)
            if (axis is None or sharding.mesh.shape[axis] == 1) and leaf.shape[i] % parts == 0:
                return NamedSharding(sharding.mesh, PartitionSpec(*spec[:i], "data", *spec[i + 1 :]))
        return sharding

    return jax.tree.map(cut, shapes, shardings)


def data_dimension(sharding: NamedSharding) -> int:
    """The dimension that lies on the data axis, -1 for none."""
    return list(sharding.spec).index("data") if "data" in sharding.spec else -1


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over data and fsdp; everything else whole."""
    return NamedSharding(mesh, PartitionSpec(LOGICAL_AXES["batch"]))


def check_divisible(mesh: Mesh, shapes: Any, shardings: Any) -> None:
    """Raises UserError for the first parameter that its mesh axes do not divide."""

    def check(path, leaf, sharding):
        for size, axis in zip(leaf.shape, sharding.spec):
            if axis is not None and size % mesh.shape[axis]:
                raise UserError(
                    f"--mesh: {axis}={mesh.shape[axis]} does not divide the axis of size {size} of "
                    f"{jax.tree_util.keystr(path, simple=True, separator='/')}"
                )

    jax.tree_util.tree_map_with_path(check, shapes, shardings)


def check_heads(mesh: Mesh, num_heads: int) -> None:
    """Raises UserError when the tensor axis would cut through a head of attention."""
    if num_heads % mesh.shape["tensor"]:
        raise UserError(f"--mesh: tensor={mesh.shape['tensor']} does not divide the {num_heads} heads of attention")


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts a batch is cut."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def cuts_rows_only(mesh: Mesh) -> bool:
    """Whether there are several devices, all on the data axis: each has all parameters and some of the rows."""
    return 1 < mesh.size == mesh.shape["data"]


def check_batch_size(mesh: Mesh, flag: str, batch_size: int, accumulation_steps: int = 1) -> None:
    """Refuses a global batch that does not split evenly, and names the nearest that do."""
    parts = batch_shards(mesh) * accumulation_steps
    if batch_size < 1 or batch_size % parts:
        why = f"{batch_shards(mesh)} (data axis {mesh.shape['data']} x fsdp axis {mesh.shape['fsdp']})"
        if accumulation_steps > 1:
            why += f" x {accumulation_steps} accumulation steps"
        raise UserError(f"{flag}={batch_size} must be a multiple of {why}: use {_nearest(batch_size, parts)}")


def check_length(mesh: Mesh, length: int) -> None:
    """Refuses a --max_seq_length that the sequence axis does not cut evenly, and names the nearest that it does."""
    parts = mesh.shape["sequence"]
    if length % parts:
        raise UserError(
            f"--max_seq_length={length} must be a multiple of {parts} (sequence axis): use {_nearest(length, parts)}"
        )


def _nearest(size: int, parts: int) -> str:
    """The multiples of `parts` next to `size`."""
    below = size // parts * parts
    return f"{below} or {below + parts}" if below > 0 else str(parts)


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a global batch that this process feeds to its devices, ascending, int64 [rows].

    They need not follow each other: on a slice of a TPU pod the devices of a host lie side by side in two or three
    dimensions, but the mesh goes through them line by line.
    """
    needed = np.zeros(batch_size, bool)
    for index in batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values():
        needed[index[0]] = True
    return np.flatnonzero(needed)


def to_global_batch(mesh: Mesh, batch: dict[str, np.ndarray], batch_size: int) -> dict[str, jax.Array]:
    """Makes global arrays of [batch_size, ...] from this process's rows, which are those of `local_rows`."""
    sharding = batch_sharding(mesh)
    places = np.cumsum(np.bincount(local_rows(mesh, batch_size), minlength=batch_size)) - 1

    def to_global(rows):
        def shard(index):
            numbers = places[index[0]]
            return rows[numbers[0] : numbers[-1] + 1]

        return jax.make_array_from_callback((batch_size, *rows.shape[1:]), sharding, shard)

    return {name: to_global(rows) for name, rows in batch.items()}
