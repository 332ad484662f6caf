"""What random programs are made of: statements as real code has them, each with how often it is drawn.

A template is a function that picks operands of a `Writer` and writes a statement or a few.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.fuzz.writer import NotHere, Writer, apart, broadcasts_to, floating, like, of_rank, writable

Template = Callable[[Writer], None]

TEMPLATES: dict[str, Template] = {}
WEIGHTS: dict[str, float] = {}


def template(weight: float) -> Callable[[Template], Template]:
    """Put the decorated function into the table under its name."""

    def register(write: Template) -> Template:
        TEMPLATES[write.__name__] = write
        WEIGHTS[write.__name__] = weight
        return write

    return register


# Arithmetic.


@template(8)
def activation(w: Writer) -> None:
    x = w.tensor()
    names = ("sin", "cos", "exp", "tanh", "sigmoid", "relu", "square", "abs", "erf")
    functional = ("gelu", "silu", "softplus", "relu", "leaky_relu")
    w.value(w.choose(f"{x}.{w.choose(*names)}()", f"F.{w.choose(*functional)}({x})", f"torch.{w.choose(*names)}({x})"))


@template(6)
def arithmetic(w: Writer) -> None:
    x = w.tensor()
    y = w.tensor(broadcasts_to(w[x]))
    w.value(w.choose(f"{x} + {y}", f"{x} * {y}", f"{x} - {y}", f"{y} / ({x}.abs() + 1)", f"torch.maximum({x}, {y})"))


@template(4)
def scaled(w: Writer) -> None:
    x, k = w.tensor(), w.scale()
    w.value(w.choose(f"{x} * {k}", f"{k} - {x}", f"{x} + {k}", f"{x} / 3", f"{x} ** 2", f"{x}.clamp(-1, 1)"))


@template(3)
def mixed(w: Writer) -> None:
    x = w.tensor()
    y = w.tensor(like(w[x]))
    w.value(
        w.choose(
            f"torch.lerp({x}, {y}, 0.3)",
            f"torch.where({x} > 0, {x}, {y})",
            f"torch.addcmul({x}, {y}, {y}, value=0.5)",
            f"{x} + ({y} - {x}).detach()",
            f"sum([{x}, {y}, {x}])",
        )
    )


@template(2)
def conversion(w: Writer) -> None:
    x = w.tensor()
    y = w.tensor()
    w.value(
        w.choose(
            f"{x}.to(torch.float64)",
            f"{x}.float()",
            f"{x}.to(torch.bfloat16)",
            f"{x}.to({y}.dtype)",
            f"{x}.type_as({y})",
            f"{x}.contiguous()",
            f"{x}.clone()",
        )
    )


@template(2)
def detached(w: Writer) -> None:
    x = w.held()
    w.value(w.choose(f"{x}.detach()", f"{x}.data", f"{w.tensor()}.detach().clone()"))


# What layers do.


@template(3)
def residual(w: Writer) -> None:
    x = w.tensor()
    w.value(w.choose(f"{x} + F.gelu({x})", f"{x} + 0.5 * torch.tanh({x})", f"{x} * torch.sigmoid({x})"))


@template(3)
def norm(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    w.value(
        w.choose(
            f"F.layer_norm({x}, {x}.shape[-1:])",
            f"{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-6)",
            f"({x} - {x}.mean(-1, keepdim=True)) / ({x}.std(-1, keepdim=True, correction=0) + 1e-5)",
            f"F.normalize({x}, dim=-1)",
            f"{x}.softmax(-1)",
            f"F.log_softmax({x}, -1)",
        )
    )


@template(2)
def attention(w: Writer) -> None:
    x = w.tensor(of_rank(2, 3))
    scores = w.value(f"{x} @ {x}.mT / math.sqrt({x}.shape[-1])")
    n = f"{scores}.shape[-1]"
    w.value(
        w.choose(
            f"{scores}.masked_fill(torch.ones({n}, {n}, dtype=torch.bool).triu(1), float('-inf')).softmax(-1) @ {x}",
            f"({scores} + torch.full(({n}, {n}), torch.finfo({scores}.dtype).min).triu(1)).softmax(-1) @ {x}",
            f"F.scaled_dot_product_attention({x}[None], {x}[None], {x}[None], is_causal=True)[0]",
        )
    )


@template(2)
def product(w: Writer) -> None:
    x = w.tensor(of_rank(2, 3))
    w.value(
        w.choose(f"{x} @ {x}.mT", f"torch.einsum('...ij,...kj->...ik', {x}, {x})", f"F.linear({x}, {x}[..., :2, :])")
    )


@template(2)
def rotated(w: Writer) -> None:
    x = w.tensor(lambda x: floating(x) and x.dim() > 0 and x.shape[-1] % 2 == 0 and x.numel() > 0)
    w.run(f"half = {x}.shape[-1] // 2")
    w.value(f"{x} * 0.8 + torch.cat((-{x}[..., half:], {x}[..., :half]), dim=-1) * 0.6")


@template(2)
def loss(w: Writer) -> None:
    x = w.tensor(of_rank(2, 2))
    y = w.tensor(like(w[x]))
    w.value(
        w.choose(f"F.mse_loss({x}, {y})", f"F.cross_entropy({x}, {y}.argmax(-1))", f"({x} - {y}.detach()).abs().mean()")
    )


@template(4)
def reduction(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    w.value(
        w.choose(
            f"{x}.sum()",
            f"{x}.mean(-1)",
            f"{x}.sum(0, keepdim=True)",
            f"{x}.amax(-1)",
            f"{x}.max(-1).values",
            f"{x}.norm()",
            f"{x}.cumsum(-1)",
            f"{x}.logsumexp(0)",
            f"torch.topk({x}, 2, dim=-1)[0]",
            f"{x}.sort(-1)[0]",
        )
    )


@template(2)
def dropout(w: Writer) -> None:
    x = w.tensor()
    training = w.choose("True", *w.flags)
    w.value(
        w.choose(
            f"F.dropout({x}, 0.3, training={training})",
            f"{x} * (torch.rand_like({x}) > 0.2)",
            f"{x} + torch.randn({x}.shape) * 0.1",
        )
    )


# Shapes.


@template(6)
def view(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    choices = [
        f"{x}.view(-1)",
        f"{x}.reshape(-1)",
        f"{x}.flatten()",
        f"{x}.unsqueeze(0)",
        f"{x}[..., None]",
        f"{x}[None]",
        f"{x}.view({x}.shape)",
        f"{x}.view_as({x})",
        f"{x}.expand(2, *{x}.shape)",
        f"{x}.squeeze()",
    ]
    if w[x].dim() > 1:
        choices += [
            f"{x}.transpose(0, 1)",
            f"{x}.mT",
            f"{x}.movedim(0, -1)",
            f"{x}.flatten(0, 1)",
            f"{x}.reshape({x}.shape[0], -1)",
            f"{x}.permute(*reversed(range({x}.dim())))",
            f"{x}.transpose(-1, -2).contiguous().view(-1, {x}.shape[0])",
        ]
    w.value(w.choose(*choices))


@template(2)
def heads(w: Writer) -> None:
    x = w.tensor(lambda x: floating(x) and x.dim() > 1 and x.shape[-1] % 2 == 0 and x.numel() > 0)
    split = w.new()
    w.run(f"{split} = {x}.view(*{x}.shape[:-1], 2, {x}.shape[-1] // 2).transpose(-2, -3)", split)
    w.run(f"{split} = {split} * 0.7", split)
    w.value(f"{split}.transpose(-2, -3).reshape({x}.shape)")


@template(3)
def patches(w: Writer) -> None:
    x = w.tensor(of_rank(2))
    w.run(f"rows, columns = {x}.shape[0], {x}.shape[1]")
    w.value(
        w.choose(
            f"{x}.reshape(rows * columns, -1)",
            f"{x}.reshape(1, rows, columns, -1).permute(0, 2, 1, 3).reshape(columns, -1)",
            f"{x}.new_ones(columns, rows) @ {x}.reshape(rows, -1)",
            f"torch.arange(rows * columns, dtype={x}.dtype).view(rows, columns)",
        )
    )


@template(5)
def part(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    choices = [f"{x}[0]", f"{x}[1:]", f"{x}[..., -1]", f"{x}[..., ::2]", f"{x}[:-1]", f"{x}[{x}.shape[0] // 2]"]
    if w[x].dim() > 1:
        choices += [f"{x}[:, 0]", f"{x}[:, -1:]", f"{x}[1:, :-1]", f"{x}.diagonal()", f"{x}.narrow(1, 0, 1)"]
    w.value(w.choose(*choices))


@template(3)
def chunks(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    first, second = w.new(), w.new()
    dim = w.choose("0", "-1")
    w.run(
        w.choose(
            f"{first}, {second} = {x}.chunk(2, dim={dim})",
            f"{first}, {second} = {x}.split([1, {x}.shape[{dim}] - 1], dim={dim})",
            f"{first}, *rest, {second} = {x}.unbind({dim})",
            f"{first}, {second} = torch.tensor_split({x}, 2, dim={dim})",
        ),
        first,
        second,
    )


@template(2)
def gathered(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    w.value(
        w.choose(
            f"{x}[torch.tensor([0, -1])]",
            f"{x}.index_select(0, torch.arange({x}.shape[0]).flip(0))",
            f"{x}.gather(-1, {x}.argsort(-1))",
            f"{x}.take_along_dim({x}.argmax(-1, keepdim=True), -1)",
            f"torch.stack([{x}, {x}.flip(0)]).sum(0)",
            f"torch.cat([{x}, {x}[:1]])",
            f"F.pad({x}, (1, 0))",
            f"torch.roll({x}, 1, 0)",
            f"F.embedding(torch.tensor([[0, 1], [1, 0]]), {x})" if w[x].dim() == 2 else f"{x}.repeat(2)",
        )
    )


@template(0.3)
def by_data(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    w.value(
        w.choose(
            f"{x}[({x}.sum() * 0).long()]",
            f"{x}[{x} > 0]",
            f"{x}[0] * {x}.sum().item()",
            f"{x} if {x}.sum() > 0 else -{x}",
            f"{x}[: int({x}.argmax()) + 1]",
            f"{x}[{x}.argmax(0).view(-1)[0]]",
        )
    )


# Writes.


@template(6)
def in_place(w: Writer) -> None:
    x = w.target(writable)
    y = w.tensor(apart(w[x]))
    k = w.scale()
    w.run(
        w.choose(
            f"{x}.mul_({k})",
            f"{x} += {y}" if x.isidentifier() else f"{x}.add_({y})",
            f"{x}.add_({y}, alpha=0.5)",
            f"{x}.copy_({y})",
            f"{x}.clamp_(min=0)",
            f"{x}.zero_()",
            f"{x}.masked_fill_({x} > 1, 0)",
            f"{x}.sub_({x}.mean())",
            f"F.relu({x}, inplace=True)",
            f"{x}.mul_(0.9).add_({y}, alpha=0.1)",
            f"{x}.sigmoid_()",
        )
    )


@template(4)
def item_assignment(w: Writer) -> None:
    x = w.target(lambda x: writable(x) and x.dim() > 0 and x.numel() > 0)
    k = w.scale()
    w.run(
        w.choose(
            f"{x}[0] = {k}",
            f"{x}[..., 0] = {x}[..., -1]",
            f"{x}[1:] += {k}",
            f"{x}[..., ::2] *= {k}",
            f"{x}.view(-1)[0] += 0.45",
            f"{x}[{x} > 1] = 0",
            f"{x}[:1].fill_({k})",
            f"{x}[torch.tensor([0])] = {k}",
            f"{x}.select(0, 0).mul_({k})",
        )
    )


@template(6)
def unseen_write(w: Writer) -> None:
    """A write that autograd does not record."""
    x = w.held()
    y = w.tensor(broadcasts_to(w[x]))
    k = w.scale()
    w.run(
        w.choose(
            f"{x}.data.mul_({k})",
            f"{x}.data.add_({y}.data, alpha=-0.1)",
            f"{x}.data.clamp_(-1, 1)",
            f"{x}.data[0] = {k}" if w[x].dim() > 0 and w[x].numel() > 0 else f"{x}.data.fill_({k})",
            f"{x}.data.copy_({y}.detach())",
            f"{x}.detach().mul_({k})",
            f"with torch.no_grad():\n    {x}.mul_({k})",
            f"with torch.no_grad():\n    {x}.add_({y}, alpha=0.5)",
            f"with torch.no_grad():\n    {x}.copy_({x} * 0.9 + {y} * 0.1)",
        )
    )


@template(0.5)
def reshaped_in_place(w: Writer) -> None:
    x = w.tensor(lambda x: writable(x) and 0 < x.dim() < 4)
    w.run(w.choose(f"{x}.unsqueeze_(0)", f"{x}.squeeze_()", f"{x}.t_()" if w[x].dim() < 3 else f"{x}.transpose_(0, 1)"))


@template(4)
def filled(w: Writer) -> None:
    """A new tensor that is written to part by part."""
    x, y = w.tensor(of_rank(1)), w.new()
    w.run(
        w.choose(
            f"{y} = torch.zeros_like({x})\n{y}[1:] = {x}[:-1]",
            f"{y} = {x}.new_zeros({x}.shape)\n{y}.copy_({x})",
            f"{y} = torch.empty_like({x}).copy_({x})",
            f"{y} = torch.zeros({x}.shape[0] + 1, *{x}.shape[1:])\n{y}[: {x}.shape[0]] = {x}",
            f"{y} = {x}.clone()\n{y}[0] = 0",
            f"{y} = torch.zeros_like({x})\nfor i in range({x}.shape[0]):\n    {y}[i] = {x}[i] * i",
        ),
        y,
    )


@template(3)
def optimiser_step(w: Writer) -> None:
    p = w.held(lambda x: floating(x) and x.requires_grad)
    g, m = w.new("g"), w.held(lambda x: like(w[p])(x) and not x.requires_grad)
    w.run(f"{g} = {p}.detach() * 0.1 + 0.01", g)
    w.run(
        w.choose(
            f"with torch.no_grad():\n    {p} -= 0.1 * {g}" if p.isidentifier() else f"{p}.data.sub_(0.1 * {g})",
            f"{m}.mul_(0.9).add_({g}, alpha=0.1)\n{p}.data.add_({m}, alpha=-0.01)",
            f"{m}.lerp_({g}, 0.1)\nwith torch.no_grad():\n    {p}.addcdiv_({m}, {g}.abs() + 1e-8, value=-0.01)",
            f"with torch.no_grad():\n    torch._foreach_add_([{p}], [{g}], alpha=-0.1)",
            f"{p}.data.mul_(1 - 0.01)\n{m}.addcmul_({g}, {g}, value=0.5)",
        )
    )


@template(2)
def moving_average(w: Writer) -> None:
    x = w.tensor()
    m = w.held(lambda m: like(w[x])(m) and not m.requires_grad and m is not w[x])
    w.run(
        w.choose(
            f"{m}.mul_(0.9).add_({x}.detach(), alpha=0.1)",
            f"{m}.copy_({x}.detach())",
            f"with torch.no_grad():\n    {m}.lerp_({x}, 0.1)",
            f"{m}.data = {m}.data * 0.9 + {x}.data * 0.1" if w.chance(0.2) else f"{m}[:1].copy_({x}[:1].detach())",
        )
    )


# Python.


@template(2)
def comprehension(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    w.value(
        w.choose(
            f"torch.stack([row * i for i, row in enumerate({x})])",
            f"torch.cat([c.tanh() for c in {x}.split(1, 0)], dim=0)",
            f"sum(row.mean() for row in {x})",
            f"functools.reduce(torch.add, {x}.unbind(0))",
            f"max({x}.unbind(0), key=lambda row: row.dim()) * 2",
        )
    )


@template(2)
def dictionary(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    parts = w.new("parts")
    w.run(f'{parts} = {{f"row{{i}}": {x}[i] * {w.scale()} for i in range(len({x}))}}')
    w.run(f'{parts}.update(last={x}[-1], name=f"{{tuple({x}.shape)}} {{{x}.dtype}}")')
    w.value(w.choose(f'{parts}["row0"] + {parts}["last"]', f'{parts}.pop("last").cos()', f'{parts}["last"]'))


@template(2)
def callables(w: Writer) -> None:
    x, k = w.tensor(), w.scale()
    act = w.new("act")
    unseen = w.chance(0.1)
    x = w.held() if unseen else x
    w.run(
        f"{act} = lambda v: v.data.mul_({k})"
        if unseen
        else w.choose(
            f"{act} = lambda v, s={k}: v * s",
            f"{act} = functools.partial(torch.mul, other={k})",
            f'{act} = {{"sin": torch.sin, "gelu": F.gelu}}[{w.choose(repr("sin"), repr("gelu"))}]',
            f"{act} = lambda v: v.mul_({k})",
            f"{act} = torch.nn.GELU()",
        )
    )
    w.value(f"{act}({x})")


@template(1)
def sizes(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    n = w.new("n")
    w.run(f"{n} = {w.choose(f'{x}.shape[0]', f'{x}.numel() // 2', f'len({x}) + 1', f'{x}.size(-1) ** 0.5')}")
    w.numbers.append(n)


@template(0.1)
def hooked(w: Writer) -> None:
    # PyTorch 2.13 reads freed memory, in eager, at a hook on a view that was written to under no_grad
    x = w.tensor(lambda x: floating(x) and x.requires_grad and not x.is_leaf and not x._is_view())
    # as in PyTorch's operators of several results, one that gets no gradient has its hooks called with None
    w.run(f"{x}.register_hook(lambda grad: None if grad is None else grad * 2)")


@template(3)
def custom_function(w: Writer) -> None:
    x = w.tensor(of_rank(0, 3))
    y = w.tensor(like(w[x]))
    one = w.new()
    w.run(
        w.choose(
            f"{one} = Cubed.apply({x})",
            f"{one}, _ = SinAndCos.apply({x})",
            f"{one}, _ = ReluAndMask.apply({x})",
            f"{one} = Weighted.apply({x}, {y}, {w.scale()})",
            f"{one} = Rounded.apply({x})",
            f"{one} = {w.choose('Reversed.apply', 'ScaledInPlace.apply')}({x}.clone(), 0.5)"
            if w.chance(0.2)
            else f"{one} = Cubed.apply({y})",
        ),
        one,
    )


@template(2)
def layer(w: Writer) -> None:
    """The submodules that a module's `forward` has."""
    if "self" not in w.scope:
        raise NotHere
    x = w.tensor(lambda x: of_rank(1)(x) and x.shape[-1] == 4)
    w.value(
        w.choose(
            f"self.linear({x})",
            f"F.linear({x}, self.weight, self.bias)",
            f"self.norm({x}.reshape(-1, 4))",
            f"{x} @ self.weight + self.running",
        )
    )


