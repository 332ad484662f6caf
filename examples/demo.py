"""Train a small GPT-2 and a small Llama of transformers through Switchgear, next to the same models in eager PyTorch.

Prints losses next to eager's, time and saved bytes of a step, and which executor ran what; `--full` adds every operator
and the traces of one GPT-2 block. Ends with status 1 if a loss or a trained parameter is not bit-identical to eager's.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

# No model is downloaded: configurations and weights are created here.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from first_plugin import rules  # type: ignore[import-not-found]  # next to this file

import switchgear as sg

VOCABULARY, LENGTH, BATCH = 100, 16, 4


def gpt2() -> torch.nn.Module:
    """Build a GPT-2 of two layers, dropout on."""
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
    """Build a Llama of two layers, with grouped-query attention."""
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
    """Run the demo; return 0 if everything is bit-identical to eager mode."""
    options = parse(arguments)
    transformers.logging.set_verbosity_error()
    equal = True
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make().train()
        compiled = sg.jit(copy.deepcopy(model), executors=["torch"])
        equal &= train(name, model, compiled, options.steps)
        if options.full:
            show_choices(name, compiled)
    compare(options.executors)
    show_plugin()
    if options.full:
        show_block(options.executors)
    verdict = "bit-identical to eager's" if equal else "NOT the same as eager's, see above"
    print(f"\nWith executors=['torch'], losses and trained parameters are {verdict}.")
    return 0 if equal else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="training steps of each model (default: %(default)s)")
    parser.add_argument(
        "--executors",
        nargs="+",
        default="auto",
        metavar="NAME",
        help="executors to compare, by priority (default: auto)",
    )
    parser.add_argument("--full", action="store_true", help="print every operator, and the traces of one GPT-2 block")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    return options


def train(name: str, eager: torch.nn.Module, compiled: torch.nn.Module, steps: int) -> bool:
    """Train both with the same data under the same seeds, print losses; return whether all is bit-identical."""
    print(f"{name}, {steps} training steps    eager loss   switchgear's  bit-identical  seconds")
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (eager, compiled)]
    batches = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH))
    equal = True
    for index in range(steps):
        ids = batches[index % len(batches)]
        expected = step(eager, optimizers[0], ids, seed=index)
        start = time.perf_counter()
        loss = step(compiled, optimizers[1], ids, seed=index)
        seconds = time.perf_counter() - start
        is_same = torch.equal(expected, loss)
        equal &= is_same
        if index in (0, 1, steps - 1) or not is_same:
            note = "  captured and compiled" if index == 0 else ""
            losses = f"{expected:14.8f} {loss:14.8f}  {'yes' if is_same else 'NO':13}"
            print(f"{index:>{len(name) + 17}}  {losses}  {seconds:7.3f}{note}")
    different = [
        path
        for (path, trained), other in zip(eager.named_parameters(), compiled.parameters(), strict=True)
        if not torch.equal(trained, other)
    ]
    if different:
        print(f"parameters that differ: {', '.join(different)}")
    return equal and not different


def compare(executors: Any) -> None:
    """Print time and saved bytes of a GPT-2 training step: eager, by the executors, and within a budget of memory."""
    torch.manual_seed(0)
    model = gpt2().train()
    contestants: dict[str, Any] = {
        f"executors={executors!r}": sg.jit(copy.deepcopy(model), executors=executors, compile="now"),
        "executors=['torch'], memory=0.5": sg.jit(copy.deepcopy(model), executors=["torch"], memory=0.5),
        "eager": model,
    }
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    explanations: dict[str, Any] = {}
    for label, contestant in contestants.items():
        contestant(input_ids=ids, labels=ids).loss.backward()
        if contestant is not model:
            explanations[label] = sg.explain(contestant).as_dict()
    seconds: dict[str, list[float]] = {label: [] for label in contestants}
    for _ in range(15):
        for label, contestant in contestants.items():
            start = time.perf_counter()
            contestant(input_ids=ids, labels=ids).loss.backward()
            seconds[label].append(time.perf_counter() - start)
    first = next(label for label in contestants if label != "eager")
    page = sg.explain(contestants[first]).html("trace.html")
    width = max(map(len, contestants))
    print(f"\n{'GPT-2, forward and backward':{width}}  milliseconds  saved kB  run by")
    for label in contestants:
        facts = explanations.get(label, {})
        saved = facts["saved_bytes"] if facts else next(iter(explanations.values()))["eager_saved_bytes"]
        counts = [f"{one['executor']} {one['forward'] + one['backward']}" for one in facts.get("by_executor", ())]
        print(
            f"{label:{width}}  {1e3 * statistics.median(seconds[label]):12.2f}  {saved / 1e3:8.1f}  {', '.join(counts)}"
        )
    print(f"{page} shows the first of these line by line; open it in a browser")


def show_plugin() -> None:
    """Print which lines the executor of examples/first_plugin.py wins."""
    first = sg.Executor("first", table=rules)
    f = sg.jit(lambda x: F.softplus(x).sin().sum(), executors=[first, "torch"])
    f(torch.randn(4, requires_grad=True)).backward()
    owners = [
        f"{choice.symbol} by {choice.owner}"
        for choice in sg.last_choices(f)
        if choice.kind == "execution" and choice.symbol.split(".")[-1] in ("softplus", "sin")
    ]
    print(f"\nA plugin of 30 lines (examples/first_plugin.py) before torch: {', '.join(owners) or sg.explain(f)}")


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor, seed: int) -> torch.Tensor:
    """Run one training step; return its loss."""
    torch.manual_seed(seed)
    optimizer.zero_grad()
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    return loss.detach()


def show_choices(name: str, compiled: Any) -> None:
    """Print the executor of each operator, and the owner of each grad rule."""
    for kind, title in (("execution", "who runs which operator"), ("gradient", "whose rule differentiates it")):
        counts = Counter((choice.symbol, choice.owner) for choice in sg.last_choices(compiled) if choice.kind == kind)
        owners = Counter(owner for _, owner in counts.elements())
        print(f"\n{name}: {title} ({', '.join(f'{owner} {count}' for owner, count in owners.most_common())})")
        for (symbol, owner), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            print(f"  {count:>4} × {symbol:<55} {owner}")


def show_block(executors: Any) -> None:
    """Print the executed traces of one GPT-2 block, forward and backward."""
    torch.manual_seed(0)
    model: Any = gpt2().train()
    block = sg.jit(model.transformer.h[0], executors=executors)
    hidden = torch.randn(2, LENGTH, 32, requires_grad=True)
    block(hidden).sum().backward()
    for title, traces in (("forward", sg.last_traces(block)), ("backward", sg.last_backward_traces(block))):
        for trace in traces:
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
