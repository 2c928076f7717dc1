"""What a function consists of, without running it, and meshes without devices to look at it under."""

import jax
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType

from bert_jax.partitioning import MESH_AXES


def mesh_of(**sizes):
    """A mesh without devices; an axis not named has size 1."""
    shape = tuple(sizes.get(name, 1) for name in MESH_AXES)
    return AbstractMesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * len(shape))


def equations(function, *arrays, names):
    """The operations of these names that a function does, in all the functions within it too."""

    def of(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in names:
                yield equation
            for inner in jaxprs_in_params(equation.params):
                yield from of(inner)

    return list(of(jax.make_jaxpr(function)(*arrays).jaxpr))
