"""Block and byte sizes of every GGML tensor type, those without kernels in edged included.

A tensor row holds ne0 weights in blocks of `block` weights, `size` bytes each; rows follow one another without gaps.
Whether edged can compute with a type is not decided here but by the table of kernels.

Source: ggml.h (enum ggml_type) and ggml-common.h (block_* structures) of llama.cpp.
"""

from __future__ import annotations

from typing import NamedTuple


class GgmlType(NamedTuple):
    """One tensor type: `block` consecutive weights of a row take `size` bytes."""

    name: str
    id: int
    block: int
    size: int


# A term per field of the block structure, in its order, so that each row can be checked against ggml-common.h.
GGML_TYPES: dict[int, GgmlType] = {
    id: GgmlType(name, id, block, size)
    for name, id, block, size in (
        ("f32", 0, 1, 4),
        ("f16", 1, 1, 2),
        ("q4_0", 2, 32, 2 + 16),
        ("q4_1", 3, 32, 2 + 2 + 16),
        ("q5_0", 6, 32, 2 + 4 + 16),
        ("q5_1", 7, 32, 2 + 2 + 4 + 16),
        ("q8_0", 8, 32, 2 + 32),
        ("q8_1", 9, 32, 4 + 4 + 32),
        ("q2_k", 10, 256, 16 + 64 + 2 + 2),
        ("q3_k", 11, 256, 32 + 64 + 12 + 2),
        ("q4_k", 12, 256, 2 + 2 + 12 + 128),
        ("q5_k", 13, 256, 2 + 2 + 12 + 32 + 128),
        ("q6_k", 14, 256, 128 + 64 + 16 + 2),
        ("q8_k", 15, 256, 4 + 256 + 32),
        ("iq2_xxs", 16, 256, 2 + 64),
        ("iq2_xs", 17, 256, 2 + 64 + 8),
        ("iq3_xxs", 18, 256, 2 + 64 + 32),
        ("iq1_s", 19, 256, 2 + 32 + 16),
        ("iq4_nl", 20, 32, 2 + 16),
        ("iq3_s", 21, 256, 2 + 64 + 8 + 32 + 4),
        ("iq2_s", 22, 256, 2 + 64 + 8 + 8),
        ("iq4_xs", 23, 256, 2 + 2 + 4 + 128),
        ("i8", 24, 1, 1),
        ("i16", 25, 1, 2),
        ("i32", 26, 1, 4),
        ("i64", 27, 1, 8),
        ("f64", 28, 1, 8),
        ("iq1_m", 29, 256, 32 + 16 + 8),
        ("bf16", 30, 1, 2),
        ("tq1_0", 34, 256, 48 + 4 + 2),
        ("tq2_0", 35, 256, 64 + 2),
        ("mxfp4", 39, 32, 1 + 16),
        ("nvfp4", 40, 64, 4 + 32),
        ("q1_0", 41, 128, 2 + 16),
    )
}
TYPE_BY_NAME: dict[str, GgmlType] = {t.name: t for t in GGML_TYPES.values()}

# Ids that once had a meaning; files of that time must be converted again.
WITHDRAWN: dict[int, str] = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}
