"""Fake tensors created from layouts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._subclasses import fake_tensor

from switchgear_core.torch_private.modes import outside_autograd
from switchgear_core.torch_private.names import private

if TYPE_CHECKING:
    from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
    from torch._library.custom_ops import CustomOpDef as CustomOpDef
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeMode = FakeTensorMode
else:
    FakeMode = private("torch._subclasses.fake_tensor.FakeTensorMode")
    CustomOpDef = private("torch._library.custom_ops.CustomOpDef")
    OpOverload = private("torch._ops.OpOverload")
    OpOverloadPacket = private("torch._ops.OpOverloadPacket")
    enable_python_dispatcher = private("torch._dispatch.python.enable_python_dispatcher")

DATA_DEPENDENT: tuple[type[Exception], ...] = (
    private("torch._subclasses.fake_tensor.DataDependentOutputException"),
    private("torch._subclasses.fake_tensor.DynamicOutputShapeException"),
)
NO_FAKE: type[Exception] = private("torch._subclasses.fake_tensor.UnsupportedOperatorException")


def is_fake(tensor: torch.Tensor) -> bool:
    """Check whether a tensor belongs to a fake mode."""
    return isinstance(tensor, fake_tensor.FakeTensor)


def make_fake(mode: FakeMode, layout: Layout) -> torch.Tensor:
    """Return a fake tensor with a layout."""
    shape, stride, dtype, device, offset, is_conj, is_neg = layout
    if mode.shape_env is None and not offset:
        with outside_autograd():
            return fake_of_layout(mode, layout)
    with outside_autograd(), mode:
        if offset:
            steps = zip(shape, stride, strict=True)
            reach = 0 if 0 in shape else sum((size - 1) * step for size, step in steps)
            memory = torch.empty(offset + 1 + reach, dtype=dtype, device=device)
            fake = memory.as_strided(shape, stride, offset)
        else:
            fake = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        fake = torch._conj(fake) if is_conj else fake
        return torch._neg_view(fake) if is_neg else fake


#: Metadata of a strided tensor: shape, stride, dtype, device, storage offset, and the lazy bits.
Layout: TypeAlias = tuple[Any, Any, torch.dtype, torch.device, int, bool, bool]


def fake_of_layout(mode: FakeMode, layout: Layout, base: Any = None) -> fake_tensor.FakeTensor:
    """Return a fake tensor, in the storage of `base` if given."""
    shape, stride, dtype, device, offset, is_conj, is_neg = layout
    with fake_tensor.in_kernel_invocation_manager(mode):
        meta: Any = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        if base is not None:
            meta.set_(base.untyped_storage(), offset, shape, stride)
    if is_conj:
        torch._C._set_conj(meta, True)
    if is_neg:
        torch._C._set_neg(meta, True)
    return fake_tensor.FakeTensor(mode, meta, device)


def layout_of(mode: FakeMode, fake: fake_tensor.FakeTensor) -> Layout | None:
    """Return the layout of a strided tensor of this mode; None if more than layout and requires_grad is known."""
    if fake.fake_mode is not mode or fake.constant is not None or fake.layout is not torch.strided:
        return None
    place: Any = fake.storage_offset()
    return (
        fake.shape,
        fake.stride(),
        fake.dtype,
        fake.fake_device,
        place,
        fake.is_conj(),
        fake.is_neg(),
    )
