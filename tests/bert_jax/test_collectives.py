"""Transfers between devices: their groups, mesh axes, bytes, and what the links bound."""

import pytest

from bert_jax import collectives, hlo_reading, program_costs
from bert_jax.chips import CHIPS, Chip

# A cycle takes a second, and a link carries 100 bytes in it, the way to other slices 10; lines of 4 are rings.
CHIP = Chip("toy", 1000.0, 1.0, 1e6, 10_000.0, 100.0, 10.0, 2, 1, 4)
GRID = {"data": 2, "fsdp": 1, "tensor": 4}
PLACES = [(x, y) for x in range(2) for y in range(4)]
PLACEMENT = collectives.Placement(GRID, PLACES)


def program(lines):
    return hlo_reading.read(
        "%sum (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
        "  ROOT %s = f32[] add(%a, %b)\n}\n\n"
        "ENTRY %main (x: f32[100], h: bf16[100]) -> f32[100] {\n  %x = f32[100] parameter(0)\n"
        "  %h = bf16[100] parameter(1)\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
    )


def found(*lines, placement=PLACEMENT):
    return list(collectives.collectives(program(lines), CHIP, placement))


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups={{0,2},{1,3}}", [0, 2]),
        ("replica_groups={{0,1,2,3}}, to_apply=%sum", [0, 1, 2, 3]),
        ("replica_groups=[2,4]<=[8]", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [0, 4]),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", [0, 1, 4, 5]),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", [0, 1, 2, 3]),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", [0, 4]),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", [0, 2]),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}", [0, 1]),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}, use_global", [0, 1]),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'c'}", [0, 2, 4, 6]),
        ("source_target_pairs={{0,3},{3,0}}", [0, 3]),
        ("replica_groups={}", list(range(8))),
    ],
)
def test_groups_in_all_their_forms(text, group):
    assert sorted(collectives.first_group(text, 8)) == group


@pytest.mark.parametrize(
    ("group", "axes"),
    [([0, 1, 2, 3], "tensor"), ([0, 4], "data"), (list(range(8)), "data+tensor"), ([1, 4], "data+tensor")],
)
def test_axes_of_groups(group, axes):
    assert collectives.group_axes(group, GRID) == axes


def test_bytes_and_times_of_each_kind():
    """Over tensor: four devices on a ring of two links' ways, 200 bytes a second, of which 3/4 of all bytes go."""
    groups = "replica_groups=[2,4]<=[8]"
    rows = found(
        f"%ar = f32[100] all-reduce(%x), {groups}, to_apply=%sum",
        f"%ag = f32[400] all-gather(%x), {groups}, dimensions={{0}}",
        f"%rs = bf16[25] reduce-scatter(%h), {groups}, dimensions={{0}}, to_apply=%sum",
        f"%aa = f32[100] all-to-all(%x), {groups}",
        "ROOT %cp = f32[100] collective-permute(%x), source_target_pairs={{0,1},{1,0}}",
    )
    assert [(row.opcode, row.axes, row.bytes, row.dtype) for row in rows] == [
        ("all-reduce", "tensor", 400, "f32"),
        ("all-gather", "tensor", 1600, "f32"),
        ("reduce-scatter", "tensor", 200, "bf16"),
        ("all-to-all", "tensor", 400, "f32"),
        ("collective-permute", "tensor", 400, "f32"),
    ]
    # The pair of the permutation are neighbours on a line.
    assert [row.seconds for row in rows] == pytest.approx([3.0, 6.0, 0.75, 1.5, 4.0])
    assert not any(row.hidden_seconds for row in rows)


def test_operands_of_one_transfer_are_added():
    (row,) = found("ROOT %ar = (f32[100], bf16[100]) all-reduce(%x, %h), replica_groups={{0,4}}, to_apply=%sum")
    assert (row.axes, row.bytes, row.dtype) == ("data", 600, "bf16+f32")


def test_work_between_start_and_end_hides_a_transfer():
    lines = [
        "%s = (f32[100], f32[400]) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={0}",
        '%w = f32[100] fusion(%x), kind=kLoop, calls=%sum, backend_config={"estimated_cycles":"4"}',
        "%d = f32[400] all-gather-done(%s)",
        '%v = f32[100] fusion(%x), kind=kLoop, calls=%sum, backend_config={"estimated_cycles":"9"}',
    ]
    (row,) = found(*lines)
    assert (row.opcode, row.bytes, row.seconds, row.hidden_seconds) == ("all-gather", 1600, 6.0, 4.0)
    lines[1] = lines[1].replace('"4"', '"40"')
    assert found(*lines)[0].hidden_seconds == 6.0


def test_a_transfer_through_several_fusions_is_one_beside_their_work():
    gather = "%g = f32[400] all-gather(%p), channel_id=15, replica_groups=[2,4]<=[8], dimensions={0}"
    text = f"%both (p: f32[100]) -> f32[400] {{\n  %p = f32[100] parameter(0)\n  ROOT {gather}\n}}\n\n"
    text += "ENTRY %main (x: f32[100]) -> f32[400] {\n  %x = f32[100] parameter(0)\n"
    for name, cycles in (("start", None), ("a", 2), ("b", 3), ("done", None)):
        estimate = f', backend_config={{"estimated_cycles":"{cycles}"}}' if cycles else ""
        text += f"  %{name} = f32[400] fusion(%x), kind=kCustom, calls=%both{estimate}\n"
    (row,) = collectives.collectives(hlo_reading.read(text + "}\n"), CHIP, PLACEMENT)
    assert (row.axes, row.bytes, row.seconds, row.hidden_seconds) == ("tensor", 1600, 6.0, 5.0)
    found = program_costs.costs(hlo_reading.read(text + "}\n"), CHIP, PLACEMENT)
    assert found.unaccounted == [] and sum(found.cycles.values()) == 5
    assert program_costs.total_seconds(found, CHIP) == 5 + 1


