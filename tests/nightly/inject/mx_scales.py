"""Round blocks of Gaussian values to MXFP8 as torchao does, and tell how many have one that saturates, and how far."""

import json
import warnings

import torch

warnings.simplefilter("ignore")
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx  # noqa: E402

BLOCKS, SIZE, LARGEST = 8192, 32, 448.0


def saturated(mode):
    torch.manual_seed(0)
    values = torch.randn(BLOCKS, SIZE, dtype=torch.float32)
    scale, _ = to_mx(values, torch.float8_e4m3fn, SIZE, scaling_mode=mode)
    power = torch.exp2(scale.view(torch.uint8).float() - 127).reshape(BLOCKS, 1)
    over = values.abs() / power / LARGEST
    return [(over.amax(1) > 1).float().mean().item(), (over.amax() - 1).item()]


print(json.dumps({mode.value: saturated(mode) for mode in (ScaleCalculationMode.FLOOR, ScaleCalculationMode.RCEIL)}))
