"""The capture features of this package, in the order of asking."""

from switchgear_core.record.handler import Feature
from switchgear_frontend.features.autocast import Autocast
from switchgear_frontend.features.checkpointing import Checkpointing
from switchgear_frontend.features.custom_functions import CustomFunctions
from switchgear_frontend.features.data import Data
from switchgear_frontend.features.distributed import Distributed
from switchgear_frontend.features.fast_paths import FastPaths
from switchgear_frontend.features.generators import Generators
from switchgear_frontend.features.inner_grad import InnerGrad
from switchgear_frontend.features.modes_changed import ModesChanged
from switchgear_frontend.features.outside import Outside
from switchgear_frontend.features.python_state import PythonState
from switchgear_frontend.features.refusals import Refusals
from switchgear_frontend.features.reshapes import Reshapes
from switchgear_frontend.features.single_functions import BatchOfOne, Foreach, OneHot
from switchgear_frontend.features.symbolic_sizes import SymbolicSizes
from switchgear_frontend.features.transforms import Transforms
from switchgear_frontend.features.varying_floats import VaryingFloats

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
