"""Small programs of 20 libraries, each with one `jit`: what they observe is compared with eager.

Models are tiny, and data are made on the spot. Libraries are imported where they are used: most are not there.
"""

# the libraries are no dependencies of this package, and bring types or do not
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, no-any-return, attr-defined, misc"

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Jit = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """`run(jit)` uses `jit` once, and returns what is compared."""

    library: str
    run: Callable[[Jit], object]


CASES: dict[str, Case] = {}


def case(library: str) -> Callable[[Callable[[Jit], object]], Callable[[Jit], object]]:
    """Enter a case of a library under the name of its function."""

    def enter(run: Callable[[Jit], object]) -> Callable[[Jit], object]:
        CASES[run.__name__] = Case(library, run)
        return run

    return enter


class _NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty torchvision, which has no build for this PyTorch: some libraries import it and do not need it here."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """It stays empty."""


class _Kind(type):
    """The type of its classes, whose attributes are their names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Empty(types.ModuleType):
    __version__ = "0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (nn.Module,), {})


def _without_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_NoTorchvision())


def _train(
    call: Callable[..., Any],
    parameters: Iterable[Any],
    batches: Iterable[tuple[Any, ...]],
    loss: Callable[[Any], torch.Tensor] = lambda out: out.square().mean(),
    rate: float = 1e-2,
) -> list[object]:
    """Losses of a few steps of SGD, and the gradients and parameters at the end."""
    parameters = [one for one in parameters if one.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    losses: list[object] = []
    for batch in batches:
        value = loss(call(*batch))
        value.backward()
        optimizer.step()
        losses.append(value.detach().clone())
        grads = [None if one.grad is None else one.grad.clone() for one in parameters]
        optimizer.zero_grad()
    return [losses, grads, [one.detach().clone() for one in parameters]]


def _trained(jit: Jit, model: nn.Module, batches: Iterable[tuple[Any, ...]], **options: Any) -> object:
    """The observations of training a jitted module, and its state at the end."""
    call = jit(model)
    return [_train(call, model.parameters(), batches, **options), dict(model.state_dict())]


def _images(count: int, channels: int = 3, size: int = 32) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(2, channels, size, size),) for _ in range(count)]


# -- diffusers ---------------------------------------------------------------------------------------------------------


@case("diffusers")
def diffusers_unet(jit: Jit) -> object:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    batches = [(torch.randn(2, 3, 16, 16), torch.tensor([1, 5 + i])) for i in range(3)]
    return _trained(jit, model, batches, loss=lambda out: out.sample.square().mean())


@case("diffusers")
def diffusers_conditioned_unet(jit: Jit) -> object:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    batches = [(torch.randn(2, 4, 8, 8), torch.tensor([3, i]), torch.randn(2, 5, 16)) for i in range(3)]
    return _trained(jit, model, batches, loss=lambda out: out.sample.square().mean())


@case("diffusers")
def diffusers_dit(jit: Jit) -> object:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        norm_num_groups=4,
        num_embeds_ada_norm=10,
    )
    steps = ((torch.randn(2, 4, 8, 8), torch.tensor([3, i]), torch.tensor([1, 2])) for i in range(3))
    call = jit(model)
    return _train(lambda x, time, label: call(x, timestep=time, class_labels=label).sample, model.parameters(), steps)


@case("diffusers")
def diffusers_autoencoder(jit: Jit) -> object:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        latent_channels=4,
        sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return _trained(jit, model, _images(3, 3, 16), loss=lambda out: out.sample.square().mean())


@case("diffusers")
def diffusers_sampling(jit: Jit) -> object:
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
    ).eval()
    scheduler = DDPMScheduler(num_train_timesteps=20)
    scheduler.set_timesteps(5)
    call, x = jit(model), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        for time in scheduler.timesteps:
            x = scheduler.step(call(x, time).sample, time, x).prev_sample
    return x


# -- torch_geometric ---------------------------------------------------------------------------------------------------


def _graphs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    return [(torch.randn(5, 8), edges) for _ in range(3)]


@case("torch_geometric")
def geometric_gcn(jit: Jit) -> object:
    from torch_geometric.nn import GCN

    return _trained(jit, GCN(8, 16, num_layers=2, out_channels=4), _graphs())


