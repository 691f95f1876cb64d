"""Bad arguments of ``gcodec.encode`` raise the same errors on the host and for CUDA tensors, in the same words."""

from __future__ import annotations

from typing import Any

import pytest

import gcodec
from gcodec import FINE_LADDER, Ladder

torch = pytest.importorskip("torch")
N = 60
WEIGHT = torch.nn.Parameter(torch.ones(N))
SMALL = torch.nn.Parameter(torch.ones(N - 1))
LEVELS = torch.zeros(N, dtype=torch.uint8)
SGD = torch.optim.SGD([WEIGHT, SMALL], lr=0.1)

#: What is wrong: the keywords, and words that the message must have.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a rounding that does not exist": ({"rounding": "up"}, "rounding must be one of"),
    "no mantissa bit": ({"mantissa_bits": 0}, "mantissa_bits"),
    "more mantissa bits than there are": ({"mantissa_bits": 24}, "mantissa_bits"),
    "half a mantissa bit": ({"mantissa_bits": 2.5}, "mantissa_bits"),
    "mantissa bits and levels": ({"mantissa_bits": 3, "levels": LEVELS}, "cannot both be given"),
    "mantissa bits and an optimizer": ({"mantissa_bits": 3, "optimizer": SGD, "param": WEIGHT}, "cannot both be given"),
    "levels and an optimizer": ({"levels": LEVELS, "optimizer": SGD, "param": WEIGHT}, "cannot both be given"),
    "a ladder without levels": ({"ladder": FINE_LADDER["float32"]}, "ladder was given without"),
    "a parameter without its optimizer": ({"param": WEIGHT}, "param was given without"),
    "a parameter beside levels": ({"levels": LEVELS, "param": WEIGHT}, "param was given without"),
    "an optimizer without the parameter": ({"optimizer": SGD}, "optimizer was given without"),
    "an optimizer without a rule": ({"optimizer": torch.optim.Rprop([WEIGHT]), "param": WEIGHT}, "Rprop"),
    "a parameter of another optimizer": ({"optimizer": SGD, "param": torch.ones(N)}, "optimizer"),
    "a parameter of another size": ({"optimizer": SGD, "param": SMALL}, "differ in size"),
    "too few levels": ({"levels": LEVELS[1:]}, f"levels must be {N} uint8"),
    "levels of another type": ({"levels": LEVELS.long()}, f"levels must be {N} uint8"),
    "a ladder that drops too much": ({"levels": LEVELS, "ladder": Ladder((0, 30))}, "ladder"),
    "shapes of another size": ({"shapes": [[3, 3]]}, "shapes must have"),
    "a shape of negative size": ({"shapes": [[-1, -N]]}, "shapes must have"),
    "no thread": ({"threads": 0}, "threads must be at least 1"),
}


def error_of(x: Any, keywords: dict[str, Any]) -> tuple[type, str]:
    """The kind and the words of the error that encoding raises."""
    with pytest.raises(gcodec.GcodecError) as caught:
        gcodec.encode(x, **keywords)
    return caught.type, str(caught.value)


@pytest.mark.parametrize("what", BAD)
def test_bad_keywords_are_refused_in_the_same_words(what):
    from tests.gpu.cuda_torch import on_host, pretending

    keywords, words = BAD[what]
    x = torch.linspace(1.0, 2.0, N)
    expected = error_of(x, keywords)
    assert words in expected[1]
    with on_host():
        assert error_of(pretending(x), keywords) == expected


@pytest.mark.parametrize("x", [torch.ones(5, dtype=torch.int32), torch.ones((1,) * 40)], ids=["integers", "40"])
def test_bad_tensors_are_refused_in_the_same_words(x):
    from tests.gpu.cuda_torch import on_host, pretending

    expected = error_of(x, {})
    with on_host():
        assert error_of(pretending(x), {}) == expected
