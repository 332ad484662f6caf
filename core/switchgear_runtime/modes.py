"""The global state of PyTorch that a compiled entry is valid in."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.patches import replaced
from switchgear_core.record.rare_modes import RARE_MODES

#: The most recent guards, shared by entries of equal state, which costs less where entries alternate.
_GUARDS: deque[Any] = deque(maxlen=8)


def modes_key(*, rare: bool = True) -> tuple[object, ...]:
    """Return all global state that a capture depends on, hashable; with `rare`, the rare modes too.

    Raises:
        Unsupported: a foreign function mode is active.
    """
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        tuple([_device(mode) for mode in internals.function_modes()]),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        internals.autocast_key(),
        # a refusal inside functorch need not apply elsewhere
        internals.inside_functorch(),
        internals.rare_modes() if rare else (),
    )


def _device(mode: object) -> str:
    if isinstance(mode, internals.DeviceContext):
        return str(mode.device)
    raise Unsupported(
        f"a __torch_function__ mode ({type(mode).__qualname__}) is active: it would not see the calls of a compiled "
        "function. Call the jitted function outside of it",
        splits=False,
    )


@contextlib.contextmanager
def rare_modes_watched() -> Iterator[None]:
    """Have `RARE_MODES.matter` tell whether the code compiled so far may depend on `internals.rare_modes`."""

    def note() -> None:
        RARE_MODES.matter = True

    with (
        replaced(RARE_MODES, "matter", internals.autocast_active()),
        internals.rare_modes_noticed(note),
    ):
        yield


def same_modes(scope: dict[str, object]) -> str:
    """Return a cheap condition that the relevant global state is unchanged; add its names to `scope`.

    The condition may be false for a state that has the same `modes_key`.
    """
    rare, get_count = RARE_MODES.matter, internals.function_mode_count
    guard = next((candidate for candidate in _GUARDS if candidate.check()), None)
    if guard is None:
        guard = internals.GlobalStateGuard()
        _GUARDS.append(guard)
    key, count = modes_key(rare=rare), get_count()
    scope["key_is_same"] = lambda: get_count() == count and modes_key(rare=rare) == key
    # the C++ guard ignores the default device, and checks irrelevant state too, such as the number of threads
    if count or not guard.check():
        return "key_is_same()"
    scope |= {
        "is_inference": torch.is_inference_mode_enabled,
        "mode_count": get_count,
        "same_state": guard.check,
    }
    conditions = [
        "is_inference()" if torch.is_inference_mode_enabled() else "not is_inference()",
        "not mode_count()",
        "same_state()",
    ]
    if rare:
        scope |= {"rare_modes": internals.rare_modes, "rare_modes_now": internals.rare_modes()}
        conditions.append("rare_modes() == rare_modes_now")
    return f"({' and '.join(conditions)} or key_is_same())"
