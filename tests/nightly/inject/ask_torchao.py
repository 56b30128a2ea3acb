"""Convert a small layer by configs of FP8 experiments, and tell which of its products are BF16's, bit by bit.

    python ask_torchao.py PACKAGES [--layers] CONFIG...

Prints JSON, a line for each config: gemm -> whether it equals BF16's; or with --layers, layer -> gemms that do.
"""

from __future__ import annotations

import json
import runpy
import sys

packages, *configs = sys.argv[1:]
sys.path.insert(0, packages)

import torch  # noqa: E402

torch.manual_seed(1)
X = torch.randn(32, 64, dtype=torch.bfloat16)
G = torch.randn(32, 48, dtype=torch.bfloat16)
W = torch.randn(48, 64, dtype=torch.bfloat16)


def products(layer):
    """Return output, gradient of the activation and gradient of the weight."""
    x = X.clone().requires_grad_()
    out = layer(x)
    out.backward(G)
    return {"fprop": out.detach(), "dgrad": x.grad, "wgrad": layer.weight.grad}


def linear():
    layer = torch.nn.Linear(64, 48, bias=False, dtype=torch.bfloat16)
    layer.weight.data.copy_(W)
    return layer


def equal(layer):
    found = products(layer)
    return {gemm: bool(torch.equal(value, found[gemm])) for gemm, value in products(linear()).items()}


for config in configs:
    if config == "--layers":
        continue
    convert = runpy.run_path(config)["convert"]
    if "--layers" in configs:
        model = torch.nn.ModuleDict(
            {"layers": torch.nn.ModuleDict({name: torch.nn.ModuleDict({"fc": linear()}) for name in ("1", "2", "10")})}
        )
        convert(model, emulate=True)
        layers = {name: equal(module) for name, module in model.named_modules() if name.endswith(".fc")}
        print(json.dumps({name: [gemm for gemm, same in told.items() if same] for name, told in layers.items()}))
    else:
        model = torch.nn.Sequential(linear())
        convert(model, emulate=True)
        print(json.dumps(equal(model[0])))
