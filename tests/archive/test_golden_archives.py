"""Archives, series and versions of weights that were written once are read forever: ``tests/golden-archives``.

They were written by ``python -m tests.support.golden_archives`` and are not made again, whatever writers come to do.
"""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("torch")

from gcodec.archive import ArchiveReader
from gcodec.archive.layout import CODECS
from gcodec.dtypes import BY_NAME
from tests.support.golden_archives import GOLDENS, described, read_manifest
from tests.support.paths import GOLDEN_ARCHIVES

MANIFEST = read_manifest()


@pytest.mark.parametrize("name", GOLDENS)
@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable):UserWarning")
@pytest.mark.filterwarnings(
    "ignore:.*(Sparse|ComplexHalf|quantize).*:UserWarning"
)  # torch says that these are new, or old
def test_golden_archives_hold_what_they_did(name, tmp_path):
    source = GOLDEN_ARCHIVES / name
    if source.is_dir():  # a copy, in which a reader may do what it likes
        shutil.copytree(source, tmp_path / name)
    else:
        shutil.copy(source, tmp_path)
    assert described(GOLDENS[name].read(tmp_path / name)) == MANIFEST[name]


def test_the_manifest_names_the_archives_that_are_there():
    assert GOLDENS.keys() == MANIFEST.keys()
    assert {path.name for path in GOLDEN_ARCHIVES.iterdir()} == {"manifest.json", *GOLDENS}


def test_golden_archives_use_what_the_format_has():
    """A series without a difference, or an archive without a frame, would hold whatever became of them."""
    found = set()
    for path in GOLDEN_ARCHIVES.rglob("*.gc"):
        with ArchiveReader(path) as archive:
            for entry in archive.files:
                found |= {"base"} if entry.base else set()
                for number, segment in enumerate(entry.segments):
                    found |= {CODECS[chunk.codec] for chunk in segment.chunks} | {f"type {segment.dtype}"}
                    found |= {"lossy"} if segment.lossy else set()
                    found |= {"same"} if segment.same is not None else set()
                    found |= {"cast"} if segment.cast is not None else set()
                    found |= {"group"} if number in entry.groups else set()
    kinds = {f"type {name}" for name in BY_NAME}
    assert found == {"base", "lossy", "same", "cast", "group", "type None", *CODECS, *kinds}
