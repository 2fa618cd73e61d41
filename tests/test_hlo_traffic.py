"""The count of a program's memory traffic, on a program whose bytes are known."""

import pytest
from hlo import Hlo
from hlo_traffic import buffers, moved_by, traffic

PROGRAM = """HloModule test

%fused (param_0: f32[64,128], param_1: f32[8,128], param_2: s32[]) -> f32[64,128] {
  %param_0 = f32[64,128]{1,0:T(8,128)} parameter(0)
  %param_1 = f32[8,128]{1,0:T(8,128)} parameter(1)
  %param_2 = s32[]{:T(128)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %write = f32[64,128]{1,0:T(8,128)} dynamic-update-slice(%param_0, %param_1, %param_2, %zero)
}

%body (carry: (f32[64,128], bf16[100,64])) -> (f32[64,128], bf16[100,64]) {
  %carry = (f32[64,128]{1,0:T(8,128)}, bf16[100,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %state = f32[64,128]{1,0:T(8,128)} get-tuple-element(%carry), index=0
  %padded = bf16[100,64]{1,0:T(8,128)(2,1)} get-tuple-element(%carry), index=1
  %start = (bf16[100,64]{1,0:T(8,128)(2,1)S(1)}, bf16[100,64]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%padded)
  %near = bf16[100,64]{1,0:T(8,128)(2,1)S(1)} copy-done(%start)
  %wide = f32[100,64]{1,0:T(8,128)S(1)} convert(%near)
  %at = s32[]{:T(128)S(6)} constant(8)
  %part = f32[8,128]{1,0:T(8,128)} dynamic-slice(%state, %at, %at), dynamic_slice_sizes={8,128}
  %next = f32[64,128]{1,0:T(8,128)} fusion(%state, %part, %at), kind=kLoop, calls=%fused
  %turned = bf16[64,100]{0,1:T(8,128)(2,1)} bitcast(%padded)
  %copied = bf16[64,100]{1,0:T(8,128)(2,1)} copy(%turned)
  ROOT %out = (f32[64,128]{1,0:T(8,128)}, bf16[100,64]{1,0:T(8,128)(2,1)}) tuple(%next, %padded)
}

ENTRY %main (arg: (f32[64,128], bf16[100,64])) -> (f32[64,128], bf16[100,64]) {
  %arg = (f32[64,128]{1,0:T(8,128)}, bf16[100,64]{1,0:T(8,128)(2,1)}) parameter(0)
  ROOT %loop = (f32[64,128]{1,0:T(8,128)}, bf16[100,64]{1,0:T(8,128)(2,1)}) while(%arg), condition=%stop, body=%body
}
"""  # noqa: E501

MOVED = {
    "start": 104 * 128 * 2,  # read from memory in whole tiles; the target is on chip
    "near": 0,
    "wide": 0,  # on chip altogether
    "part": 2 * 8 * 128 * 4,  # a slice: as much is read as is written
    "next": 2 * 8 * 128 * 4,  # a write in place: the part is read and written, the rest untouched
    "turned": 0,
    "copied": 104 * 128 * 2 + 64 * 128 * 2,  # whole tiles differ with the layout
}


def test_what_each_instruction_moves():
    hlo = Hlo.parse(PROGRAM)
    lines = {i.name: i for i in hlo.computations["body"]}
    assert {name: moved_by(hlo, lines[name], lines) for name in MOVED} == MOVED
    assert traffic(hlo, "main") == traffic(hlo, "body") == sum(MOVED.values())


@pytest.mark.parametrize(
    ("shape", "size", "in_memory"),
    [
        ("bf16[1,8,2048,64]{2,3,1,0:T(8,128)(2,1)}", 8 * 2048 * 64 * 2, True),
        ("bf16[1,8,2048,64]{3,2,1,0:T(8,128)(2,1)}", 8 * 2048 * 128 * 2, True),
        ("s32[29]{0:T(128)S(1)}", 512, False),
        ("pred[1,29,29]{2,1,0:T(8,128)(4,1)}", 32 * 128, True),
        ("f32[]", 4, True),
        ("s4[64]{0:T(128)}", 64, True),
    ],
)
def test_sizes_are_those_of_whole_tiles(shape, size, in_memory):
    (buffer,) = buffers(shape)
    assert (buffer.size, buffer.in_memory) == (size, in_memory)