@template(1)
def inner_gradient(w: Writer) -> None:
    x = w.tensor(lambda x: floating(x) and x.requires_grad)
    create = w.choose("True", "False")
    g = w.new("g")
    if w.chance(0.3):
        w.run(f"{g} = torch.func.grad(lambda v: (v.sin() * v).sum())({x})", g)
        return
    w.run(f"({g},) = torch.autograd.grad(({x}.sin() * {x}).sum(), {x}, create_graph={create})", g)


# Blocks: what is written inside is random again.


def fill(w: Writer, most: int) -> None:
    """A few statements."""
    for _ in range(w.random.randint(1, most)):
        step(w)


@template(4)
def under_no_grad(w: Writer) -> None:
    with w.block(f"with torch.{w.choose('no_grad()', 'no_grad()', 'set_grad_enabled(False)')}:"), torch.no_grad():
        fill(w, 3)


@template(1.5)
def under_autocast(w: Writer) -> None:
    with w.block('with torch.autocast("cpu", torch.bfloat16):'), torch.autocast("cpu", torch.bfloat16):
        fill(w, 3)


@template(3)
def loop(w: Writer) -> None:
    """A body that takes what it made the last time."""
    x = w.tensor()
    state = w.value(w.choose(f"{x} * 1", f"{x}.clone()", x))
    counter = w.new("i")
    with w.block(f"for {counter} in range({w.choose('2', '3')}):") as body:
        w.scope[counter] = 0
        w.numbers.append(counter)
        fill(w, 2)
        y = w.tensor(like(w[x]))
        w.run(f"{state} = {state} * 0.5 + {y}", state)
        for w.scope[counter] in (1, 2):
            try:
                exec("\n".join(body[1:]), w.scope)
            except Exception as error:
                del body[1:]
                raise NotHere from error
    w.numbers.remove(counter)


