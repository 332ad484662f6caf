"""The features of capture that this package brings, in the order in which they are asked."""

from switchgear.handler import Feature

from .autocast import Autocast
from .checkpointing import Checkpointing
from .custom_functions import CustomFunctions
from .data_reads import DataReads
from .generators import Generators
from .inner_grad import GradFnReads, InnerGrad
from .input_queries import InputQueries
from .modes_changed import ModesChanged
from .refusals import Refusals
from .reshapes import Reshapes
from .saved_tensors_hooks import SavedTensorsHooks
from .seeding import Seeding
from .symbolic_sizes import SymbolicSizes
from .transforms import Transforms

BUILT_IN = (
    Feature("input_queries", (InputQueries(),)),
    Feature("refusals", (Refusals(),)),
    Feature("modes_changed", (ModesChanged(),)),
    Feature("transforms", (Transforms(),)),
    Feature("inner_grad", (InnerGrad(), GradFnReads())),
    Feature("data", (DataReads(),)),
    Feature("sizes", (SymbolicSizes(),)),
    Feature("generators", (Seeding(), Generators())),
    Feature("reshapes", (Reshapes(),)),
    Feature("autocast", (Autocast(),)),
    Feature("custom_functions", (CustomFunctions(),)),
    Feature("checkpoint", (Checkpointing(),)),
    Feature("saved_tensors_hooks", (SavedTensorsHooks(),)),
)
