"""Costs read from small programs whose costs are known."""

import pytest

from bert_jax import hlo_reading, program_costs
from bert_jax.chips import Chip
from bert_jax.collectives import Placement

# 1000 FLOPs, 10 bytes of memory and one cycle a second.
CHIP = Chip("toy", 1000.0, 1.0, 1e6, 10.0, 1.0, 1.0, 2, 1, 4)
ALONE = Placement({"data": 1, "fsdp": 1, "tensor": 1}, [(0, 0)])


def program(entry, others=""):
    text = others + "ENTRY %main (x: f32[4,8]) -> f32[] {\n"
    for number, shape in enumerate(("f32[4,8]", "bf16[8,16]", "s32[2]")):
        text += f"  %p{number} = {shape} parameter({number})\n"
    return hlo_reading.read(text + "".join(f"  {line}\n" for line in entry) + "}\n")


def fusion(*lines, estimate=True, shape="f32[4,8]"):
    """A program of one fusion of these lines, whose parameters are %p0 of the entry."""
    others = "%inside (q: f32[4,8]) -> f32[] {\n  %q = f32[4,8] parameter(0)\n"
    others += "".join(f"  {line}\n" for line in lines) + "}\n\n"
    rest = ', backend_config={"estimated_cycles":"7"}' if estimate else ""
    return program([f"ROOT %f = {shape} fusion(%p0), kind=kLoop, calls=%inside{rest}"], others)


def costs(*entry, others="", placement=ALONE):
    return program_costs.costs(program(entry, others), CHIP, placement)


def flops(*entry):
    return costs(*entry).matmul_flops


def test_flops_of_dots():
    line = "ROOT %d = f32[4,16] dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    assert flops(line) == 2 * 4 * 8 * 16
    batched = "ROOT %d = f32[4,8] dot(%p0, %p0), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={}"
    assert flops(batched) == 2 * 4 * 8


def convolution(shape, left, right, attributes):
    return (
        f"%l = {left} copy(%p0)",
        f"%r = {right} copy(%p0)",
        f"ROOT %c = {shape} convolution(%l, %r), {attributes}",
    )


@pytest.mark.parametrize(
    ("shape", "left", "right", "attributes", "expected"),
    [
        # A plain product.
        ("f32[4,16]", "f32[4,8]", "f32[8,16]", "dim_labels=bf_io->bf", 2 * 4 * 8 * 16),
        # The window goes over a contracted axis: x[4,3,8] y[3,8,16].
        ("f32[4,1,16]", "f32[4,3,8]", "f32[3,8,16]", "window={size=3}, dim_labels=b0f_0io->b0f", 2 * 4 * 3 * 8 * 16),
        # A batched product: of the 5 places of the window only the one on the diagonal meets the input.
        (
            *("f32[5,4,16]", "f32[5,4,8]", "f32[5,8,16]"),
            "window={size=5 pad=4_4 stride=4 lhs_dilate=5}, dim_labels=0bf_0io->0bf",
            2 * 5 * 4 * 8 * 16,
        ),
        # Three of 3, then padding at both ends: 2 + 3 + 3 + 2 hits.
        ("f32[1,4,1]", "f32[1,4,1]", "f32[3,1,1]", "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * 10),
        # Each second input, negative padding.
        ("f32[1,2,1]", "f32[1,5,1]", "f32[2,1,1]", "window={size=2 stride=2 pad=-1_0}, dim_labels=b0f_0io->b0f", 8),
    ],
)
def test_flops_of_convolutions(shape, left, right, attributes, expected):
    assert flops(*convolution(shape, left, right, attributes)) == expected


def test_products_in_fusions_and_loops_are_all_counted():
    others = (
        "%inside (q: f32[4,8]) -> f32[4,4] {\n  %q = f32[4,8] parameter(0)\n"
        "  ROOT %d = f32[4,4] dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n}\n\n"
        "%body (q: f32[4,8]) -> f32[4,8] {\n  %b = f32[4,8] parameter(0)\n"
        '  ROOT %f = f32[4,4] fusion(%b), kind=kOutput, calls=%inside, backend_config={"estimated_cycles":"9"}\n}\n\n'
        "%condition (q: f32[4,8]) -> pred[] {\n  %n = s32[] constant(3)\n"
        "  ROOT %c = pred[] compare(%n, %n), direction=LT\n}\n\n"
    )
    found = costs("ROOT %w = f32[4,8] while(%p0), condition=%condition, body=%body", others=others)
    assert found.matmul_flops == 3 * 2 * 4 * 4 * 8
    assert found.cycles["matmul"] == 27 and sum(found.cycles.values()) == 27
    assert found.loops_counted_once == 0


def test_wrapped_work_is_counted_once():
    others = (
        "%inside (q: f32[4,8]) -> f32[4,4] {\n  %q = f32[4,8] parameter(0)\n"
        "  ROOT %d = f32[4,4] dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n}\n\n"
    )
    lines = ("%s = ((f32[4,8]), f32[4,4], u32[]) async-start(%p0), calls=%inside", "ROOT %e = f32[4,4] async-done(%s)")
    assert costs(*lines, others=others).matmul_flops == 2 * 4 * 4 * 8


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["%d = f32[4,4] dot(%q, %q), lhs_contracting_dims={1}", "ROOT %a = f32[4,4] add(%d, %d)"], "matmul"),
        (["ROOT %a = f32[4,8] multiply(%q, %q)"], "elementwise"),
        (
            ["%e = f32[4,8] exponential(%q)", "ROOT %r = f32[4] reduce(%e, %z), dimensions={1}, to_apply=%s"],
            "reduction",
        ),
        (["%t = f32[8,4] transpose(%q), dimensions={1,0}", "ROOT %c = bf16[8,4] convert(%t)"], "copies"),
        (
            ["%a = u32[4] xor(%q, %q)", "%b = u32[4] shift-left(%a, %a)", "ROOT %c = u32[4] add(%b, %b)"],
            "random numbers",
        ),
        (['ROOT %a = f32[4,8] add(%q, %q), metadata={op_name="jit(train_step)/optimizer/add"}'], "optimizer"),
        (['ROOT %a = f32[4,8] add(%q, %q), metadata={op_name="jit(train_step)/my_optimizer/add"}'], "elementwise"),
    ],
)
def test_kinds_of_work(lines, kind):
    cycles = program_costs.costs(fusion(*lines), CHIP, ALONE).cycles
    assert {name: count for name, count in cycles.items() if count} == {kind: 7}


