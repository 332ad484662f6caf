"""What stands for a tensor has no memory: whatever would read it runs in eager."""

from __future__ import annotations

import itertools

from tests.stand_ins.calls import of_numpy, of_other_ways, of_tensors
from tests.stand_ins.walk import walk

#: The rest, by `python -m tests.stand_ins`.
_SAMPLE = {
    *("data_ptr", "numpy", "tolist", "__array__", "__dlpack__", "__reduce_ex__", "__repr__", "untyped_storage", "sin_"),
    *("np.asarray", "np.exp", "np.sort", "np.allclose", "np.linalg.norm"),
    *(
        "asarray, used",
        "to_dlpack",
        "torch.from_dlpack",
        "np.from_dlpack",
        "pickle",
        "deepcopy",
        "f-string",
        "as_subclass",
    ),
    *(
        "caught: array_equal",
        "caught: to_dlpack",
        "suppressed: asarray",
        "in a thread: asarray",
        "of a view",
        "torch.save",
        "list",
    ),
    *("array in an index", "hasattr"),
}


def test_no_call_reads_memory_of_what_stands_for_a_tensor() -> None:
    groups = [group for group in itertools.chain(of_tensors(), of_numpy(), of_other_ways()) if group[0] in _SAMPLE]
    assert {name for name, _ in groups} == _SAMPLE
    findings = [*walk([(name, cases[:12]) for name, cases in groups], "eager")]
    assert [line for finding in findings for line in finding.wrong] == []
    assert sum(finding.fell_back for finding in findings) > 40
    assert sum(finding.compiled for finding in findings) > 3
