"""From a Python function to a trace: the entrances of calls, inputs, writes and results.

A plugin's feature of capture imports its names from here: `from switchgear import capture`.
"""

from switchgear.record.call import Call, Operation
from switchgear.record.handler import PASS, Feature, Handler
from switchgear.record.recorder import Recorder
from switchgear.torch_private import real_dispatch

__all__ = ["PASS", "Call", "Feature", "Handler", "Operation", "Recorder", "real_dispatch"]