@case("torch_geometric")
def geometric_gat(jit: Jit) -> object:
    from torch_geometric.nn import GAT

    return _trained(jit, GAT(8, 16, num_layers=2, out_channels=4, heads=2), _graphs())


@case("torch_geometric")
def geometric_sage(jit: Jit) -> object:
    from torch_geometric.nn import GraphSAGE

    return _trained(jit, GraphSAGE(8, 16, num_layers=2, out_channels=4), _graphs())


@case("torch_geometric")
def geometric_pooling(jit: Jit) -> object:
    from torch_geometric.nn import GIN, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gnn, self.head = GIN(8, 16, num_layers=2), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> Any:
            return self.head(global_mean_pool(self.gnn(x, edges), batch))

    batch = torch.tensor([0, 0, 0, 1, 1])
    return _trained(jit, Net(), [(*graph, batch) for graph in _graphs()])


# -- gpytorch, botorch, pyro -------------------------------------------------------------------------------------------


@case("gpytorch")
def gpytorch_exact(jit: Jit) -> object:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x = torch.linspace(0, 1, 8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, torch.sin(x * 6), likelihood)
    likelihood_of = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    call = jit(lambda x, y: -likelihood_of(model(x), y))
    return _train(call, model.parameters(), [(x, torch.sin(x * 6))] * 3, loss=lambda out: out)


@case("gpytorch")
def gpytorch_kernels(jit: Jit) -> object:
    import gpytorch

    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=3))
    call = jit(lambda x, y: kernel(x, y).to_dense())
    return _train(call, kernel.parameters(), [(torch.randn(6, 3), torch.randn(4, 3)) for _ in range(3)])


@case("botorch")
def botorch_posterior(jit: Jit) -> object:
    from botorch.models import SingleTaskGP

    x = torch.rand(8, 2, dtype=torch.float64)
    model = SingleTaskGP(x, torch.sin(x.sum(-1, keepdim=True))).eval()
    call = jit(lambda x: model.posterior(x).mean)
    return [call(torch.rand(3, 2, dtype=torch.float64)).detach() for _ in range(3)]


@case("botorch")
def botorch_acquisition(jit: Jit) -> object:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(8, 2, dtype=torch.float64)
    model = SingleTaskGP(x, torch.sin(x.sum(-1, keepdim=True))).eval()
    call = jit(LogExpectedImprovement(model, best_f=0.5))
    results = []
    for _ in range(3):
        points = torch.rand(4, 1, 2, dtype=torch.float64, requires_grad=True)
        values = call(points)
        results.append((values.detach(), torch.autograd.grad(values.sum(), points)))
    return results


@case("pyro")
def pyro_variational(jit: Jit) -> object:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    def model(data: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(data)):
            pyro.sample("seen", dist.Normal(mean, 1.0), obs=data)

    pyro.clear_param_store()
    data, guide = torch.randn(10) + 3, AutoNormal(model)
    guide(data)
    call = jit(lambda data: Trace_ELBO().differentiable_loss(model, guide, data))
    return _train(call, guide.parameters(), [(data,)] * 3, loss=lambda out: out)


@case("pyro")
def pyro_distributions(jit: Jit) -> object:
    import pyro.distributions as dist

    def density(x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        gamma = dist.Gamma(rate, rate + 1).expand([4]).to_event(1)
        return gamma.log_prob(x) + dist.StudentT(3.0, rate).log_prob(x).sum()

    rate = torch.tensor(2.0, requires_grad=True)
    call = jit(density)
    return _train(lambda x: call(x, rate), [rate], [(torch.rand(4) + 0.1,) for _ in range(3)], loss=lambda out: -out)


# -- torchdiffeq -------------------------------------------------------------------------------------------------------


class _Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, time: torch.Tensor, state: torch.Tensor) -> Any:
        return self.net(state)


def _solved(jit: Jit, method: str, **options: Any) -> object:
    from torchdiffeq import odeint

    flow, times = _Flow(), torch.linspace(0, 1, 4)
    call = jit(lambda state: odeint(flow, state, times, method=method, **options)[-1])
    return _train(call, flow.parameters(), [(torch.randn(2, 3),) for _ in range(3)])


