"""The laws of a report's colors: told apart in light and dark, also by the color-blind."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import numpy as np
import pytest

from gcodec.report.charts import N_COLORS

#: What is seen of linear red, green and blue, after Machado, Oliveira and Fernandes 2009, at severity 1.
VISIONS: dict[str, Any] = {
    "normal": np.eye(3),
    "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
#: To the cone responses of Oklab, and from their cube roots to its coordinates.
TO_CONES = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.21190350, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.62997870],
]
TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.4285922, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]
#: Distance in Oklab, whose lightness goes from 0 to 1; 0.02 is just seen side by side.
APART = 0.12
#: Of what a picture draws and what is behind it, as WCAG 2.1 asks for graphics.
CONTRAST = 3.0


def themes() -> dict[str, dict[str, str]]:
    style = (resources.files("gcodec.report") / "page.css").read_text("utf-8")
    light, dark = style.split("prefers-color-scheme: dark")
    return {name: dict(re.findall(r"--(\w+): (#\w{6});", part)) for name, part in (("light", light), ("dark", dark))}


def linear(color: str) -> np.ndarray:
    parts = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(color: str) -> float:
    return float(linear(color) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_colors_of_a_picture_differ_for_every_eye(theme, vision):
    colors = [themes()[theme][f"s{n}"] for n in range(N_COLORS)]
    seen = np.array([linear(color) for color in colors]) @ np.transpose(VISIONS[vision])
    lab = np.cbrt(seen.clip(0, 1) @ np.transpose(TO_CONES)) @ np.transpose(TO_LAB)
    for n, color in enumerate(colors):
        for other in range(n):
            assert np.linalg.norm(lab[n] - lab[other]) > APART, f"{color} and {colors[other]} look alike"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colors_stand_out_from_the_card_they_are_drawn_on(theme):
    colors = themes()[theme]
    for n in range(N_COLORS):
        one, other = sorted((luminance(colors["card"]), luminance(colors[f"s{n}"])))
        assert (other + 0.05) / (one + 0.05) >= CONTRAST, colors[f"s{n}"]