@template(3)
def branch(w: Writer) -> None:
    """The other branch is for calls with other arguments."""
    x = w.tensor()
    y = w.value(w.choose(f"{x} * 2", x))
    condition, other = w.choose(
        (f"{x}.shape[0] > 2" if w[x].dim() else f"{x}.dim() == 0", "else:"),
        (f"{x}.requires_grad", "else:"),
        (f"{x}.dtype == torch.float32", "else:"),
        (f"{x}.is_contiguous()", "else:"),
        *((flag, "else:") for flag in w.flags),
        *((f"isinstance({k}, float)", "else:") for k in w.numbers[:1] if k.startswith("k")),
    )
    taken = bool(w[condition])
    with w.block(f"if {condition}:" if taken else f"if not ({condition}):", local=True):
        fill(w, 2)
        z = w.tensor(like(w[x]))
        w.run(f"{y} = {y} + {z}", y)
    w.lines[-1] += f"\n{other}\n    {y} = {w.choose(f'{y} - 1', f'{y}.mul(3)', f'{x}[...]')}"


@template(2)
def optional_argument(w: Writer) -> None:
    if not w.optional:
        raise NotHere
    mask, x = w.choose(*w.optional), w.tensor()
    y = w.value(f"{x} * 1")
    w.run(f"if {mask} is not None:\n    {y} = {y} * {mask}.sum()\nelse:\n    {y} = {y} - 1", y)


