"""A sample of the survey of models; the rest by `python -m tests.models.survey`."""

from __future__ import annotations

import pytest
import transformers

from tests.models import survey
from tests.models.small import KINDS
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager


@pytest.mark.parametrize("name", ["mixtral", "mamba", "bart", "deit"])
def test_models_are_eagers(name: str) -> None:
    if name == "mixtral" and transformers.__version__ < "5":
        pytest.skip("before transformers 5, Mixtral decides by data which experts run")
    reports = [*survey.examine(name, survey.jit_with(EXECUTORS))]
    assert len(reports) == (5 if KINDS[name].generates else 2)
    assert all(report.is_right for report in reports), "\n".join(map(str, reports))
