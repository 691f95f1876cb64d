"""The gradient's own part in a step of each of torch's optimizers, from the formulas of their papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

LINEAR = ("SGD", "ASGD")  #: whose step is linear in the gradient
SINGLE = ("step", "mu_product", "eta", "mu")  #: keys of state that are one number


def gradient_term(
    name: str, hyper: Mapping[str, Any], earlier: Mapping[str, Any], state: Mapping[str, Any], grad: Any
) -> Any:
    """Return what the gradient adds to a parameter in a step from one state to another, in float64.

    Args:
        name: The optimizer, one whose step is not linear in the gradient.
        hyper: Its hyperparameters, by torch's names.
        earlier: Its state before the step, numbers and arrays; empty before the first.
        state: Its state after the step.
        grad: The gradient.
    """
    sign, t = 1.0 if hyper["maximize"] else -1.0, float(state["step"])
    if name == "Adagrad":
        rate = hyper["lr"] / (1 + (t - 1) * hyper["lr_decay"])
        return sign * rate * grad / (np.sqrt(state["sum"]) + hyper["eps"])
    if name == "RMSprop":
        return sign * hyper["lr"] * grad / (np.sqrt(state["square_avg"]) + hyper["eps"])
    if name == "Adadelta":
        size = np.sqrt(np.float64(earlier.get("acc_delta", 0.0)) + hyper["eps"])
        return sign * hyper["lr"] * size * grad / np.sqrt(state["square_avg"] + hyper["eps"])
    b1, b2 = hyper["betas"]
    if name == "Adamax":
        return sign * hyper["lr"] / (1 - b1**t) * (1 - b1) * grad / state["exp_inf"]
    v = state["max_exp_avg_sq" if hyper.get("amsgrad") else "exp_avg_sq"]
    rate, bias2 = sign * hyper["lr"] / (1 - b1**t) * (1 - b1), 1 - b2**t
    if name == "NAdam":
        now, later = (b1 * (1 - 0.5 * 0.96 ** (n * hyper["momentum_decay"])) for n in (t, t + 1))
        product = float(state["mu_product"])
        rate = sign * hyper["lr"] * ((1 - now) / (1 - product) + (1 - b1) * later / (1 - product * later))
    if name == "RAdam":
        rectified = rectification(b2, t)
        if rectified is None:
            return rate * grad
        return rate * rectified * np.sqrt(bias2) * grad / (np.sqrt(v) + hyper["eps"])
    return rate * grad / (np.sqrt(v / bias2) + hyper["eps"])


def rectification(b2: float, t: float) -> float | None:
    """Return the factor of RAdam's step t; None where the step has no denominator."""
    rho = 2 / (1 - b2) - 1
    now = rho - 2 * t * b2**t / (1 - b2**t)
    if now <= 5:
        return None
    return float(np.sqrt((now - 4) * (now - 2) * rho / ((rho - 4) * (rho - 2) * now)))