def unaccounted(found):
    return {row.what: (row.count, row.bytes, row.seconds, row.overlapped) for row in found.unaccounted}


TABLE, ROWS = 4 * 4 * 8, 4 * 2 * 8


@pytest.mark.parametrize(
    ("line", "what", "moved"),
    [
        ("gather(%p0, %p2), offset_dims={1}", "gathers", 2 * ROWS + 8),
        ("scatter(%p0, %p2, %p0), to_apply=%s", "scatters", ROWS + 2 * TABLE + 8),
        ("sort(%p0), dimensions={0}, to_apply=%s", "sort", 4 * (ROWS + TABLE)),
        ("rng-bit-generator(%p2), algorithm=rng_three_fry", "random bits", ROWS + 8),
        ('rng-bit-generator(%p2), backend_config={"estimated_cycles":"0"}', "random bits", ROWS + 8),
        ('custom-call(%p0), custom_call_target="tpu_custom_call"', "custom kernels", ROWS + TABLE),
        ('custom-call(%p0), custom_call_target="ZeroCrop"', "the compiler's own calls (ZeroCrop)", ROWS + TABLE),
        ("add(%p0, %p0)", "scalars", ROWS + 2 * TABLE),
    ],
)
def test_bounds_by_bytes_of_what_has_no_estimate(line, what, moved):
    found = costs(f"ROOT %u = f32[2,8] {line}")
    assert unaccounted(found) == {what: (1, moved, moved / 10.0, False)}
    assert program_costs.total_seconds(found, CHIP) == moved / 10.0


def test_large_work_without_an_estimate_is_no_scalar():
    assert unaccounted(costs("ROOT %u = f32[64,64] broadcast(%p0)"))["others"][1] == 4 * 64 * 64 + TABLE


def test_a_gather_that_is_summed_at_once_reads_its_rows_all_the_same():
    lines = ("%g = f32[64,8] gather(%q, %i), offset_dims={1}", "ROOT %r = f32[8] reduce(%g, %z), to_apply=%s")
    found = program_costs.costs(fusion(*lines, estimate=False, shape="f32[8]"), CHIP, ALONE)
    assert unaccounted(found)["gathers"][1] == 4 * 8 + 4 * 64 * 8


