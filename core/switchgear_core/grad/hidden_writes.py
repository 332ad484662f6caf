"""Writes through `.data`, unseen by autograd: eager's backward reads the written values in its saved tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from switchgear_core.errors import Unsupported
from switchgear_core.grad.differentiate import Joint
from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BACKWARD, BoundSymbol
from switchgear_core.ir.trace import Trace, names_of

#: Owners and forms of rules whose backward reads the values that eager's reads; others count as reading all inputs.
EAGERS = frozenset({"derived", "decomposition", "constant", "switchgear", "autograd.Function"})


def refuse_hidden_writes(joint: Joint, forward: Trace, hidden: frozenset[str]) -> None:
    """Refuse a joint trace whose backward reads the memory of an overwritten value of the forward."""
    names = hidden & names_of(forward) if hidden else hidden
    if not names:
        return
    homes = storages(joint.trace.bound_symbols)
    proxy_names = (joint.aliases[name].name if name in joint.aliases else name for name in names)
    overwritten = {homes.get(name, name) for name in proxy_names}
    for proxy, reader in _read(joint):
        if homes.get(proxy.name, proxy.name) in overwritten:
            reason = f"{reader.symbol.name} has read, at {reader.source}" if reader else "was saved"
            raise Unsupported(
                f"the function writes through .data to a tensor that {reason}: eager's backward reads the new value; "
                "write under torch.no_grad()"
            )


def refuse_saved(forward: Trace, saved: Iterable[TensorProxy], written_names: Set[str]) -> None:
    """Refuse to save values `written_names` written to an argument: later writes of the user would go unnoticed."""
    homes = storages(forward.bound_symbols) if written_names else {}
    places = {homes.get(name, name) for name in written_names}
    if not places.isdisjoint(homes.get(proxy.name, proxy.name) for proxy in saved):
        raise Unsupported(
            "the backward reads a value that the function writes to an argument of which it uses .data: eager's "
            "reads the later value; use detach(), and write under torch.no_grad()",
            splits=False,
        )


def _read(joint: Joint) -> Iterator[tuple[TensorProxy, BoundSymbol | None]]:
    """Yield the values of the forward read by backwards, each with the forward line whose gradient needs it."""
    for line in joint.trace.bound_symbols:
        rules = [link.rule for link in line.links]
        if BACKWARD in line.tags or any(EAGERS.isdisjoint((r.owner, r.form)) for r in rules):
            reader = line.links[-1].forward if line.links else None
            yield from ((proxy, reader) for proxy in line.inputs)
    yield from ((proxy, None) for proxy in joint.residuals)
