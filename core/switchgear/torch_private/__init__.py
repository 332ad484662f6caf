"""Every private module and function of PyTorch that the core leans on, a file for each thing that it is about.

What tensors tell of themselves (`_base`, `_version`, `_is_view()`) is asked where it is needed.

`names` lists them: one that a new PyTorch renames is found there, and by `switchgear doctor`. Tested against each
supported torch by `tests/core/test_private_names.py`, that they are there, and `tests/core/test_torch_private.py`, what
they do.
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