@case("torchdiffeq")
def diffeq_rk4(jit: Jit) -> object:
    return _solved(jit, "rk4")


@case("torchdiffeq")
def diffeq_dopri5(jit: Jit) -> object:
    return _solved(jit, "dopri5", rtol=1e-3, atol=1e-4)


@case("torchdiffeq")
def diffeq_field(jit: Jit) -> object:
    from torchdiffeq import odeint_adjoint

    flow, times = _Flow(), torch.linspace(0, 1, 4)
    call = jit(flow)

    def solve(state: torch.Tensor) -> Any:
        return odeint_adjoint(call, state, times, method="rk4", adjoint_params=tuple(flow.parameters()))[-1]

    return _train(solve, flow.parameters(), [(torch.randn(2, 3),) for _ in range(3)])


# -- kornia ------------------------------------------------------------------------------------------------------------


@case("kornia")
def kornia_filters(jit: Jit) -> object:
    import kornia

    def process(x: torch.Tensor) -> Any:
        x = kornia.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0))
        return kornia.color.rgb_to_grayscale(kornia.filters.sobel(x))

    call = jit(process)
    return [call(*batch) for batch in _images(3)]


@case("kornia")
def kornia_warp(jit: Jit) -> object:
    import kornia

    angle = torch.tensor([10.0, 20.0], requires_grad=True)
    call = jit(lambda x: kornia.geometry.transform.rotate(x, angle))
    return _train(call, [angle], _images(3, 3, 16), rate=1.0)


@case("kornia")
def kornia_loss(jit: Jit) -> object:
    import kornia

    image = torch.rand(1, 3, 16, 16, requires_grad=True)
    call = jit(lambda target: kornia.losses.ssim_loss(image, target, 5))
    return _train(call, [image], [(torch.rand(1, 3, 16, 16),) for _ in range(3)], loss=lambda out: out)


# -- opacus, e3nn, monai -----------------------------------------------------------------------------------------------


@case("opacus")
def opacus_sample_gradients(jit: Jit) -> object:
    from opacus import GradSampleModule

    model = GradSampleModule(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    call = jit(model)
    call(torch.randn(3, 4)).square().mean().backward()
    return [parameter.grad_sample for parameter in model.parameters()]


@case("opacus")
def opacus_private_training(jit: Jit) -> object:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    data = TensorDataset(torch.randn(12, 4), torch.randint(0, 2, (12,)))
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    call = jit(private)
    for x, target in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(call(x), target).backward()
        optimizer.step()
    return dict(private.state_dict())


@case("e3nn")
def e3nn_linear(jit: Jit) -> object:
    from e3nn import o3

    model = o3.Linear("4x0e + 2x1o", "3x0e + 1x1o")
    return _trained(jit, model, [(torch.randn(5, 10),) for _ in range(3)])


@case("e3nn")
def e3nn_tensor_product(jit: Jit) -> object:
    from e3nn import o3

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("2x0e + 1x1o", "1x0e + 1x1o", "2x0e + 1x1o")

        def forward(self, x: torch.Tensor, vector: torch.Tensor) -> Any:
            return self.product(x, o3.spherical_harmonics("0e + 1o", vector, normalize=True))

    return _trained(jit, Net(), [(torch.randn(4, 5), torch.randn(4, 3)) for _ in range(3)])


@case("monai")
def monai_unet(jit: Jit) -> object:
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,))
    return _trained(jit, model, _images(3, 1, 16))


@case("monai")
def monai_unetr(jit: Jit) -> object:
    from monai.networks.nets import UNETR

    model = UNETR(1, 2, (32, 32), feature_size=4, hidden_size=16, mlp_dim=32, num_heads=2, spatial_dims=2)
    return _trained(jit, model, _images(2, 1, 32))


@case("monai")
def monai_dice(jit: Jit) -> object:
    from monai.losses import DiceCELoss

    logits = torch.randn(2, 3, 8, 8, requires_grad=True)
    call = jit(DiceCELoss(to_onehot_y=True, softmax=True))
    targets = [(torch.randint(0, 3, (2, 1, 8, 8)),) for _ in range(3)]
    return _train(lambda target: call(logits, target), [logits], targets, loss=lambda out: out)


