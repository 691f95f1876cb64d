"""The golden frames decode, and the invalid ones are refused, forever: ``tests/golden`` and ``tests/golden-invalid``.

They were written by ``python -m tests.support.make_golden`` and are not made again, whatever the encoder comes to
write: version 1 of the format is frozen (docs/format.md, section 14).
"""

from __future__ import annotations

import hashlib

import pytest

import gcodec
from gcodec.dtypes import BY_NAME
from gcodec.frame.kinds import BLOCK_KINDS
from tests.support import laws, reference
from tests.support.bit_patterns import KINDS
from tests.support.encode_modes import modes
from tests.support.frame_builder import SPOILERS, Coded, Draft, Entries, Indexed, Sparse
from tests.support.make_golden import as_base, as_known, cell_of, cells, read_manifest, slug
from tests.support.paths import GOLDEN, GOLDEN_INVALID

VALID, BROKEN = read_manifest(GOLDEN), read_manifest(GOLDEN_INVALID)


@pytest.mark.parametrize("name", VALID)
def test_golden_frames_decode_to_their_values(name):
    described = VALID[name]
    frame, codebooks = (GOLDEN / f"{name}.frame").read_bytes(), as_known(described.get("codebooks", []))
    base = as_base(GOLDEN, described)
    decoded = laws.decode_known(frame, codebooks, base=base)
    assert list(decoded.shape) == described["shape"]
    assert hashlib.sha256(laws.bits_of(decoded).tobytes()).hexdigest() == described["sha256"]
    assert reference.DTYPES[frame[5]].name == described["dtype"]
    assert frame[6:8] == bytes([described["mode"], described["container"]])
    other = reference.decode(frame, codebooks, base=base)
    assert other.kinds == described["blocks"]
    assert hashlib.sha256(other.bits.tobytes()).hexdigest() == described["sha256"]
    if codebooks.keys() <= laws.SHIPPED.keys() and described["container"] == 0:
        public = laws.bits_of(gcodec.decode(frame, base=base))
        assert hashlib.sha256(public.tobytes()).hexdigest() == described["sha256"]


@pytest.mark.parametrize("name", BROKEN)
def test_golden_invalid_frames_are_refused_for_their_reason(name):
    described = BROKEN[name]
    frame, codebooks = (GOLDEN_INVALID / f"{name}.frame").read_bytes(), as_known(described.get("codebooks", []))
    base = as_base(GOLDEN_INVALID, described)
    assert laws.outcome(frame, codebooks, base) == described["expected"], described["what"]
    assert laws.reference_outcome(frame, codebooks, base) == described["expected"], described["what"]


@pytest.mark.parametrize(
    ("folder", "entries"), [(GOLDEN, VALID), (GOLDEN_INVALID, BROKEN)], ids=["golden", "golden-invalid"]
)
def test_manifests_name_the_files_that_are_there(folder, entries):
    assert {path.stem for path in folder.glob("*.frame")} == entries.keys()
    bases = {described["base"][0] for described in entries.values() if "base" in described}
    assert {path.name for path in folder.glob("*.base")} == bases
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5 << 18


def test_every_type_mode_and_kind_of_block_has_a_golden_frame():
    found = set()
    for name, described in VALID.items():
        draft = Draft.of((GOLDEN / f"{name}.frame").read_bytes(), as_known(described.get("codebooks", [])))
        assert described["blocks"] == [reference.KINDS_OF_BLOCK[block[0]] for block in draft.blocks]
        found |= {(draft.dtype, draft.mode, cell_of(draft, block)) for block in draft.blocks}
    assert found >= set(cells())


def test_every_size_that_a_header_may_name_has_a_golden_frame():
    frames = [(GOLDEN / f"{name}.frame").read_bytes() for name in VALID]
    assert {frame[9] for frame in frames} == set(range(10, 21))  # block_log2
    assert {frame[10] for frame in frames} == set(range(6, 13))  # stream_log2
    assert {1, 2, 4, 8, 16} <= {frame[12] for frame in frames}  # levels
    assert {frame[13] for frame in frames} == set(range(9))  # planes
    assert {0, 1, 255} <= {frame[11] for frame in frames} & {frame[14] for frame in frames}  # codebooks of both kinds
    assert {frame[8] for frame in frames} >= {0, 1, 2, 3, 32}  # dimensions
    drafts = [
        Draft.of(frame, as_known(VALID[name].get("codebooks", []))) for name, frame in zip(VALID, frames, strict=True)
    ]
    kinds = {(draft.dtype, record[0]) for draft in drafts for record in draft.records}
    assert kinds == {
        (code, kind)
        for code, value_type in reference.DTYPES.items()
        for kind in ((0, 1, 3, 4) if value_type.T else (0, 1, 3))
    }
    coded = [Coded.of(block, draft.stream_log2) for draft in drafts for block in draft.blocks if block[0] == 2]
    assert {bool(block.run_symbol) for block in coded if b"" in block.streams} == {False, True}
    assert {block.reference_width > 0 for block in coded} == {True, False}
    assert {block.length_width > 0 for block in coded} == {True, False}
    sparse = [Sparse.of(block) for draft in drafts for block in draft.blocks if block[0] == 4]
    assert {block.inner[0] for block in sparse if block.inner} == {0, 1, 2}
    assert {0, 24} <= {block.length_width for block in sparse}
    assert {6, 10} <= {block.stream_log2 for block in sparse}
    assert {block.min_stream_bytes > 0 for block in sparse} == {True, False}
    assert {any(block.streams) for block in sparse} == {all(block.streams) for block in sparse} == {True, False}


