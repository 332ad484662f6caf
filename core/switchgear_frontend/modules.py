"""The modules called by a function under capture: their state, and the path of the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.patches import replaced
from switchgear_core.record.guards import Known
from switchgear_core.record.signature import ModuleState, state_of


class Modules:
    """The entered modules, and the path of the current module, by the names from its root.

    Modules created by the call are left out: such modules may disappear after the call.
    """

    def __init__(self, root: torch.nn.Module | None, modules: list[torch.nn.Module]) -> None:
        self.entered: list[torch.nn.Module] = []
        self.state: dict[int, ModuleState] = {}
        self._paths: dict[int, str] = {}
        self._stack = [""]
        self._new: dict[int, Known] = {}
        self._is_entering = False
        if root is not None:
            self._enter(root, "")
        for module in modules:
            self.enter(module)

    def path(self) -> str:
        """Return the innermost module's path, or an empty string."""
        return self._stack[-1]

    def enter(self, module: torch.nn.Module) -> None:
        """Enter a module as a root, unless it is part of another."""
        if id(module) in self._paths or self._is_entering:
            return
        with replaced(self, "_is_entering", True):  # reads parts of modules
            self._enter(module, type(module).__name__)

    def _enter(self, root: torch.nn.Module, prefix: str) -> None:
        roots = [root] if not self._is_new(root) else root.modules()
        self.entered += [part for part in roots if not self._is_new(part)]
        self._paths.update((id(part), path) for path, part in root.named_modules(prefix=prefix))
        for key, state in state_of(root, prefix).items():
            first = self.state.setdefault(key, state)
            others = (state, *state.tied) if first is not state else ()
            first.tied.extend(other for other in others if not other.is_at(first))

    def _is_new(self, module: torch.nn.Module) -> bool:
        reference = self._new.get(id(module))
        return reference is not None and reference.names(module)

    def make(
        self,
        original: Callable[..., None],
        module: torch.nn.Module,
        *args: object,
        **kwargs: object,
    ) -> None:
        """Initialise a module that the function creates, or set the state of a copy."""
        self._new[id(module)] = Known(module)
        original(module, *args, **kwargs)

    def call(
        self,
        original: Callable[..., object],
        module: torch.nn.Module,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Call a module, which may be outside the root: closed over or created by the function."""
        self.enter(module)
        path = self._paths[id(module)]
        if isinstance(module, torch.jit.ScriptModule):
            raise Unsupported(
                f"{path or 'the module'} is a scripted {module.original_name}, whose parameters and operators capture "
                "does not see; use the module that was scripted, or call the scripted one outside"
            )
        self._stack.append(path)
        try:
            return original(module, *args, **kwargs)
        finally:
            self._stack.pop()
