"""All the cases, by name."""

from __future__ import annotations

import importlib

from tests.python_state.scenario import CASES

KINDS = (
    "reads_attributes",
    "reads_globals",
    "reads_closures",
    "reads_containers",
    "writes_attributes",
    "writes_containers",
    "counters",
    "objects_as_arguments",
    "tensors_kept",
    "hooks",
    "random_and_outside",
    "identity_of_results",
    "results_made_inside",
    "modules_of_torch",
    "libraries_shapes",
    "libraries_caches",
    "bad_input",
)

for kind in KINDS:
    importlib.import_module(f"tests.python_state.{kind}")

__all__ = ["CASES"]
