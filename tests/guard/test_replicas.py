"""A hash of weights: every bit counts, whatever they are made of."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpttool.guard.checks import ReplicaCheck

KINDS = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.uint8, torch.bool)


class Odd(nn.Module):
    """Weights of many types, one of them empty, one a scalar, one turned around."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.turned = nn.Parameter(torch.randn(3, 5).T)
        self.nothing = nn.Parameter(torch.zeros(0, 4), requires_grad=False)
        for kind in KINDS:
            self.register_parameter(
                str(kind).replace(".", "_"), nn.Parameter(torch.ones(4, 4).to(kind), requires_grad=False)
            )


@pytest.mark.usefixtures("one_process_group")
@pytest.mark.parametrize("is_old", [False, True], ids=["newest torch", "torch without hashes"])
def test_one_element_of_any_weight_changes_its_hash_alone(*, is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_old:
        monkeypatch.delattr(torch, "hash_tensor")
    torch.manual_seed(1)
    model = DistributedDataParallel(Odd())
    check = ReplicaCheck(model)
    before = check.hashes()
    assert torch.equal(before, check.hashes())
    for index, parameter in enumerate(model.module.parameters()):
        if not parameter.numel():
            continue
        with torch.no_grad():
            parameter[(0,) * parameter.dim()] = 0
        after = check.hashes()
        assert torch.nonzero(after != before).flatten().tolist() == [index]
        before = after
    assert check.compare(before) is None  # alone, nobody disagrees
