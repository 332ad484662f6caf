"""Small training scripts of fourteen kinds: each calls `jit` once or twice, and yields the loss of each step."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence

Jit = Callable[[Any], Any]
#: A script: yields the loss of each step.
Script = Callable[[Jit, int], Iterator[Tensor]]


def classifier(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a convolutional classifier of images with dropout and a falling learning rate."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(32 * 144, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    model = jit(net)
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    for step in range(steps):
        x, y = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            net.eval()
            with torch.no_grad():
                model(x)
            net.train()
        yield loss


def variational(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a variational autoencoder, by distributions."""

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.moments = nn.Linear(784, 256), nn.Linear(256, 40)
            self.decode, self.pixels = nn.Linear(20, 256), nn.Linear(256, 784)

        def forward(self, x: Tensor) -> Tensor:
            mean, scale = self.moments(self.encode(x).relu()).chunk(2, -1)
            posterior = Normal(mean, F.softplus(scale))
            pixels = self.pixels(self.decode(posterior.rsample()).relu())
            divergence = kl_divergence(posterior, Normal(0.0, 1.0)).sum()
            return F.binary_cross_entropy_with_logits(pixels, x, reduction="sum") + divergence

    net = Autoencoder()
    model = jit(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = model(torch.rand(64, 784))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def adversarial(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train generator and discriminator of images, both with batch norm."""
    generator = nn.Sequential(
        *(nn.ConvTranspose2d(32, 64, 4), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)),
    )
    discriminator = nn.Sequential(
        *(nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.BatchNorm2d(64)),
        *(nn.LeakyReLU(0.2), nn.Conv2d(64, 1, 4), nn.Flatten(0)),
    )
    judge, draw = jit(discriminator), jit(generator)
    optimizers = [torch.optim.Adam(net.parameters(), 2e-4, (0.5, 0.999)) for net in (discriminator, generator)]
    for _ in range(steps):
        real, noise = torch.randn(16, 1, 16, 16), torch.randn(16, 32, 1, 1)
        fake = draw(noise).tanh()
        discriminator.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss.backward()
        optimizers[0].step()
        generator.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        optimizers[1].step()
        yield loss


def recurrent_language(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a language model of LSTMs that passes its state on, with clipped gradients."""

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm = nn.Embedding(200, 64), nn.LSTM(64, 64, 2, dropout=0.2)
            self.decode = nn.Linear(64, 200)

        def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            output, state = self.lstm(self.embed(tokens), state)
            return self.decode(output), state

    net = Language()
    model = jit(net)
    state = (torch.zeros(2, 8, 64), torch.zeros(2, 8, 64))
    for _ in range(steps):
        tokens = torch.randint(0, 200, (21, 8))
        net.zero_grad()
        logits, state = model(tokens[:-1], (state[0].detach(), state[1].detach()))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-0.5)
        yield loss


def attentive_language(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a language model of transformer encoders that keeps its mask, with a learning rate warm-up."""

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.decode = nn.Embedding(200, 64), nn.Linear(64, 200)
            layer = nn.TransformerEncoderLayer(64, 4, 128, 0.2)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.mask: Tensor | None = None

        def forward(self, tokens: Tensor) -> Tensor:
            if self.mask is None or self.mask.shape[0] != len(tokens):
                self.mask = nn.Transformer.generate_square_subsequent_mask(len(tokens))
            x = self.embed(tokens) * math.sqrt(64)
            return F.log_softmax(self.decode(self.layers(x, self.mask)), -1)

    net = Language()
    model = jit(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    for _ in range(steps):
        tokens = torch.randint(0, 200, (21, 8))
        optimizer.zero_grad()
        loss = F.nll_loss(model(tokens[:-1]).flatten(0, 1), tokens[1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))  # type: ignore[no-any-return]


def accumulating_language(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a GPT whose gradients are accumulated over two batches and clipped, under a cosine schedule."""

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(128, 96), nn.Embedding(64, 96)
            self.blocks = nn.ModuleList([_Block(96, 6, True) for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 128, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    net = Language()
    model = jit(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for _ in range(2):
            tokens = torch.randint(0, 128, (8, 65))
            _, loss = model(tokens[:, :-1], tokens[:, 1:])
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss


def vision(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a vision transformer in bfloat16 autocast, with label smoothing."""

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 96, 4, 4)
            self.first, self.places = nn.Parameter(torch.zeros(1, 1, 96)), nn.Parameter(torch.randn(1, 65, 96))
            self.blocks = nn.Sequential(*(_Block(96, 3, False) for _ in range(3)))
            self.head = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 10))

        def forward(self, x: Tensor) -> Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
            return self.head(self.blocks(x)[:, 0])  # type: ignore[no-any-return]

    net = Vision()
    model = jit(net)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-4)
    for _ in range(steps):
        x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def penalised(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a critic with a penalty on its gradient, by gradients of second order."""
    critic = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 1))
    judge = jit(critic)
    optimizer = torch.optim.Adam(critic.parameters(), 1e-4)
    for _ in range(steps):
        real, fake, share = torch.randn(64, 256), torch.rand(64, 256), torch.rand(64, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, 1) - 1).square().mean()
        loss = judge(fake).mean() - judge(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def physical(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a network that solves a differential equation, by LBFGS; the residual takes gradients of second order."""
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    u = jit(net)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    places = torch.rand(200, 2)
    edge = torch.cat([torch.zeros(50, 1), torch.rand(50, 1)], 1)

    def closure() -> Any:
        optimizer.zero_grad()
        x = places.clone().requires_grad_()
        value = u(x)
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        loss = (slope[:, :1] + value * slope[:, 1:]).square().mean() + u(edge).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        yield optimizer.step(closure)


class _Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, state: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        policy = Categorical(logits=self.actor(state))
        chosen = policy.sample() if action is None else action
        return chosen, policy.log_prob(chosen), policy.entropy(), self.critic(state).squeeze(-1)


def policy_optimisation(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train by proximal policy optimisation: rollouts without gradients, and clipped updates."""
    net = _Policy()
    agent = jit(net)
    optimizer = torch.optim.Adam(net.parameters(), 2.5e-4, eps=1e-5)
    for _ in range(steps):
        states = torch.randn(16, 4, 8)
        with torch.no_grad():
            rollout = [agent(state) for state in states]
        action, before, _, value = (torch.stack(parts).flatten() for parts in zip(*rollout, strict=True))
        reward = torch.randn(64)
        _, after, entropy, now = agent(states.flatten(0, 1), action)
        ratio, gain = (after - before).exp(), reward - value
        loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
        loss = loss + 0.5 * (now - reward).square().mean() - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        yield loss


def value_learning(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train by deep Q-learning with a replay buffer, a target network, and falling exploration."""
    net = nn.Sequential(nn.Linear(8, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 4))
    target = nn.Sequential(nn.Linear(8, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 4))
    target.load_state_dict(net.state_dict())
    model = jit(net)
    optimizer = torch.optim.Adam(net.parameters(), 2.5e-4)
    replay: deque[tuple[Tensor, int, float, Tensor]] = deque(maxlen=500)
    for step in range(steps):
        for _ in range(8):
            state, explores = torch.randn(8), random.random() < max(0.05, 1 - step / 20)
            with torch.no_grad():
                action = random.randrange(4) if explores else int(model(state[None]).argmax(1))
            replay.append((state, action, random.random(), torch.randn(8)))
        state, action, reward, then = zip(*random.choices(replay, k=32), strict=True)  # type: ignore[assignment]
        with torch.no_grad():
            goal = torch.tensor(reward) + 0.99 * target(torch.stack(list(then))).amax(1)
        value = model(torch.stack(list(state))).gather(1, torch.tensor(action)[:, None]).squeeze(1)
        loss = F.mse_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            for mine, theirs in zip(target.parameters(), net.parameters(), strict=True):
                mine.data.lerp_(theirs.data, 0.5)
        yield loss


def graph(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a graph network: a mask removes loops from the edges, degrees are counted, messages are summed."""

    class Convolution(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.weight = nn.Linear(inputs, outputs)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            edges = edges[:, edges[0] != edges[1]]
            loops = torch.arange(len(x)).expand(2, -1)
            source, goal = torch.cat([edges, loops], 1)
            degree = torch.zeros(len(x)).index_add_(0, goal, torch.ones(len(goal)))
            share = degree.rsqrt()[source] * degree.rsqrt()[goal]
            y = self.weight(x)
            return torch.zeros_like(y).index_add_(0, goal, y[source] * share[:, None])

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Convolution(64, 32), Convolution(32, 7)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = F.dropout(self.first(x, edges).relu(), 0.5, self.training)
            return self.second(x, edges)  # type: ignore[no-any-return]

    net = Network()
    model = jit(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)
    x, edges, y = torch.randn(500, 64), torch.randint(0, 500, (2, 2000)), torch.randint(0, 7, (500,))
    mask = torch.rand(500) < 0.3
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges)[mask], y[mask])
        loss.backward()
        optimizer.step()
        yield loss


def forced(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train a translator that gets the right previous word, at random, in its forward."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.encoder = nn.Embedding(50, 64), nn.GRU(64, 64)
            self.decoder, self.out = nn.GRU(64, 64), nn.Linear(64, 50)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            _, state = self.encoder(self.words(source))
            word, outputs = target[0], []
            for place in range(1, len(target)):
                output, state = self.decoder(self.words(word)[None], state)
                outputs.append(self.out(output[0]))
                word = target[place] if random.random() < 0.5 else outputs[-1].argmax(1)
            return torch.stack(outputs)

    net = Translator()
    model = jit(net)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        source, target = torch.randint(0, 50, (8, 16)), torch.randint(0, 50, (6, 16))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(source, target).flatten(0, 1), target[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1)
        optimizer.step()
        yield loss


def rollout(jit: Jit, steps: int) -> Iterator[Tensor]:
    """Train LSTM cells, step by step over a series, then some steps further on their own results."""

    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51)
            self.out = nn.Linear(51, 1)

        def forward(self, series: Tensor, further: int = 0) -> Tensor:
            states = [torch.zeros(len(series), 51) for _ in range(4)]
            outputs: list[Tensor] = []
            for place in range(series.shape[1] + further):
                x = series[:, place : place + 1] if place < series.shape[1] else outputs[-1]
                states[:2] = self.first(x, (states[0], states[1]))
                states[2:] = self.second(states[0], (states[2], states[3]))
                outputs.append(self.out(states[2]))
            return torch.cat(outputs, 1)

    net = Series()
    model = jit(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    series = torch.sin(torch.arange(21) / 3 + torch.rand(16, 1) * 6)
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(series[:, :-1]), series[:, 1:])
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            with torch.no_grad():
                model(series[:, :-1], further=20)
        yield loss


SCRIPTS: dict[str, Script] = {
    "classifier of images": classifier,
    "variational autoencoder": variational,
    "generator and discriminator": adversarial,
    "language model, LSTM": recurrent_language,
    "language model, Transformer": attentive_language,
    "GPT": accumulating_language,
    "vision transformer": vision,
    "critic with a gradient penalty": penalised,
    "differential equation, LBFGS": physical,
    "policy optimisation": policy_optimisation,
    "Q-learning": value_learning,
    "graph network": graph,
    "translator, words forced": forced,
    "series, LSTM cells": rollout,
}