def test_devices_alone_send_nothing():
    assert found("ROOT %ar = f32[100] all-reduce(%x), replica_groups={{0},{1}}, to_apply=%sum") == []


@pytest.mark.parametrize(
    ("group", "bytes_per_second"),
    [
        ([0, 4], 100.0),  # a line of two
        ([0, 1], 100.0),  # part of a ring is a line
        ([0, 1, 2, 3], 200.0),  # a whole ring
        (list(range(8)), 300.0),  # the ring and the line at once
    ],
)
def test_speed_by_the_links_of_a_group(group, bytes_per_second):
    assert collectives.speed(CHIP, PLACEMENT, group) == bytes_per_second


def test_two_devices_of_a_chip_share_its_links():
    placement = collectives.Placement({"data": 8, "fsdp": 1, "tensor": 1}, [(x, 0) for x in range(4) for _ in range(2)])
    assert collectives.speed(CHIP, placement, list(range(8))) == 200.0
    assert collectives.speed(CHIP, placement, [0, 2, 4, 6]) == 100.0
    assert collectives.speed(CHIP, placement, [0, 1]) == CHIP.hbm_bytes_per_second


@pytest.mark.parametrize(
    ("kind", "sizes", "speed"),
    [("v5e", (4, 4), 100e9), ("v5e", (16, 16), 200e9), ("v4", (4, 4, 4), 300e9), ("v5p", (2, 2, 1), 200e9)],
)
def test_speed_of_whole_slices(kind, sizes, speed):
    """All links of a chip together have half of the bidirectional bandwidth that is published, where rings close."""
    places = [()]
    for size in sizes:
        places = [(*place, i) for place in places for i in range(size)]
    placement = collectives.Placement({"data": len(places)}, places)
    assert collectives.speed(CHIPS[kind], placement, list(range(len(places)))) == speed


def test_sums_by_kind_and_axes():
    line = "all-reduce(%x), replica_groups={{0,4}}, to_apply=%sum"
    rows = found(f"%a = f32[100] {line}", f"ROOT %b = f32[100] {line}")
    seconds = pytest.approx(8.0)
    assert collectives.by_axes(rows) == {("all-reduce", "data", "ICI", "f32"): (2, 800, seconds, seconds)}


SLICES = {"data": 2, "fsdp": 3, "tensor": 1}
BETWEEN = collectives.Placement(
    GRID, PLACES, SLICES, {100_000 * (slice_ + 1) + i: slice_ for slice_ in range(6) for i in range(8)}
)


def between(kind, sent, received, target, work=""):
    named = f'_xla_host_transfer_rendezvous="r_0",_xla_megascale_target="{target}"'
    named += f',_xla_megascale_transfer_type="{kind}"'
    attributes = f"is_host_transfer=true, frontend_attributes={{{named}}}"
    return [
        "%t = token[] after-all()",
        f"%send = ({sent}, u32[], token[]) send(%x, %t), channel_id=2, {attributes}",
        f"%recv = ({received}, u32[], token[]) recv(%t), channel_id=1, {attributes}",
        *([work] if work else []),
        "%sent = token[] send-done(%send), channel_id=2, is_host_transfer=true",
        f"%done = ({received}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true",
    ]


@pytest.mark.parametrize(
    ("kind", "received", "target", "expected"),
    [
        # Of 400 bytes, over 10 a second: to all of six slices, to two, and to three.
        ("ALL_REDUCE", "f32[100]", "{1,2,3,4,5,6}x{0:7}", ("all-reduce", "data+fsdp", 400, 400 * 2 * 5 / 6 / 10)),
        ("ALL_REDUCE", "f32[100]", "{1:6}x{0:7}", ("all-reduce", "data+fsdp", 400, 400 * 2 * 5 / 6 / 10)),
        ("REDUCE_SCATTER", "f32[50]", "{{100000,400000},{100001,400001}}", ("reduce-scatter", "data", 400, 20.0)),
        ("ALL_GATHER", "f32[300]", "{{100000,200000,300000}}", ("all-gather", "fsdp", 1200, 80.0)),
    ],
)
def test_transfers_between_slices(kind, received, target, expected):
    (row,) = found(*between(kind, "f32[100]", received, target), placement=BETWEEN)
    assert (row.opcode, row.axes, row.bytes) == expected[:3]
    assert row.seconds == pytest.approx(expected[3])
    assert (row.network, row.dtype, row.hidden_seconds) == ("DCN", "f32", 0)


def test_work_before_the_receipt_hides_a_transfer_between_slices():
    work = '%w = f32[100] fusion(%x), kind=kLoop, calls=%sum, backend_config={"estimated_cycles":"15"}'
    lines = between("REDUCE_SCATTER", "f32[100]", "f32[50]", "{{100000,400000}}", work)
    (row,) = found(*lines, placement=BETWEEN)
    assert (row.seconds, row.hidden_seconds) == (20.0, 15.0)
    costs = program_costs.costs(program(lines), CHIP, BETWEEN)
    assert costs.unaccounted == [] and program_costs.total_seconds(costs, CHIP) == 15 + 5


def test_two_devices_of_a_chip_share_its_way_to_other_slices():
    placement = BETWEEN._replace(chips=[(x, 0) for x in range(4) for _ in range(2)])
    (row,) = found(*between("REDUCE_SCATTER", "f32[100]", "f32[50]", "{{100000,400000}}"), placement=placement)
    assert row.seconds == pytest.approx(40.0)
