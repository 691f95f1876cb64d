"""Frames made by hand from `docs/format.md` alone: valid ones that no encoder would write, and spoilt ones.

`build_frame` draws a valid frame, and says which values it holds. `mutations` spoils one field of a valid
frame at a time and sets all checksums right again, so that a decoder has to look at the field itself. § is a
section of the page.
"""

from tests.support.frame_builder import indexed_spoilers, inner_spoilers, sparse_spoilers
from tests.support.frame_builder.blocks import BlockWriter
from tests.support.frame_builder.frames import (
    ANY_KIND,
    ANY_KIND_OR_INDEXED,
    ANY_KIND_OR_SPARSE,
    USUAL_PLANES,
    Built,
    build_frame,
    random_codebook,
)
from tests.support.frame_builder.indexed import INDEXED_EXTENSION, Entries, Indexed
from tests.support.frame_builder.parts import (
    BLOCK_HEADER,
    EXTENSION,
    PREDICTED_EXTENSION,
    Coded,
    Columns,
    Draft,
    Inline,
    Predicted,
    Residual,
    base_template,
    by_id,
    plain_block,
    sealed_block,
)
from tests.support.frame_builder.sparse import SPARSE_EXTENSION, Changes, Sparse
from tests.support.frame_builder.spoilers import SPOILERS, Mutation, mutations

__all__ = [
    "ANY_KIND",
    "ANY_KIND_OR_INDEXED",
    "ANY_KIND_OR_SPARSE",
    "BLOCK_HEADER",
    "EXTENSION",
    "INDEXED_EXTENSION",
    "PREDICTED_EXTENSION",
    "SPARSE_EXTENSION",
    "SPOILERS",
    "USUAL_PLANES",
    "BlockWriter",
    "Built",
    "Changes",
    "Coded",
    "Columns",
    "Draft",
    "Entries",
    "Indexed",
    "Inline",
    "Mutation",
    "Predicted",
    "Residual",
    "Sparse",
    "base_template",
    "build_frame",
    "by_id",
    "indexed_spoilers",
    "inner_spoilers",
    "mutations",
    "plain_block",
    "random_codebook",
    "sealed_block",
    "sparse_spoilers",
]
