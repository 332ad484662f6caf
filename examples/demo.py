"""Train a small GPT-2 and a small Llama of transformers through Switchgear, beside the same models in eager PyTorch.

Prints the loss of every step beside eager's, the forward and backward trace of one GPT-2 block, and which executor took
which operator. Ends with status 1 if a loss or a trained parameter is not bit-equal to eager's.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

# No model is downloaded: the configurations below are made here, and so are the weights.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import switchgear as sg

VOCABULARY, LENGTH, BATCH = 100, 16, 4


def gpt2() -> torch.nn.Module:
    """A GPT-2 of two layers, dropout on."""
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=VOCABULARY,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def llama() -> torch.nn.Module:
    """A Llama of two layers, with grouped-query attention."""
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"GPT-2": gpt2, "Llama": llama}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when everything is bit-equal to eager."""
    options = parse(arguments)
    transformers.logging.set_verbosity_error()
    equal = True
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make().train()
        compiled = sg.jit(copy.deepcopy(model), executors=options.executors)
        equal &= train(name, model, compiled, options.steps)
        show_choices(name, compiled)
    show_block(options.executors, full=options.full)
    verdict = "every loss and trained parameter bit-equal to eager's" if equal else "NOT EQUAL to eager's, see above"
    print(f"\n{verdict}")
    return 0 if equal else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="training steps of each model (default: %(default)s)")
    parser.add_argument(
        "--executors", nargs="+", default=["torch"], metavar="NAME", help="executors, the first is asked first"
    )
    parser.add_argument(
        "--full", action="store_true", help="print every stage of the block's traces, not only the last"
    )
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    return options


def train(name: str, eager: torch.nn.Module, compiled: torch.nn.Module, steps: int) -> bool:
    """Train both with the same data under the same seeds, print the losses; whether all is bit-equal."""
    heading(f"{name}: {steps} training steps, dropout {'on' if has_dropout(eager) else 'off'}")
    print(f"{'step':>4}  {'eager':>12}  {'switchgear':>12}  {'bit-equal':9}  {'seconds':>7}")
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (eager, compiled)]
    batches = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH))
    equal = True
    for index in range(steps):
        ids = batches[index % len(batches)]
        expected = step(eager, optimizers[0], ids, seed=index)
        start = time.perf_counter()
        found = step(compiled, optimizers[1], ids, seed=index)
        seconds = time.perf_counter() - start
        same = torch.equal(expected, found)
        equal &= same
        note = "  the first call captures, differentiates and compiles" if index == 0 else ""
        print(f"{index:>4}  {expected:12.8f}  {found:12.8f}  {'yes' if same else 'NO':9}  {seconds:7.3f}{note}")
    different = [
        path
        for (path, trained), other in zip(eager.named_parameters(), compiled.parameters(), strict=True)
        if not torch.equal(trained, other)
    ]
    print(f"trained parameters: {'all bit-equal' if not different else 'DIFFERENT: ' + ', '.join(different)}")
    return equal and not different


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor, seed: int) -> torch.Tensor:
    """One training step; its loss."""
    torch.manual_seed(seed)
    optimizer.zero_grad()
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    return loss.detach()


def has_dropout(model: torch.nn.Module) -> bool:
    """Whether a dropout module of the model drops anything."""
    return any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())


def show_choices(name: str, compiled: Any) -> None:
    """Who took which operator, and whose rule differentiates it."""
    for kind, title in (("execution", "who runs which operator"), ("gradient", "whose rule differentiates it")):
        counts = Counter((choice.symbol, choice.owner) for choice in sg.last_choices(compiled) if choice.kind == kind)
        owners = Counter(owner for _, owner in counts.elements())
        print(f"\n{name}: {title} ({', '.join(f'{owner} {count}' for owner, count in owners.most_common())})")
        for (symbol, owner), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            print(f"  {count:>4} × {symbol:<55} {owner}")


def show_block(executors: Sequence[str], *, full: bool) -> None:
    """The traces of one GPT-2 block, forward and backward, as they are executed."""
    torch.manual_seed(0)
    model: Any = gpt2().train()
    block = sg.jit(model.transformer.h[0], executors=executors)
    hidden = torch.randn(2, LENGTH, 32, requires_grad=True)
    block(hidden).sum().backward()
    for title, traces in (("forward", sg.last_traces(block)), ("backward", sg.last_backward_traces(block))):
        for trace in traces if full else traces[-1:]:
            heading(f"one GPT-2 block, {title}, after the pass {trace.provenance[-1].name}")
            print(trace.python(link=True).rstrip())


def heading(text: str) -> None:
    """Print a line that stands out."""
    print(f"\n{text}\n{'=' * len(text)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except sg.errors.UnknownExecutor as error:
        sys.exit(f"demo.py: {error}")