@template(3)
def helper(w: Writer) -> None:
    """A function inside, called with an operand; its body reads names of the outer one, too."""
    x = w.tensor()
    name, parameter, result = w.new("helper"), w.new("p"), w.new()
    w.scope[parameter] = w[x]
    with w.block(f"def {name}({parameter}, scale={w.scale()}):", local=True) as body:
        w.tensors.append(parameter)
        w.made.update((parameter,) if x in w.made else ())
        w.scope["scale"] = 0.5
        w.numbers.append("scale")
        fill(w, 3)
        y = w.tensor()
        body.append(f"return {y}")
    call = w.choose(
        f"{name}({x})",
        f"{name}({x})",
        f"{name}({x}, scale=2)",
        f"checkpoint({name}, {x}, use_reentrant=False)",
        f"[{name}(v) for v in ({x}, {x} * 2)][-1]",
    )
    w.scope[name] = lambda *_, **__: w[y]
    definition = w.lines.pop()
    w.run(f"{definition}\n{result} = {call}", result)


def step(w: Writer) -> None:
    """Write one statement, or none if no operand fits or eager refuses it."""
    names = [name for name in TEMPLATES if name not in w.leave_out and (w.depth < 2 or name not in BLOCKS)]
    name = w.random.choices(names, [WEIGHTS[name] for name in names])[0]
    lines, tensors, numbers = list(w.lines), list(w.tensors), list(w.numbers)
    try:
        TEMPLATES[name](w)
    except NotHere:
        w.lines[:] = lines
        w.tensors, w.numbers = tensors, numbers


#: Templates with a body; they are nested twice at most.
BLOCKS = {"under_no_grad", "under_autocast", "loop", "branch", "helper", "optional_argument"}
