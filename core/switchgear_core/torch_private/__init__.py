"""Every private module and function of PyTorch used by the core, in a file for each subject.

Private attributes of tensors (`_base`, `_version`, `_is_view()`) are read where needed. `names` lists all names, and
finds a name that a new PyTorch renames; so does `switchgear doctor`. Two files of tests check each supported torch:
`tests/core/test_private_names.py` the names, and `tests/core/test_torch_private.py` their behaviour.
"""

from switchgear_core.torch_private.autograd import *
from switchgear_core.torch_private.dynamo import *
from switchgear_core.torch_private.fake_mode import *
from switchgear_core.torch_private.fakes import *
from switchgear_core.torch_private.functionalize import *
from switchgear_core.torch_private.functorch import *
from switchgear_core.torch_private.guard_tree import *
from switchgear_core.torch_private.imports import *
from switchgear_core.torch_private.layouts import *
from switchgear_core.torch_private.modes import *
from switchgear_core.torch_private.sizes import *
