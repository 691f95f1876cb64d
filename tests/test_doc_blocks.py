"""Every code block of README and docs runs as it is printed, or has a tag that says that it is not run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.doc_blocks import PAGES, ROOT, SHOWN, blocks_of

#: Pages with blocks that run.
RUN = [
    page
    for page in PAGES
    if any(block.tag.split()[:1] in (["python"], ["sh"]) for block in blocks_of(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page):
    known = {"python", "python cuda", "sh", *SHOWN}
    wrong = [
        f"{page.name}:{block.line} {block.tag!r}"
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.tag not in known
    ]
    assert not wrong, f"code needs a fence with one of the tags {sorted(known)}:\n" + "\n".join(wrong)


RUNNER = [sys.executable, "-m", "tests.support.doc_blocks"]


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], tuple[int, str]]]:
    """Yield a function that runs a page in a process of its own and returns its exit code and what it printed."""
    if not hasattr(os, "fork"):

        def alone(page: Path) -> tuple[int, str]:
            done = subprocess.run(
                [*RUNNER, str(page)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=540,
                check=False,
                cwd=ROOT,
            )
            return done.returncode, done.stdout

        yield alone
        return
    printed = tmp_path_factory.mktemp("pages") / "printed"
    with subprocess.Popen(
        [*RUNNER, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def served(page: Path) -> tuple[int, str]:
            print(page, printed, sep="\t", file=server.stdin, flush=True)
            assert server.stdout is not None
            return int(server.stdout.readline()), printed.read_text(encoding="utf-8")

        yield served
        server.stdin.close()


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_every_block_runs_as_it_is_printed(page, run_page):
    pytest.importorskip("torch")
    code, printed = run_page(page)
    assert code == 0, printed
    n_blocks = sum(block.tag in ("python", "sh") for block in blocks_of(page.read_text(encoding="utf-8")))
    begun = [line for line in printed.splitlines() if line.startswith(f"began {page.name}:")]
    assert printed.count(f"ran {page.name}:") + len(begun) >= n_blocks
    if begun:
        pytest.skip("; ".join(begun))


def run_on(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a page of this text."""
    page = folder / "made-up.md"
    page.write_text(text, encoding="utf-8")
    return subprocess.run([*RUNNER, str(page)], capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)


def test_blocks_are_found_with_their_tags_and_lines():
    text = "a\n\n```python\nx = 1\n```\n\n    indented\n\n```\nplain\n```\n\n* item\n  ```sh\n  gcodec\n  ```\n"
    found = [(block.line, block.tag) for block in blocks_of(text)]
    assert found == [(3, "python"), (7, "indented"), (9, ""), (14, "sh")]


def test_blocks_that_fail_are_named_with_their_lines(tmp_path):
    good = "```python\nx = 1\n```\n\n```sh\ngcodec --version\necho 1 | cat > file.txt\ngcodec completion bash\n```\n"
    assert run_on(tmp_path, good).returncode == 0
    bad = good + "\n```python\nassert x == 2\n```\n\n```sh\ngcodec inspect missing.gc\n```\n\n```text\nnothing\n```\n"
    done = run_on(tmp_path, bad)
    assert done.returncode == 2
    assert "FAILED made-up.md:11" in done.stdout and 'made-up.md", line 12' in done.stdout
    assert "exit code 1 of: gcodec inspect missing.gc" in done.stdout
