"""Files whose names differ by a number: a name and its number lead to each other, and only a writer's files go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcodec.archive.folders import folder_at
from gcodec.archive.numbered_files import NumberedFiles, remove_unneeded
from gcodec.checkpoints.step_files import STEP_FILES
from gcodec.errors import InvalidArgument
from gcodec.files.all_or_nothing import MAX_NAME_BYTES, final_name, partial_name
from gcodec.sync.version_folder import ANCHORS, DIFFERENCES

KINDS = (STEP_FILES, DIFFERENCES, ANCHORS, NumberedFiles("rank-", 5, ""), NumberedFiles("", 1, ""))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_a_name_and_its_number_lead_to_each_other(kind, data):
    number = data.draw(st.one_of(st.integers(0, 10**6), st.integers(0, kind.limit - 1)))
    name = kind.name(number)
    assert kind.number(name) == number
    assert re.fullmatch(re.escape(kind.prefix) + rf"\d{{{kind.n_digits},}}" + re.escape(kind.suffix), name)
    other = data.draw(st.sampled_from((f"{name}x", f"x{name}", name.replace(f"{number}", f"-{number}"), f" {name}")))
    assert kind.numbers([name, other]) == [number]


def test_only_names_as_they_are_written_are_those_of_files():
    names = [
        "step-00000012.gc",
        "step-000000012.gc",
        "step-12.gc",
        "step-0000001\uff12.gc",
        "step-.gc",
        "step-00000003.gc",
    ]
    assert STEP_FILES.numbers([*names, "step-1000000000000000000.gc", "step-123456789.gc"]) == [3, 12, 123456789]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1))
def test_the_name_of_a_file_that_is_being_written_tells_its_final_name(name):
    written = partial_name(name)
    final = final_name(written)
    assert final is not None and name.startswith(final) and final_name(name if name != written else "x") is None
    assert final == name or len(name.encode()) > MAX_NAME_BYTES


def test_what_nothing_needs_is_removed_and_nothing_else(tmp_path):
    files, folder = NumberedFiles("a-", 2, ""), folder_at(tmp_path)
    for name in ("a-01", "a-02", "a-03", partial_name("a-02"), partial_name("b-02"), "b-01", "a-1"):
        (tmp_path / name).write_text("x")
    (tmp_path / "a-04").mkdir()
    told: list[str] = []
    remove_unneeded(folder, lambda name: files.number(name) is not None, {"a-02"}.__contains__, told.append)
    assert [name[:4] for name in folder.names()] == [".b-0", "a-02", "a-04", "a-1", "b-01"]
    assert len(told) == 1 and told[0].startswith(f"cannot remove {tmp_path / 'a-04'}, which nothing needs: ")


def test_a_file_is_no_folder(tmp_path):
    path = Path(tmp_path, "file")
    path.write_text("x")
    with pytest.raises(InvalidArgument, match=f"{re.escape(str(path))}: must be a folder, but is a file"):
        folder_at(path)
