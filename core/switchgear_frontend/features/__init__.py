"""The features of capture that ship with the front end, in the order of asking. A part."""

from switchgear_core.record.handler import Feature
from switchgear_core.record.sizes import is_dynamic
from switchgear_core.registry.hookspecs import hookimpl
from switchgear_core.registry.options import Option, one_of
from switchgear_frontend.features.autocast import Autocast
from switchgear_frontend.features.checkpointing import Checkpointing
from switchgear_frontend.features.conservative_state import ConservativeState
from switchgear_frontend.features.custom_functions import CustomFunctions
from switchgear_frontend.features.data import Data
from switchgear_frontend.features.distributed import Distributed
from switchgear_frontend.features.fast_paths import FastPaths
from switchgear_frontend.features.generators import Generators
from switchgear_frontend.features.inner_grad import InnerGrad
from switchgear_frontend.features.modes_changed import ModesChanged
from switchgear_frontend.features.outside import Outside
from switchgear_frontend.features.refusals import Refusals
from switchgear_frontend.features.reshapes import Reshapes
from switchgear_frontend.features.single_functions import BatchOfOne, Foreach, OneHot
from switchgear_frontend.features.symbolic_sizes import SymbolicSizes
from switchgear_frontend.features.transforms import Transforms
from switchgear_frontend.features.varying_floats import VaryingFloats
from switchgear_frontend.features.writing_operators import WritingOperators

switchgear_priority = 80
BUILT_IN = (
    Feature("refusals", (Refusals(),)),
    Feature("distributed", (Distributed(),)),
    Feature("modes_changed", (ModesChanged(),)),
    Feature("transforms", (Transforms(),)),
    Feature("inner_grad", (InnerGrad(),)),
    Feature("data", (Data(),)),
    Feature("varying_floats", (VaryingFloats(),)),
    Feature("sizes", (SymbolicSizes(),)),
    Feature("generators", (Generators(),)),
    Feature("reshapes", (Reshapes(),)),
    Feature("autocast", (Autocast(),)),
    Feature("custom_functions", (CustomFunctions(),)),
    Feature("checkpoint", (Checkpointing(),)),
    Feature("writing_operators", (WritingOperators(),)),
    Feature("single_functions", (Foreach(), OneHot(), BatchOfOne())),
    Feature("fast_paths", (FastPaths(),)),
    Feature("outside", (Outside(),)),
    Feature("conservative_state", (ConservativeState(),)),
)


@hookimpl
def switchgear_features() -> tuple[Feature, ...]:
    """Return the features."""
    return BUILT_IN


@hookimpl
def switchgear_options() -> list[Option]:
    """Declare the options of data and sizes."""
    return [
        Option(
            "dynamic",
            None,
            "sizes for which one program is compiled. None: sizes that have changed. True: those of every tensor "
            'argument. A dict from parameters to dimensions: `{"input_ids": {1}}`. False: none. 0 and 1 are '
            "separate sizes, as in PyTorch. A branch on a size becomes a guard.",
            "Decide first",
            fits=is_dynamic,
            values="True, False, or a dict from parameters to dimensions, such as {'x': {0}}",
        ),
        Option(
            "specialize_on_data",
            None,
            "compile for values of tensors (`item()`, a branch, indexing by a mask), and guard them. None: for "
            "integers and masks, unrounded floats, and what is asked only to raise, until outcomes keep changing. "
            "False: never. Other uses of values raise `DataDependent`.",
            **one_of(True, False, None),
        ),
    ]
