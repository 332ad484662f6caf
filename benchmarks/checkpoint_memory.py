"""Bytes of a checkpointed GPT-2 between forward and backward, and at the peak; eager uses the same checkpointing."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers

import switchgear as sg
from benchmarks.memory import Held, measure

#: The most bytes that Switchgear may hold, as a multiple of eager's.
LIMIT = 1.05
LAYERS, WIDTH, BATCH, LENGTH, VOCABULARY = 8, 64, 4, 128, 200


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes of eager without checkpointing, then of eager and Switchgear in turn, each with the same checkpointing."""

    held: list[Held]

    @property
    def ratio(self) -> float:
        """The greatest ratio of Switchgear's saved bytes to eager's."""
        return max(mine.saved / theirs.saved for theirs, mine in self.pairs)

    @property
    def pairs(self) -> list[tuple[Held, Held]]:
        """Pairs of eager and Switchgear with the same checkpointing."""
        return list(zip(self.held[1::2], self.held[2::2], strict=True))

    def __str__(self) -> str:
        width = max(len(item.name) for item in self.held)
        lines = [f"one step of a GPT-2 of {LAYERS} layers, width {WIDTH}, {BATCH} × {LENGTH} tokens, dropout on"]
        lines.append(f"  {'':{width}}  {'saved bytes':>12}  {'peak bytes':>12}")
        lines += [f"  {item.name:{width}}  {item.saved:12,}  {item.peak:12,}" for item in self.held]
        peak = max(mine.peak / theirs.peak for theirs, mine in self.pairs)
        lines.append(f"  peak: {peak:.3f} of eager's")
        holds = "yes" if self.ratio <= LIMIT else "NO"
        return "\n".join([*lines, f"  saved: {self.ratio:.3f} of eager's, at most {LIMIT:g} wanted: {holds}"])


def gpt2() -> Any:
    """Return a fresh GPT-2, dropout on."""
    config = transformers.GPT2Config(
        n_layer=LAYERS,
        n_head=4,
        n_embd=WIDTH,
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config).train()


def enable(model: Any) -> None:
    """Turn checkpointing on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers plans another name for the method
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def candidates(checkpointed: bool) -> list[Held]:
    """Measure eager and Switchgear, on the second step of each, with or without checkpointing."""
    model = gpt2()
    if checkpointed:
        enable(model)
    twin = copy.deepcopy(model)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    kind = ", checkpointed" if checkpointed else ""
    results = []
    for name, owner, called in (("eager", model, model), ("switchgear", twin, sg.jit(twin, executors=["torch"]))):
        for _ in range(2):
            owner.zero_grad(set_to_none=True)
            held = measure(name + kind, lambda: called(input_ids=ids, labels=ids).loss)  # noqa: B023
        results.append(held)
    for first, second in zip(model.parameters(), twin.parameters(), strict=True):
        if first.grad is None or second.grad is None or first.grad.shape != second.grad.shape:
            raise RuntimeError("a parameter has no gradient")
    return results


def run(rounds: int) -> Result:
    """Measure once: the bytes are equal in every round."""
    transformers.logging.set_verbosity_error()
    return Result([candidates(False)[0], *candidates(True)])