def test_indexed_blocks_of_all_forms_have_golden_frames():
    found, factors = set(), set()
    for name, described in VALID.items():
        draft = Draft.of((GOLDEN / f"{name}.frame").read_bytes(), as_known(described.get("codebooks", [])))
        for b, block in enumerate(draft.blocks):
            if block[0] == 5:
                indexed = Indexed.of(block, draft.kind.W)
                n_exceptions = len(indexed.exceptions)
                found |= {f"inner kind {indexed.inner[0]}", f"{indexed.scale_bytes} bytes", f"block {min(b, 1)}"}
                found |= {
                    "no exceptions"
                    if not n_exceptions
                    else "only exceptions"
                    if n_exceptions == indexed.n_values
                    else "some exceptions"
                }
                found |= {"skipped"} if indexed.skipped else set()
                found |= {f"{len(Entries.of(draft.records[indexed.codebook], draft.kind.W).values)} entries"}
                found |= {"a scale for each value"} if indexed.segment == 1 else set()
                found |= {"a segment longer than a block"} if indexed.segment > 1 << draft.block_log2 else set()
                found |= {f"dtype {draft.dtype}"}
                factors |= {draft.kind.name} if indexed.segment else set()
    expected = {f"dtype {code}" for code, value_type in reference.DTYPES.items() if value_type.T}
    expected |= {f"inner kind {n}" for n in range(3)} | {f"{n} bytes" for n in (0, 2, 3, 4)} | {"block 0", "block 1"}
    expected |= {
        "no exceptions",
        "some exceptions",
        "only exceptions",
        "skipped",
        "1 entries",
        "256 entries",
        "a scale for each value",
        "a segment longer than a block",
    }
    assert not expected - found
    assert factors == {value_type.name for value_type in KINDS.values() if value_type.predicted}


def test_golden_frames_cover_columns_wide_heads_bases_and_every_fault():
    for dtype, value_type in KINDS.items():
        assert {slug(dtype, mode.name, "coded") for mode in modes(dtype)} <= VALID.keys()
        kinds = {kind for described in VALID.values() if described["dtype"] == dtype for kind in described["blocks"]}
        assert kinds == {kind.name for kind in BLOCK_KINDS if kind.applies_to(BY_NAME[dtype])}, dtype
        if value_type.T:
            assert Draft.of((GOLDEN / f"{slug(dtype, 'columns')}.frame").read_bytes(), laws.SHIPPED).columns
        if dtype in ("float32", "bfloat16"):
            code = (GOLDEN / f"{slug(dtype, 'wide-head')}.frame").read_bytes()[5]
            assert code == {"float32": 8, "bfloat16": 7}[dtype]
        if dtype in ("float32", "bfloat16", "float16"):
            code = (GOLDEN / f"{slug(dtype, 'sign-in-head')}.frame").read_bytes()[5]
            assert code == {"float32": 17, "bfloat16": 16, "float16": 18}[dtype]
        for name in ("base", "base of every magnitude", "zeros lossless"):
            assert VALID[slug(dtype, "sparse", *name.split())]["blocks"] == ["sparse"]
        if value_type.predicted:
            by_template, by_base = (VALID[slug(dtype, name)] for name in ("template", "base"))
            assert by_template["blocks"] == by_base["blocks"] == ["predicted"]
            assert "base" in by_base and "base" not in by_template
    found = [
        Draft.of((GOLDEN / f"{name}.frame").read_bytes(), as_known(described.get("codebooks", [])))
        for name, described in VALID.items()
    ]
    flags = {
        (draft.dtype, bool(draft.columns), Coded.of(block, draft.stream_log2).flags)
        for draft in found
        for block in draft.blocks
        if block[0] == 2
    }
    wanted = {(False, 0), (True, 0), (True, 1)}  # whether there are column references, and of use
    assert flags == {(code, *of) for code, kind in reference.DTYPES.items() for of in wanted if kind.T or not of[0]}
    with_a_base = [described["what"] for described in BROKEN.values() if "base" in described]
    assert {"a base of another last bit", "a base of another size"} <= set(with_a_base)
    assert {described["expected"] for described in BROKEN.values()} == {"insufficient", "corruption", "unsupported"}
    spoilt = {described["what"].partition(":")[0] for described in BROKEN.values()}
    assert not SPOILERS.keys() - spoilt
