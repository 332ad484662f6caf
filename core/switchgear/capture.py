"""From a Python function to a trace: the entrances of calls, inputs, writes and results.

A plugin's feature of capture imports its names from here: `from switchgear import capture`.
"""

from switchgear_core.record.call import Call, Operation
from switchgear_core.record.handler import PASS, Feature, Handler
from switchgear_core.record.recorder import Recorder
from switchgear_core.torch_private import real_dispatch

__all__ = ["PASS", "Call", "Feature", "Handler", "Operation", "Recorder", "real_dispatch"]
