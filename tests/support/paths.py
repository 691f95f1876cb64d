"""The folders of a checkout that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CORPUS = TESTS / "corpus"  #: dumps of real training, small enough to be committed
GOLDEN = TESTS / "golden"
GOLDEN_INVALID = TESTS / "golden-invalid"
GOLDEN_ARCHIVES = TESTS / "golden-archives"
