"""Reading the text of compiled programs: shapes, operands, what is called, and how often it runs."""

import pytest

from bert_jax import hlo_reading

LOOP = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(s32[])->s32[]}

%inner (p.0: f32[8]) -> f32[8] {
  %p.0 = f32[8]{0} parameter(0)
  ROOT %exp = f32[8]{0} exponential(%p.0), metadata={op_name="jit(f)/exp"}
}

%outer (p.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %nested = f32[8]{0} fusion(%p.1), kind=kLoop, calls=%inner
}

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %arg = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %x = f32[8]{0} get-tuple-element(%arg), index=1
  %fused = f32[8]{0} fusion(%x), kind=kLoop, calls=%outer, backend_config={"estimated_cycles":"70"}
  ROOT %pair = (s32[]{:T(128)}, f32[8]{0}) tuple(%i, %fused)
}

%condition (arg.1: (s32[], f32[8])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  %limit = s32[]{:T(128)} constant(12)
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

ENTRY %main (start: (s32[], f32[8])) -> (s32[], f32[8]) {
  %start = (s32[]{:T(128)}, /*index=1*/f32[8]{0}) parameter(0)
  ROOT %loop = (s32[]{:T(128)}, f32[8]{0}) while(%start), condition=%condition, body=%body
}
"""


def executed(text):
    return {instruction.name: times for _, instruction, times in hlo_reading.read(text).executed()}


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]", 4),
        ("f32[8,128]{1,0:T(8,128)S(1)}", 4096),
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", 30),
        ("(f32[2], (s8[3], u32[]{:S(2)}), /*index=2*/pred[7])", 8 + 3 + 4 + 7),
        ("f8e4m3fn[4]", 4),
        ("s4[6]", 6),
        ("c64[2]", 16),
        ("c128[2]", 32),
        ("token[]", 0),
        ("f32[0,4]", 0),
    ],
)
def test_bytes_of_shapes(shape, size):
    assert hlo_reading.shape_bytes(shape) == size


def test_parts_of_tuples_keep_their_layouts():
    shape = "((f32[4,8]{1,0:T(8,128)}), f32[2,8]{1,0:T(8,128)S(1)}, /*index=2*/s32[]{:S(2)})"
    assert hlo_reading.shape_parts(shape) == [
        "(f32[4,8]{1,0:T(8,128)})",
        "f32[2,8]{1,0:T(8,128)S(1)}",
        "s32[]{:S(2)}",
    ]
    assert hlo_reading.shape_parts("f32[4,8]{1,0}") == ["f32[4,8]{1,0}"]
    assert hlo_reading.shape_parts("()") == []


def test_instructions_have_shape_operands_and_attributes():
    program = hlo_reading.read(LOOP)
    fused = program.computations["body"]["fused"]
    assert (fused.opcode, fused.shape, fused.operands, fused.bytes) == ("fusion", "f32[8]{0}", ("x",), 32)
    assert fused.cycles == 70 and fused.called("calls") == ["outer"] and fused.op_name == ""
    assert [source.name for source in program.operands("body", fused)] == ["x"]
    assert program.entry == "main" and program.computations["main"]["start"].bytes == 36


def test_fusions_are_opened_to_the_bottom():
    program = hlo_reading.read(LOOP)
    fused = program.computations["body"]["fused"]
    assert [part.name for part in program.inside(fused)] == ["p.1", "nested", "p.0", "exp"]
    assert [place for place, _ in program.fused(fused)] == ["outer", "outer", "inner", "inner"]
    assert program.computations["inner"]["exp"].op_name == "jit(f)/exp"


def test_bodies_run_as_often_as_the_constant_of_the_condition():
    times = executed(LOOP)
    assert (times["fused"], times["less"], times["loop"]) == (12, 12, 1)
    assert "exp" not in times


def test_the_compilers_word_on_trips_comes_first():
    text = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    assert executed(text)["fused"] == 5


def test_a_constant_inside_a_fused_condition_counts():
    text = LOOP.replace(
        "  %limit = s32[]{:T(128)} constant(12)\n  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT\n",
        "  ROOT %less = pred[]{:T(512)} fusion(%i.1), kind=kLoop, calls=%compared\n",
    ).replace(
        "%inner (",
        "%compared (q: s32[]) -> pred[] {\n  %q = s32[] parameter(0)\n  %limit = s32[] constant(12)\n"
        "  ROOT %lt = pred[] compare(%q, %limit), direction=LT\n}\n\n%inner (",
        1,
    )
    assert executed(text)["fused"] == 12


def test_loops_of_unknown_length_are_counted_once_and_known_as_such():
    text = LOOP.replace("constant(12)", "copy(%i.1)")
    program = hlo_reading.read(text)
    assert program.trip_count(program.computations["main"]["loop"]) is None
    assert executed(text)["fused"] == 1


def test_calls_and_branches_are_read_in_their_place():
    text = LOOP.replace(
        "ROOT %loop = (s32[]{:T(128)}, f32[8]{0}) while(%start), condition=%condition, body=%body",
        "%y = f32[8]{0} get-tuple-element(%start), index=1\n"
        "  %called = f32[8]{0} call(%y), to_apply=%outer\n"
        "  ROOT %one = f32[8]{0} conditional(%c, %y, %y), branch_computations={%inner, %outer}",
    )
    assert [i.name for _, i, _ in hlo_reading.read(text).executed()] == [
        *("start", "y", "p.1", "nested", "p.0", "exp", "p.1", "nested")
    ]


@pytest.mark.parametrize(
    ("opcode", "work"),
    [("all-gather-start", "all-gather"), ("slice-done", "slice"), ("async-update", "async"), ("copy", "copy")],
)
def test_work_is_the_opcode_without_start_and_end(opcode, work):
    assert hlo_reading.Instruction("x", "f32[]", opcode, (), "").work == work


@pytest.mark.parametrize(("rest", "cycles"), [('{"estimated_cycles":"3"}', 3), ('{"estimated_cycles":"0"}', None)])
def test_no_cycles_are_no_estimate(rest, cycles):
    assert hlo_reading.Instruction("x", "f32[]", "rng-bit-generator", (), rest).cycles == cycles


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="no entry computation"):
        hlo_reading.read("module @jit_f {\n  func.func public @main() {\n  }\n}\n")