# -- trl ---------------------------------------------------------------------------------------------------------------


def _gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    return GPT2LMHeadModel(config)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(31)} | {"<eos>": 31}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="w0", unk_token="w1")


def _fine_tuned(jit: Jit, **options: Any) -> object:
    import tempfile

    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model = _gpt()
    texts = [" ".join(f"w{(row + place) % 31}" for place in range(8)) for row in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            bf16=False,
            max_length=16,
            gradient_checkpointing=False,
            **options,
        )
        trainer = SFTTrainer(
            model=jit(model),
            args=config,
            train_dataset=Dataset.from_dict({"text": texts}),
            processing_class=_tokenizer(),
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [losses, dict(model.state_dict())]


@case("trl")
def trl_sft(jit: Jit) -> object:
    return _fine_tuned(jit)


@case("trl")
def trl_preferences(jit: Jit) -> object:
    model, reference = _gpt(), _gpt().eval()

    def log_probability(model: Any, tokens: torch.Tensor) -> Any:
        logits = model(tokens).logits[:, :-1].log_softmax(-1)
        return logits.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)

    def loss(chosen: torch.Tensor, rejected: torch.Tensor) -> Any:
        with torch.no_grad():
            base = log_probability(reference, chosen) - log_probability(reference, rejected)
        margin = log_probability(model, chosen) - log_probability(model, rejected) - base
        return -nn.functional.logsigmoid(0.1 * margin).mean()

    pairs = [(torch.randint(0, 32, (2, 8)), torch.randint(0, 32, (2, 8))) for _ in range(3)]
    model.eval()
    return _train(jit(loss), model.parameters(), pairs, loss=lambda out: out)


# -- tensordict, torchrl -----------------------------------------------------------------------------------------------


@case("tensordict")
def tensordict_module(jit: Jit) -> object:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule

    module = TensorDictModule(nn.Linear(3, 2), in_keys=["x"], out_keys=["y"])
    call = jit(module)
    batches = [(TensorDict({"x": torch.randn(4, 3)}, batch_size=[4]),) for _ in range(3)]
    return _train(lambda batch: call(batch)["y"], module.parameters(), batches)


@case("tensordict")
def tensordict_arguments(jit: Jit) -> object:
    from tensordict import TensorDict

    weight = torch.randn(3, 2, requires_grad=True)
    call = jit(lambda batch: batch["x"] @ weight + batch["inner", "bias"])
    batches = [
        (TensorDict({"x": torch.randn(4, 3), "inner": {"bias": torch.randn(4, 2)}}, batch_size=[4]),) for _ in range(3)
    ]
    return _train(call, [weight], batches)


@case("torchrl")
def torchrl_dqn(jit: Jit) -> object:
    from tensordict import TensorDict
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    actor = QValueActor(nn.Linear(4, 3), in_keys=["observation"], action_space="one-hot")
    loss = DQNLoss(actor, action_space="one-hot")
    data = TensorDict(
        {
            "observation": torch.randn(5, 4),
            "action": nn.functional.one_hot(torch.randint(0, 3, (5,)), 3),
            "next": {
                "observation": torch.randn(5, 4),
                "reward": torch.randn(5, 1),
                "done": torch.zeros(5, 1, dtype=torch.bool),
                "terminated": torch.zeros(5, 1, dtype=torch.bool),
            },
        },
        batch_size=[5],
    )
    call = jit(loss)
    return _train(lambda: call(data)["loss"], loss.parameters(), [()] * 3, loss=lambda out: out)


@case("torchrl")
def torchrl_actor(jit: Jit) -> object:
    from torchrl.modules import MLP

    return _trained(jit, MLP(4, 2, num_cells=[8, 8]), [(torch.randn(5, 4),) for _ in range(3)])


# -- captum ------------------------------------------------------------------------------------------------------------


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@case("captum")
def captum_integrated(jit: Jit) -> object:
    from captum.attr import IntegratedGradients

    return IntegratedGradients(jit(_classifier())).attribute(torch.randn(2, 4), target=1, n_steps=5)


