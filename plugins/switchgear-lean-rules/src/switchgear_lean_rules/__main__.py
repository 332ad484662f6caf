"""Saved bytes and time of a training step with the rules and without: `python -m switchgear_lean_rules`."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import switchgear as sg


def gpt2(attention: str) -> Any:
    """Return a small GPT-2 with random weights."""
    sizes: dict[str, Any] = {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000, "n_positions": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ends, attn_implementation=attention))


def bert(attention: str) -> Any:
    """Return a small BERT with random weights."""
    sizes: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4}
    more: dict[str, Any] = {"intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 64}
    return BertForMaskedLM(BertConfig(**sizes, **more, attn_implementation=attention))


def saved_bytes(model: Any) -> int:
    """Return the bytes that the last forward saved, without inputs."""
    return sum(value.bytes for value in sg.last_saved(model) if not value.alive)


def main() -> None:
    """Print bytes and time, their ratios, and the differences of losses and gradients."""
    parser = argparse.ArgumentParser(
        prog="python -m switchgear_lean_rules", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    options = parser.parse_args()
    sides: dict[str, tuple[list[Any], list[Any]]] = {
        "torch": (["torch"], ["lean_rules", "torch"]),
        "default": ([..., "-lean_rules"], [...]),
    }
    header = f"{'':14}{'saved MB':>12}{'with':>8}{'ratio':>8}{'median ms':>12}{'with':>8}{'ratio':>8}{'quartiles':>16}"
    print(header + f"{'loss apart':>12}{'gradient':>10}")
    ids = torch.randint(1000, (4, 64), generator=torch.Generator().manual_seed(0))
    for make in (gpt2, bert):
        for name, lists in sides.items():
            models = []
            for executors in lists:
                torch.manual_seed(0)
                model = make(options.attention).train()
                # the measured steps run compiled code, and no compilation runs next to them
                models.append(sg.jit(model, executors=executors, compile="now"))

            def step(model: Any, seed: int) -> tuple[float, float]:
                torch.manual_seed(seed)
                model.zero_grad()
                begun = time.perf_counter()
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                return time.perf_counter() - begun, loss.item()

            took: list[list[float]] = [[], []]
            distance = 0.0
            for round in range(-3, options.rounds):
                pair = [step(model, round + 3) for model in models[:: 1 if round % 2 else -1]][
                    :: 1 if round % 2 else -1
                ]
                distance = max(distance, abs(pair[0][1] / pair[1][1] - 1))
                if round >= 0:
                    for times, (seconds, _) in zip(took, pair, strict=True):
                        times.append(seconds)
            pairs = zip(*(model.parameters() for model in models), strict=True)
            far = max(float((old.grad - new.grad).norm() / new.grad.norm().clamp(min=1e-3)) for old, new in pairs)
            before, after = map(saved_bytes, models)
            low, ratio, high = statistics.quantiles([new / old for old, new in zip(*took, strict=True)])
            medians = [1e3 * statistics.median(times) for times in took]
            print(
                f"{make.__name__ + ' ' + name:14}{before / 1e6:12.2f}{after / 1e6:8.2f}{after / before:8.3f}"
                f"{medians[0]:12.2f}{medians[1]:8.2f}{ratio:8.3f}{f'{low:.3f} to {high:.3f}':>16}"
                f"{distance:12.1e}{far:10.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
