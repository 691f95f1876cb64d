"""MiniLM between real workers: a published model of 22.6 million parameters, fine-tuned as in
``bench.experiments.minilm``."""

from __future__ import annotations

import numpy as np
import torch

from bench.experiments.minilm.fine_tuning import BATCH, adamw, sentence_loss
from bench.experiments.minilm.model import pretrained
from bench.experiments.minilm.sentences import examples
from gcodec.demo.train import TrainingPlan, TrainingTask

NAME = "minilm"
PLAN = TrainingPlan(300, (), 25, batch=BATCH)
QUICK_PLAN = TrainingPlan(3, (), 2, batch=2)
WARM_UP = 5  #: steps until the learning rate is what it is at its highest


def fetched() -> None:
    """Fetch weights and sentences, for workers that reach each other only."""
    pretrained()
    examples()


def minilm_task() -> TrainingTask:
    """Return the model with its published weights, AdamW, and the loss of sentences drawn at random."""
    model = pretrained()

    def loss(batch: int, random: np.random.Generator) -> torch.Tensor:
        return sentence_loss(model, batch, random)

    return TrainingTask(model, adamw(model), loss, warm_up=WARM_UP)
