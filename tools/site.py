"""Builds the site: the pages of docs/, and a reference of the public names made from their docstrings.

    python -m tools.site [--out FOLDER]

writes HTML that needs no network and no server (``build/site``). Any warning is an error: a link or anchor that leads
nowhere, a page that is missing from ``PAGES``, a docstring that cannot be read.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

import gcodec

ROOT = Path(__file__).resolve().parents[1]
#: The contents: captions, and the pages below them, as paths in docs/ without their suffix.
PAGES = {
    "Start": ("tensors", "checkpoints", "moving", "cli", "weight-sync", "caches", "report", "recording"),
    "Training": (
        "training",
        *(
            f"training/{page}"
            for page in (
                "ddp",
                "which-mode",
                "bypass",
                "compressors",
                "process-group",
                "fsdp",
                "diloco",
                "federated",
                "frameworks",
                "cluster",
                "guarantees",
                "uncompressed",
                "failures",
            )
        ),
    ),
    "Integrations": (
        "zarr",
        *sorted(f"integrations/{page.stem}" for page in (ROOT / "docs" / "integrations").glob("*.md")),
    ),
    "Is it for me?": ("when-not", "costs", "faq", "compatibility", "benchmarks", "reliability", "security", "gpu"),
    "Results": (
        "benchmarks/codecs",
        "benchmarks/files",
        "benchmarks/peers",
        "benchmarks/other-arrays",
        "benchmarks/speed",
        "benchmarks/damage",
        "benchmarks/distributed",
        "benchmarks/compressors",
        "benchmarks/vocabulary",
        "benchmarks/bound",
        "benchmarks/demo",
    ),
    "Research": (
        "algorithms",
        "algorithms/near-lossless",
        "algorithms/all-reduce",
        "algorithms/compressors",
        "algorithms/sparsifiers",
        "algorithms/quantizers",
        "algorithms/low-rank",
        "algorithms/controllers",
        "algorithms/gravac",
        "algorithms/l-greco",
        "algorithms/writing",
        "experiments",
        "experiments-gcomp",
        "experiments-gravac",
        "experiments-lgreco",
        "experiments-gradzip",
    ),
    "Formats": ("format", "archive", "glossary"),
    "For contributors": (
        "CONTRIBUTING",
        "contributing/performance",
        "contributing/gpu",
        "contributing/wire",
        "contributing/decisions/index",
        *sorted(
            f"contributing/decisions/{page.stem}"
            for page in (ROOT / "docs" / "contributing" / "decisions").glob("[0-9]*.md")
        ),
        "RELEASE",
        "CODE_OF_CONDUCT",
        "CHANGELOG",
    ),
}
#: Pages of the site that lie beside docs/, as their readers look for them there.
ROOT_PAGES = ("CONTRIBUTING", "RELEASE", "CODE_OF_CONDUCT", "CHANGELOG")
#: The reference: titles of its pages, and what stands on them.
REFERENCE = {
    "Arrays": """gcodec.encode gcodec.decode gcodec.decode_range gcodec.inspect gcodec.FrameInfo gcodec.max_encoded_size
        gcodec.warmup gcodec.Encoder gcodec.Decoder gcodec.EncoderOptions gcodec.CodebookCycle gcodec.Ladder
        gcodec.FINE_LADDER gcodec.PAPER_LADDER gcodec.LITERAL_GCOMP""",
    "Files": """gcodec.save gcodec.load gcodec.open gcodec.TensorFile gcodec.load_into gcodec.save_file gcodec.load_file
        gcodec.compress_file gcodec.decompress_file gcodec.CompressedFile gcodec.Checkpointer gcodec.Recorder
        gcodec.archive.ArchiveReader gcodec.archive.ArchiveWriter""",
    "Weight sync": """gcodec.sync.Publisher gcodec.sync.WeightVersion gcodec.sync.Subscriber gcodec.sync.PendingVersion
        gcodec.sync.VersionFolder""",
    "Distributed training": """gcodec.distributed.CompressedAllreduce gcodec.distributed.CompressedGradients
        gcodec.distributed.AdaptiveGradients gcodec.distributed.hook gcodec.distributed.FixedBits
        gcodec.distributed.Lossless gcodec.distributed.NearLossless gcodec.distributed.Bypass
        gcodec.distributed.allreduce gcodec.distributed.GroupOptions gcodec.distributed.register_backend
        gcodec.distributed.compress_fsdp gcodec.distributed.DiLoCo gcodec.distributed.WeightBroadcast
        gcodec.distributed.Refresh gcodec.distributed.StatsLog gcodec.distributed.log_to
        gcodec.distributed.close_lanes gcodec.distributed.warmup""",
    "Compressors": """gcodec.compressors.TopK gcodec.compressors.RandomK gcodec.compressors.DGC
        gcodec.compressors.RedSync gcodec.compressors.QSGD gcodec.compressors.Blockwise
        gcodec.compressors.PowerSGD gcodec.compressors.ACPSGD gcodec.compressors.GradZip
        gcodec.compressors.SparCML gcodec.compressors.Frames gcodec.compressors.Cast
        gcodec.adaptive.GraVAC gcodec.adaptive.LGreCo gcodec.adaptive.Accordion""",
    "Errors": """gcodec.GcodecError gcodec.Corruption gcodec.InsufficientData gcodec.InvalidArgument
        gcodec.LimitExceeded gcodec.Unsupported gcodec.BrokenChain gcodec.PeerError""",
}
#: Links from pages to files that are not on the site; their text stays.
ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:bench|gcodec|tests|examples|tools)/[^)]*\)")
#: A picture that stands alone on its line: what it shows, its path up to its suffix.
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]*images/[\w-]+)\.png\)$", re.MULTILINE)
#: Pictures that are not drawn, without suffix: they stay as they are.
SCREENSHOTS = ("report",)
#: Brightness of a dark page, from 0 to 1, which is what white becomes.
NIGHT = 0.08
#: Of narrow screens: prose in tables gets lines of some words, and tables scroll in the box that the theme gives them.
STYLE = """@media (max-width: 48em) {
  .table-wrapper table.docutils { font-size: 0.85rem; }
  .table-wrapper td:not(.text-right) { min-width: 7em; }
  article code.literal { overflow-wrap: anywhere; }
  article td code.literal { overflow-wrap: normal; }
}
"""
SETTINGS = {
    "project": "gcodec",
    "version": gcodec.__version__,
    "release": gcodec.__version__,
    "copyright": "Apache License 2.0",
    "extensions": ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "html_static_path": ["_static"],
    "html_css_files": ["site.css"],
    "html_title": "gcodec",
    "html_copy_source": False,
    "html_show_sphinx": False,
    "myst_heading_anchors": 3,
    "autodoc_member_order": "bysource",
    "autodoc_typehints": "signature",
    "napoleon_numpy_docstring": False,
    "napoleon_use_ivar": True,
    "autodoc_default_options": {"members": True},
    "add_module_names": False,
    "python_maximum_signature_line_length": 88,
    "highlight_language": "none",
    "suppress_warnings": ["misc.highlighting_failure"],
}


def stage(folder: Path) -> None:
    """Write the sources of the site: pages with links that fit, pages of the reference, contents."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    for name in ROOT_PAGES:
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    for page in folder.rglob("*.md"):
        page.write_text(ELSEWHERE.sub(r"\1", page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "_static").mkdir()
    (folder / "_static" / "site.css").write_text(STYLE, encoding="utf-8")
    (folder / "reference").mkdir()
    for title, names in REFERENCE.items():
        lines = [title, "=" * len(title), "", *(line for name in names.split() for line in _directive(name))]
        (folder / f"{_reference_page(title)}.rst").write_text("\n".join(lines), encoding="utf-8")
    contents = {**PAGES, "Reference": tuple(map(_reference_page, REFERENCE))}
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        for caption, pages in contents.items():
            index.write("\n".join(("", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", "")))


def add_dark_twins(folder: Path) -> None:
    """Give the pictures in the sources of the site, which are drawn on white, a twin for dark pages, and have pages
    show the one that fits."""
    for picture in sorted((folder / "images").glob("*.png")):
        if picture.stem not in SCREENSHOTS:
            darken(picture, picture.with_name(f"{picture.stem}-dark.png"))
    for page in folder.rglob("*.md"):
        shown = PICTURE.sub(partial(_both, folder=page.parent), page.read_text(encoding="utf-8"))
        page.write_text(shown, encoding="utf-8")


def _both(found: re.Match[str], folder: Path) -> str:
    """Return the lines that show a picture on light pages and its twin on dark ones; unchanged without a twin."""
    text, path = found.groups()
    if not (folder / f"{path}-dark.png").exists():
        return found[0]
    return "\n".join(
        f"```{{image}} {path}{twin}.png\n:alt: {text}\n:class: only-{theme}\n```\n"
        for theme, twin in (("light", ""), ("dark", "-dark"))
    )


def darken(picture: Path, twin: Path) -> None:
    """Write a PNG file with light and dark exchanged: hues and the differences of a pixel's colors stay."""
    from matplotlib.image import imread, imsave

    pixels = np.asarray(imread(picture), np.float64)
    colors = pixels[..., :3]
    turned = colors + 1 - colors.max(axis=-1, keepdims=True) - colors.min(axis=-1, keepdims=True)
    pixels[..., :3] = NIGHT + (1 - NIGHT) * turned
    imsave(twin, pixels.clip(0, 1))


def _reference_page(title: str) -> str:
    return "reference/" + title.lower().replace(" ", "-")


def _directive(name: str) -> list[str]:
    """Return the lines that document a public name, by what it is."""
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    kind = "data"
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, Exception) else "class"
    elif inspect.isroutine(value):
        kind = "function"
    if kind == "data":  # where it is defined there is a comment on it, which an imported name has not
        name = f"gcodec.{gcodec._MODULE_OF[attribute]}.{attribute}"
    return [f".. auto{kind}:: {name}", *(["   :no-value:"] if kind == "data" else []), ""]


def build(out: Path) -> int:
    """Build the site into a folder; return 0, or 1 if there was any warning."""
    from sphinx.application import Sphinx

    with tempfile.TemporaryDirectory() as folder:
        sources, doctrees = Path(folder, "sources"), Path(folder, "doctrees")
        stage(sources)
        add_dark_twins(sources)
        site = Sphinx(sources, None, out, doctrees, "html", confoverrides=SETTINGS, status=None, parallel=2)
        site.build()
        return 1 if site.statuscode or site._warncount else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="default: build/site")
    options = parser.parse_args(arguments)
    failed = build(options.out)
    print("failed: see the warnings above" if failed else options.out / "index.html")
    return failed


if __name__ == "__main__":
    sys.exit(main())
