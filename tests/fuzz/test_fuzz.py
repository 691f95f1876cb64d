"""Seconds of the fuzzer (``make fuzz``), the same cases in each run, and every case that ever found something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gcodec.errors import Corruption
from tests.fuzz.__main__ import FOUND, ROW
from tests.fuzz.mutation import Dice, Text, mutated_zip, write_zip
from tests.fuzz.runner import BATCH, fuzz, replay
from tests.fuzz.targets import TARGETS, at_hand, load
from tests.support.paths import ROOT

#: The fuzzer forks, and runs one thread; torch says of what it has quantized that this will go.
pytestmark = pytest.mark.filterwarnings("ignore:.*(multi-threaded|quantize)")
CASES = sorted(FOUND.glob("*/*"))


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].n_tested])
def test_mutated_bytes_give_a_result_or_a_GcodecError(name):
    if name not in at_hand():
        pytest.skip("needs torch")
    tally = fuzz(name, load(name), 0, 0, TARGETS[name].n_tested)
    assert not tally.counts, "\n".join(f"{what}: {found.case[:2000]!r}" for what, found in tally.findings.items())
    assert tally.n_cases == TARGETS[name].n_tested == tally.outcomes.total()
    assert tally.outcomes["result"] and len(tally.outcomes) > 1  # inner checks were reached, and refused


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_cases_that_found_something_end_in_a_result_or_a_GcodecError(path: Path):
    if path.parent.name not in at_hand():
        pytest.skip("needs torch")
    assert not replay(load(path.parent.name), path.read_bytes())


def test_the_table_of_reliability_has_a_row_for_every_target():
    """Those that are missing: GCODEC_RELIABILITY_ROWS=bench/results/reliability.json make fuzz FUZZ_ARGS=TARGET"""
    rows = json.loads((ROOT / "bench/results/reliability.json").read_text())
    assert {row["what"] for row in rows if row["what"].startswith(ROW)} == {ROW + row.what for row in TARGETS.values()}


# The fuzzer itself


class Faulty:
    """A target with a fault of every kind, one for each first byte."""

    seconds, n_prefix = 0.2, 1

    def cases(self) -> list[bytes]:
        """Return a case that is right."""
        return [b"\4"]

    def mutate(self, dice: Dice) -> bytes:
        """Return a case with a fault now and then."""
        return bytes([dice.below(4) if dice.random() < 0.02 else 4 + dice.below(2)])

    def run(self, case: bytes) -> Any:
        """Fail as the case says."""
        match case[0]:
            case 0:
                raise IndexError("a fault")
            case 1:
                while True:
                    pass
            case 2:
                import ctypes

                ctypes.string_at(0)
            case 3:
                return bytearray(4 << 30)
            case 4:
                raise Corruption("as it should be")
        return case


def test_the_fuzzer_names_the_case_of_every_kind_of_fault():
    wanted = {
        0: "IndexError: a fault",
        1: "more than 0.2 seconds of CPU time",
        2: "ended by SIGSEGV",
        3: "MemoryError: ",
    }
    for first, what in wanted.items():
        assert replay(Faulty(), bytes([first])) == what
    tally = fuzz("faulty", Faulty(), 0, 0, 2 * BATCH)
    assert {found.case[0]: what for what, found in tally.findings.items()} == wanted
    assert tally.n_cases == 2 * BATCH


def test_the_cases_of_a_seed_are_the_same_in_every_run():
    target = load("npy")
    for name, other in (("npy", "npy"), ("npy", "npz")):
        drawn = [[target.mutate(dice) for _ in range(50)] for dice in (Dice(f"{name} 0 7"), Dice(f"{other} 0 7"))]
        assert (drawn[0] == drawn[1]) == (name == other)


def test_mutated_text_and_zips_are_whole_where_nothing_was_changed():
    import io
    import zipfile

    text = '{"a": [1, "b\\"", -2.5e3], \'c\': (None,)}'
    assert "".join(Text(text).tokens) == text
    members = [(b"a", b"first"), (b"b/c", b"second" * 20)]
    for deflated in (False, True):
        with zipfile.ZipFile(io.BytesIO(write_zip(members, deflated))) as archive:
            assert archive.testzip() is None
            assert [(name.encode(), archive.read(name)) for name in archive.namelist()] == members
    assert any(mutated_zip(Dice(seed), members) != write_zip(members) for seed in range(50))
