"""Every operator and module that falls back to eager, or whose values are not eager's to the bit, each with its cause.

The tests hold this file to the letter: what it calls refused must fall back for just that reason, what it does not name
must be compiled and equal to eager, and a refusal of what is compiled by now is itself a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from switchgear.errors import DataDependent, SwitchgearError, Unsupported
from tests.oracle import Exactness, Tolerance, Undefined


@dataclass(frozen=True, slots=True)
class Refusal:
    """Calls fall back because of `error`, for `reason`.

    `modes` names where ("" is everywhere), `partly`: for some samples only.
    """

    error: type[SwitchgearError]
    reason: str
    modes: str = ""
    partly: bool = False


_SHAPE = "the shape of the result depends on the data"
_READS = "the operator returns Python values read from the data"
_CHECKS = "the operator looks at the data to check it, or to choose its way"
_LENGTHS = "the shapes of what is kept for the backward depend on the lengths"
_COUNTED = "with momentum=None the count of batches is read, to average over them"
_CLAMPED = "it clamps a copy of the variances under no_grad"
_SPARSE = "a trace holds strided tensors only"

REFUSED_OPERATORS: dict[str, Refusal] = {
    "argwhere": Refusal(DataDependent, _SHAPE),
    "item": Refusal(DataDependent, _READS),
    "linalg.lstsq": Refusal(DataDependent, "the shape of the residuals depends on the rank"),
    "linalg.lstsq.grad_oriented": Refusal(DataDependent, "the shape of the residuals depends on the rank"),
    "nn.functional.ctc_loss": Refusal(DataDependent, _LENGTHS),
    "nn.functional.gaussian_nll_loss": Refusal(Unsupported, _CLAMPED, "gradient"),
    "nonzero": Refusal(DataDependent, _SHAPE),
    "resize_": Refusal(Unsupported, "an input is resized in place"),
    "resize_as_": Refusal(Unsupported, "an input is resized in place"),
    "sparse.mm.reduce": Refusal(Unsupported, _SPARSE),
    "sparse.sampled_addmm": Refusal(Unsupported, _SPARSE),
    "unique": Refusal(DataDependent, _SHAPE),
    "unique_consecutive": Refusal(DataDependent, _SHAPE),
}

#: Operators whose results, or whose ways, the data decide; what floats decide is refused by default.
DECIDED_BY_DATA = (
    "allclose",
    "argwhere",
    "bincount",
    "cov",
    "equal",
    "index_put",
    "istft",
    "item",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
    "masked_select",
    "narrow",
    "nn.functional.ctc_loss",
    "nn.functional.gaussian_nll_loss",
    "nn.functional.one_hot",
    "nonzero",
    "tensor_split",
    "unique",
    "unique_consecutive",
)

REFUSED_MODULES: dict[str, Refusal] = {
    "nn.BatchNorm1d": Refusal(DataDependent, _COUNTED, "train", partly=True),
    "nn.CTCLoss": Refusal(DataDependent, _LENGTHS),
    "nn.GaussianNLLLoss": Refusal(Unsupported, _CLAMPED, "gradient"),
}

_UNINITIALISED = Undefined("the result is memory as it was found")
_SPREAD = Tolerance(
    0, 0, "for real tensors PyTorch fills the gradient in by mask, in a trace it multiplies by the mask: 0 becomes -0"
)
_PRODUCT = "PyTorch's formula is chosen by the number of zeros in the data; a trace has the one that is right for any"

INEXACT_OPERATORS: dict[str, Exactness] = {
    "empty": _UNINITIALISED,
    "empty_like": _UNINITIALISED,
    "empty_permuted": _UNINITIALISED,
    "empty_strided": _UNINITIALISED,
    "index_fill": Tolerance(
        1e-12, 1e-12, "PyTorch sums the gradient of a tensor value over the unique indices, a trace over a mask"
    ),
    "masked.prod": Tolerance(1e-12, 1e-12, _PRODUCT),
    "max.reduction_no_dim": _SPREAD,
    "min.reduction_no_dim": _SPREAD,
    "new_empty": _UNINITIALISED,
    "new_empty_strided": _UNINITIALISED,
    "ormqr": Tolerance(
        0, 0, "for real tensors PyTorch computes its gradient in place, in a trace out of place", strides=True
    ),
    "prod": Tolerance(1e-12, 1e-12, _PRODUCT),
}

INEXACT_MODULES: dict[str, Exactness] = {
    "nn.TransformerDecoderLayer": Tolerance(
        1e-5,
        1e-6,
        "without gradients eager's self-attention takes a fused operator, a trace the operators that it is made of",
        modes="eval forward",
    ),
}

#: What eager itself cannot run without an accelerator.
UNSUPPORTED_BY_EAGER = frozenset(
    {
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
    }
)

if torch.__version__ < "2.12":
    REFUSED_OPERATORS["quantile"] = Refusal(DataDependent, _CHECKS, partly=True)
    REFUSED_MODULES["nn.BatchNorm3d"] = Refusal(DataDependent, _COUNTED, "train", partly=True)
