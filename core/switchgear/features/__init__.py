"""The capture features of this package, in the order of asking."""

from switchgear.features.autocast import Autocast
from switchgear.features.checkpointing import Checkpointing
from switchgear.features.custom_functions import CustomFunctions
from switchgear.features.data import Data
from switchgear.features.distributed import Distributed
from switchgear.features.fast_paths import FastPaths
from switchgear.features.generators import Generators
from switchgear.features.inner_grad import InnerGrad
from switchgear.features.modes_changed import ModesChanged
from switchgear.features.outside import Outside
from switchgear.features.python_state import PythonState
from switchgear.features.refusals import Refusals
from switchgear.features.reshapes import Reshapes
from switchgear.features.single_functions import BatchOfOne, Foreach, OneHot
from switchgear.features.symbolic_sizes import SymbolicSizes
from switchgear.features.transforms import Transforms
from switchgear.features.varying_floats import VaryingFloats
from switchgear.record.handler import Feature

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
    Feature("single_functions", (Foreach(), OneHot(), BatchOfOne())),
    Feature("fast_paths", (FastPaths(),)),
    Feature("outside", (Outside(),)),
    Feature("python_state", (PythonState(),)),
)
