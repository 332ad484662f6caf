"""Shells of tensor subclasses that PyTorch flattens into inner tensors, and rebuilds around others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import torch

from switchgear_subclasses import torch_private as internals


@dataclass(frozen=True, slots=True)
class Subclass:
    """A tensor of a subclass without its inner tensors, whose attributes are `names`."""

    kind: type[Any]
    names: tuple[str, ...]
    context: object = field(hash=False)
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    #: The names of all attributes, such as a parameter's mark.
    attributes: frozenset[str]
    #: The shells of the inner tensors; None for plain ones.
    inner: tuple[Subclass | None, ...]
    #: The attributes of inner tensors without gradients, which gradients share with their tensor.
    SHARED: ClassVar[frozenset[str]] = frozenset()

    def is_alike(self, other: Subclass) -> bool:
        """Check whether another tensor is rebuilt by the same call, whether or not it requires grad."""
        if (self.kind, self.names, self.size) != (other.kind, other.names, other.size):
            return False
        if self.context != other.context:
            return False
        pairs = zip(self.inner, other.inner, strict=True)
        return all(one is two or (one and two and one.is_alike(two)) for one, two in pairs)

    def around(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a tensor of the subclass with other inner tensors, without history."""
        inner = dict(zip(self.names, parts, strict=True))
        return self.kind.__tensor_unflatten__(inner, self.context, self.size, self.stride)  # type: ignore[no-any-return]

    def detached(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return inner tensors without history."""
        pairs = zip(self.names, parts, strict=True)
        return [part if name in self.SHARED else part.detach() for name, part in pairs]

    def closed(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a tensor of the subclass; its gradient flows to the inner tensors."""
        if any(part.requires_grad for part in parts) and _is_followed(parts):
            return _applied(_Closed, self, *parts)  # type: ignore[no-any-return]
        return self.around(parts)

    def checking(self) -> Callable[[Any], bool]:
        """Return a function that checks whether a tensor differs at most in its inner tensors."""
        check: Callable[[object], bool] | None = None
        pairs = zip(self.names, self.inner, strict=True)
        inside = [(name, shell.checking()) for name, shell in pairs if shell is not None]

        def fits(tensor: Any) -> bool:
            nonlocal check
            if check is None:  # outside of the capture, whose state of dispatch the check would remember
                if not has_shell(tensor) or shell_of(tensor) != self:
                    return False
                check = internals.tensor_guards([tensor])
            if not check(tensor):
                return False
            names, context = tensor.__tensor_flatten__()
            if (*names,) != self.names or context != self.context or vars(tensor).keys() != self.attributes:
                return False
            return all(fits_inside(getattr(tensor, name)) for name, fits_inside in inside)

        return fits

    def parts_of(self, gradient: Any) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the inner tensors, given that of the tensor; raise for another kind."""
        if not (has_shell(gradient) and self.is_alike(shell_of(gradient))):
            raise RuntimeError(
                f"the gradient of a {self.kind.__qualname__} from a compiled function is a "
                f"{type(gradient).__qualname__} of another kind; call the original function"
            )
        return opened(gradient)

    def opening(self) -> Callable[[Any], Any]:
        """Return a function from such a tensor to its inner tensors."""
        # a tuple also for a single name
        return partial(opened, shell=self) if self.requires_grad else attrgetter(*self.names, self.names[0])


#: Keys of the cached lengths of a nested tensor, and the attributes of tensors with these as their sizes.
_KEYS = "min_seqlen", "max_seqlen"
_CACHED = "_min_seqlen_tensor", "_max_seqlen_tensor"
REMEMBERED = frozenset(
    {"_sym_sizes_capsule", "_sym_sizes_capsule_len", "_sym_strides_capsule", "_sym_strides_capsule_len"}
)


class Jagged(Subclass):
    """A nested tensor of the jagged layout without its inner tensors, which determine its sizes."""

    __slots__ = ()
    SHARED = frozenset({"_offsets", *_CACHED})

    @classmethod
    def of(cls, tensor: Any) -> Jagged:
        """Return the shell of a nested tensor of the jagged layout."""
        names = tuple(tensor.__tensor_flatten__()[0])
        layout = torch.Size(()), (), tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_leaf
        return cls(type(tensor), names, tensor._ragged_idx, *layout, _attributes(tensor), (None,) * len(names))

    @staticmethod
    def parts(tensor: Any) -> tuple[torch.Tensor, ...]:
        """Return the inner tensors of a nested tensor."""
        cached = [part for key in _KEYS if (part := tensor._metadata_cache.get(key)) is not None]
        return (tensor._values, tensor._offsets, *cached)

    def around(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a nested tensor with other inner tensors, without history."""
        inner = dict(zip(self.names, parts, strict=True))
        cached = [inner.get(name) for name in _CACHED]
        return jagged(self.context, inner["_values"], inner["_offsets"], *cached)  # type: ignore[arg-type]

    def checking(self) -> Callable[[Any], bool]:
        """Return a function that checks whether a tensor differs at most in its inner tensors."""
        cached = [key for key, name in zip(_KEYS, _CACHED, strict=True) if name in self.names]

        def fits(tensor: Any) -> bool:
            if type(tensor) is not self.kind or tensor._lengths is not None or tensor._ragged_idx != self.context:
                return False
            if [key for key in _KEYS if tensor._metadata_cache.get(key) is not None] != cached:
                return False
            with internals.DisableTorchFunction():
                grad = tensor.requires_grad, tensor.is_leaf
            return grad == (self.requires_grad, self.is_leaf) and _attributes(tensor) == self.attributes

        return fits

    def parts_of(self, gradient: Any) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the inner tensors, given that of the tensor; raise for another kind."""
        if type(gradient) is self.kind and gradient._ragged_idx == self.context:
            # the history of values matters where a gradient is differentiated
            values = gradient.values() if torch.is_grad_enabled() else gradient._values
            return (values, *(None,) * (len(self.names) - 1))
        return super().parts_of(gradient)


def _attributes(nested: Any) -> frozenset[str]:
    """Return the names of all attributes but those by which PyTorch remembers sizes that a class computes."""
    return frozenset(vars(nested)) - REMEMBERED


def jagged(ragged_idx: int, values: Any, offsets: Any, *cached: torch.Tensor | None) -> torch.Tensor:
    """Return a nested tensor of the jagged layout, without history; `cached` are its least and its greatest length."""
    pairs = zip(_KEYS, cached, strict=True)
    cache = {key: part for key, part in pairs if part is not None}
    offsets = internals.numbered(offsets)
    with internals.DisableTorchFunction():
        return internals.NestedTensor(values, offsets, _ragged_idx=ragged_idx, _metadata_cache=cache)  # type: ignore[no-any-return]


def inner_of(value: Any) -> tuple[Any, ...]:
    """Return the inner tensors of a tensor that PyTorch flattens into strided tensors; of any other value, none."""
    kind = type(value)
    if kind is internals.NestedTensor:
        return Jagged.parts(value) if value._lengths is None else ()
    if not (hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")):
        return ()
    with internals.DisableTorchFunction():
        # `layout` of a nested tensor is asked of its class
        if not isinstance(value, torch.Tensor) or value.is_nested or value.layout is not torch.strided:
            return ()
        parts = tuple([getattr(value, name) for name in kind.__tensor_flatten__(value)[0]])
    return parts if all(isinstance(part, torch.Tensor) for part in parts) else ()


def has_shell(value: Any) -> bool:
    """Check whether a value is a tensor of a subclass that PyTorch flattens into strided tensors."""
    if type(value) is internals.NestedTensor:  # without its parts, for speed
        return value._lengths is None
    return bool(inner_of(value))


def shell_of(tensor: Any) -> Subclass:
    """Return the shell of a tensor that has one."""
    with internals.DisableTorchFunction():
        if type(tensor) is internals.NestedTensor:
            return Jagged.of(tensor)
        names, context = tensor.__tensor_flatten__()
        layout = tensor.size(), tensor.stride(), tensor.dtype, tensor.device
        grad = tensor.requires_grad, tensor.is_leaf
    if isinstance(context, (list, dict, set)):
        context = copy.deepcopy(context)  # the tensor may change its own
    shells = tuple([shell_of(part) if has_shell(part) else None for part in inner_of(tensor)])
    attributes = frozenset(vars(tensor))
    return Subclass(type(tensor), tuple(names), context, *layout, *grad, attributes, shells)


def opened(tensor: Any, shell: Subclass | None = None) -> tuple[Any, ...]:
    """Return the inner tensors of a tensor; their gradients flow to it. There are none if it is of no subclass."""
    parts = inner_of(tensor)
    if not parts or not (shell or tensor).requires_grad or not _is_followed(parts):
        return parts
    shell = shell or shell_of(tensor)
    own = iter(_applied(_Opened, tensor, shell, parts))
    pairs = zip(shell.names, parts, strict=True)
    return tuple([part if name in shell.SHARED else next(own) for name, part in pairs])


def _is_followed(parts: Sequence[torch.Tensor]) -> bool:
    """Check whether autograd is on, and inner tensors are no stand-ins of a capture."""
    if all(type(part) is torch.Tensor for part in parts):  # for speed
        return torch.is_grad_enabled() and not any(map(internals.is_wrapper, parts))
    return torch.is_grad_enabled() and not any(internals.is_wrapper(x) for part in parts for x in plain_parts(part))


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the inner tensors of a tensor that are of no subclass; a plain tensor is its own."""
    parts = inner_of(tensor)
    if not parts:
        yield tensor
    for part in parts:
        yield from plain_parts(part)


class _Opened(torch.autograd.Function):
    """From a tensor to its inner tensors, without shared ones."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, shell: Subclass, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        pairs = [*zip(shell.names, parts, strict=True)]
        own = [part.detach() for name, part in pairs if name not in shell.SHARED]
        # not saved: a hook may replace a saved tensor
        ctx.shell, ctx.shared = shell, [part if name in shell.SHARED else None for name, part in pairs]
        ctx.mark_non_differentiable(*[part for part in own if not _has_gradient(part)])
        ctx.set_materialize_grads(False)
        if len(own) > 1:
            ctx.save_for_backward(*own)
        return tuple(own)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        if all(grad is None for grad in grads):
            return None, None, None
        pairs = zip(grads, ctx.saved_tensors or grads, strict=True)  # of a single part, the gradient is there
        own = (torch.zeros_like(part) if grad is None else grad for grad, part in pairs)
        shell: Subclass = ctx.shell
        return shell.closed([next(own) if part is None else part for part in ctx.shared]), None, None


class _Closed(torch.autograd.Function):
    """From inner tensors to their tensor."""

    @staticmethod
    def forward(ctx: Any, shell: Subclass, *parts: torch.Tensor) -> torch.Tensor:
        ctx.shell = shell
        ctx.set_materialize_grads(False)
        return shell.around(shell.detached(parts))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * (1 + len(ctx.shell.names))
        return (None, *ctx.shell.parts_of(grad))


def _applied(function: type[torch.autograd.Function], *args: object) -> Any:
    """Return the results of a Function; outside of transforms of `torch.func` without Python's part of `apply`."""
    return (function.apply if internals.functorch_active() else internals.node_apply(function))(*args)  # type: ignore[no-untyped-call]


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