@case("captum")
def captum_saliency(jit: Jit) -> object:
    from captum.attr import Saliency

    model = _classifier()
    call = jit(lambda x: Saliency(model).attribute(x, target=0))
    return [call(torch.randn(2, 4, requires_grad=True)) for _ in range(2)]


# -- x-transformers, vit-pytorch ---------------------------------------------------------------------------------------


def _tokens() -> list[tuple[torch.Tensor]]:
    return [(torch.randint(0, 32, (2, 12)),) for _ in range(3)]


@case("x-transformers")
def x_decoder(jit: Jit) -> object:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=2, heads=2, rotary_pos_emb=True)
    return _trained(jit, TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=layers), _tokens())


@case("x-transformers")
def x_encoder(jit: Jit) -> object:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=16, depth=2, heads=2, attn_flash=True, ff_glu=True)
    return _trained(jit, TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=layers), _tokens())


@case("x-transformers")
def x_autoregressive(jit: Jit) -> object:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=1, heads=2)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=layers))
    return _trained(jit, model, _tokens(), loss=lambda out: out)


def _vit(kind: str, name: str, **options: Any) -> nn.Module:
    _without_torchvision()
    sizes = {"image_size": 16, "patch_size": 8, "num_classes": 3, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32}
    model: nn.Module = getattr(importlib.import_module(f"vit_pytorch.{kind}"), name)(**sizes, **options)
    return model


@case("vit-pytorch")
def vit(jit: Jit) -> object:
    return _trained(jit, _vit("vit", "ViT", dropout=0.1), _images(3, 3, 16))


@case("vit-pytorch")
def vit_simple(jit: Jit) -> object:
    return _trained(jit, _vit("simple_vit", "SimpleViT"), _images(3, 3, 16))


@case("vit-pytorch")
def vit_deep(jit: Jit) -> object:
    return _trained(jit, _vit("deepvit", "DeepViT"), _images(3, 3, 16))


# -- zuko, skorch, ignite, segmentation-models-pytorch -----------------------------------------------------------------


@case("zuko")
def zuko_splines(jit: Jit) -> object:
    import zuko

    flow = zuko.flows.NSF(3, 2, transforms=2, hidden_features=(8, 8))
    call = jit(lambda x, context: -flow(context).log_prob(x))
    return _train(call, flow.parameters(), [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)])


@case("zuko")
def zuko_autoregressive(jit: Jit) -> object:
    import zuko

    flow = zuko.flows.MAF(3, 2, transforms=2, hidden_features=(8, 8))
    call = jit(lambda x, context: -flow(context).log_prob(x))
    return _train(call, flow.parameters(), [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)])


@case("skorch")
def skorch_regressor(jit: Jit) -> object:
    import numpy as np
    from skorch import NeuralNetRegressor

    module = _classifier()
    net = NeuralNetRegressor(jit(module), max_epochs=2, lr=0.05, batch_size=4, train_split=None, verbose=0)
    x = torch.randn(12, 4).numpy()
    net.fit(x, np.tanh(x[:, :3]))
    return [net.predict(x), net.history[:, "train_loss"]]


@case("ignite")
def ignite_trainer(jit: Jit) -> object:
    from ignite.engine import create_supervised_trainer

    model = _classifier()
    optimizer = torch.optim.Adam(model.parameters())
    trainer = create_supervised_trainer(jit(model), optimizer, nn.CrossEntropyLoss())
    data = [(torch.randn(4, 4), torch.randint(0, 3, (4,))) for _ in range(3)]
    state = trainer.run(data, max_epochs=2)
    return [state.output, dict(model.state_dict())]


@case("segmentation-models-pytorch")
def segmentation_unet(jit: Jit) -> object:
    _without_torchvision()
    import segmentation_models_pytorch as segmentation

    model = segmentation.Unet("mit_b0", encoder_weights=None)
    return _trained(jit, model, _images(2))


@case("segmentation-models-pytorch")
def segmentation_fpn(jit: Jit) -> object:
    _without_torchvision()
    import segmentation_models_pytorch as segmentation

    return _trained(jit, segmentation.FPN("tu-resnet18", encoder_weights=None), _images(2))