def test_flops_bound_what_has_no_estimate_too():
    line = "ROOT %d = f32[4,4] dot(%p0, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    slow = CHIP._replace(flops_per_second=1.0)
    found = program_costs.costs(program([line]), slow, ALONE)
    assert unaccounted(found)["matrix products"][2] == 2 * 4 * 4 * 8


@pytest.mark.parametrize(
    ("told", "moved", "seconds"),
    [
        ('"flops":"50000","transcendentals":"7"', 16 + TABLE, 50.0),
        ('"flops":"5000","bytes_accessed":"900"', 900, 90.0),
        ('"flops":"5000","bytes_accessed":"1"', 16 + TABLE, (16 + TABLE) / 10),
    ],
)
def test_kernels_cost_what_they_tell(told, moved, seconds):
    config = 'backend_config={"custom_call_config":{"body":"TUzvUg==","cost_estimate":{' + told + '},"layout":true}}'
    line = f'ROOT %k = f32[4] custom-call(%p0), custom_call_target="tpu_custom_call", {config}'
    assert unaccounted(costs(line)) == {"custom kernels": (1, moved, seconds, False)}


@pytest.mark.parametrize(
    ("shape", "operand", "moved"),
    [
        ("((f32[4,8]{1,0}), f32[2,8]{1,0:S(1)}, s32[]{:S(2)}) slice-start", "slice", ROWS),
        ("(f32[4,8]{1,0:S(1)}, f32[4,8]{1,0}, u32[]{:S(2)}) copy-start", "copy", TABLE),
        ("(f32[4,8]{1,0}, f32[4,8]{1,0}, u32[]{:S(2)}) copy-start", "copy", 2 * TABLE),
        ("((f32[4,8]{1,0}, s32[]{:S(6)}), f32[2,8]{1,0:S(1)}, u32[]) dynamic-slice-start", "dynamic-slice", ROWS),
        ("(f32[4,8]{1,0:S(1)}, f32[4,8]{1,0:S(1)}, u32[]{:S(2)}) copy-start", "copy", 0),
    ],
)
def test_copies_beside_other_work_cost_what_leaves_or_enters_hbm(shape, operand, moved):
    found = costs(f"%s = {shape}(%p0)", f"ROOT %e = f32[4,8] {operand}-done(%s)")
    assert unaccounted(found) == {"copies beside other work (DMA)": (1, moved, moved / 10.0, True)}


def test_names_for_memory_are_free():
    lines = (
        '%c = f32[4,8] custom-call(%p0), custom_call_target="ConcatBitcast"',
        "%t = (f32[4,8]) tuple(%c)",
        "%g = f32[4,8] get-tuple-element(%t), index=0",
        "ROOT %b = f32[32] bitcast(%g)",
    )
    found = costs(*lines)
    assert found.unaccounted == [] and program_costs.total_seconds(found, CHIP) == 0.0


def test_the_time_of_a_step():
    """7 s of estimated work, 0.8 s of a gather alone; a copy of 25.6 s takes longer; 8 s of 2 x 4 bytes to another."""
    lines = (
        '%f = f32[4,8] negate(%p0), backend_config={"estimated_cycles":"7"}',
        "%g = f32[] gather(%p2, %p2)",
        "%r = f32[] all-reduce(%g), replica_groups={{0,1}}, to_apply=%s",
        "%s = (f32[8,8], f32[8,8], u32[]) copy-start(%p0)",
        "ROOT %e = f32[8,8] copy-done(%s)",
    )
    placement = Placement({"data": 2, "fsdp": 1, "tensor": 1}, [(0, 0), (1, 0)])
    found = costs(*lines, placement=placement)
    assert program_costs.total_seconds(found, CHIP) == pytest.approx(2 * 256 / 10 + 4.0)
    found = costs(*lines[:3], placement=placement)
    assert program_costs.total_seconds(found, CHIP) == pytest.approx(7 + (4 + 4) / 10 + 4.0)


def test_a_device_that_is_half_a_chip_has_half_its_memory_bandwidth():
    halves = Placement({"data": 2, "fsdp": 1, "tensor": 1}, [(0, 0), (0, 0)])
    found = costs("ROOT %u = f32[2,8] rng-bit-generator(%p2)", placement=halves)
    assert unaccounted(found)["random bits"][2] == (ROWS + 8) / 5.0
