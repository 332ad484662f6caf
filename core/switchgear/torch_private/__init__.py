"""Every private API of PyTorch that Switchgear leans on, and nothing else: a file for each thing that it is about.

`names` says which there are, and what becomes of us where one is missing. Tested against each supported torch by
`tests/core/test_private_names.py`, that they are there, and `tests/core/test_torch_private.py`, what they do.
"""

from switchgear.torch_private.autograd import *
from switchgear.torch_private.dynamo import *
from switchgear.torch_private.fake_mode import *
from switchgear.torch_private.fakes import *
from switchgear.torch_private.functionalize import *
from switchgear.torch_private.functorch import *
from switchgear.torch_private.guard_tree import *
from switchgear.torch_private.imports import *
from switchgear.torch_private.layouts import *
from switchgear.torch_private.modes import *
from switchgear.torch_private.sizes import *
