"""Check on a GPU whether the hardware and Transformer Engine behave as `ckpttool fp8` assumes.

    python benchmarks/fp8_gpu.py [--quick]

Each line has the expected and the actual value, and whether both are equal; costs are ratios to a reference from the
same run. Without a GPU of Hopper or later it prints only "not run"; then the checks themselves are untested, too.
`--quick` casts every 4,096th pattern.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckpttool.fp8.frameworks.inspect_log import OperandsSeen  # noqa: E402
from ckpttool.fp8.model.fp8 import Fp8Format, Recipe  # noqa: E402  after the path to this checkout
from ckpttool.fp8.read import kernel_cast as fp8_cast  # noqa: E402

Array = NDArray[Any]

HOPPER, BLACKWELL = (9, 0), (10, 0)
NOT_RUN, FAILED = "not run", "failed"
PATTERNS, PIECE = 1 << 32, 1 << 24
SIDE = 512
DELAYED = (  # amax of each step, and the scale that the next one uses: history of 4, E4M3
    ((1.0, 2.0, 4.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5), (448.0, 224.0, 112.0, 112.0, 112.0, 112.0, 896.0, 896.0)),
    ((1.0, np.inf, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5), (448.0, 448.0, 448.0, 448.0, 448.0, 448.0, 896.0, 896.0)),
)
GEMMS = {
    "E3": "FakeQuant: {enabled: True, gemms: [fprop, dgrad, wgrad], tensors_struct: [{tensor: activation, quant_format:"
    " FP8E4M3}, {tensor: weight, quant_format: FP8E4M3}, {tensor: gradient, quant_format: FP8E5M2}]}",
    "E4d": "{off}: {enabled: True, gemms: [dgrad]}",
    "E5": "PerTensorScaling: {enabled: True, gemms: [dgrad], tensors: [gradient, weight]}",
    "E8": "PerTensorScaling: {enabled: True, gemms: [dgrad], tensors: [gradient]}",
    "FakeQuant with MXFP8": "FakeQuant: {enabled: True, gemms: [dgrad], tensors: [gradient], quant_format: MXFP8E4M3}",
}
"""Experiment -> the feature that performs it."""
DID = {
    "E3": {"fprop": "fake fake", "dgrad": "fake fake", "wgrad": "fake fake"},
    "E4d": {"fprop": "quantized quantized", "dgrad": "high high", "wgrad": "quantized quantized"},
    "E5": {"fprop": "quantized quantized", "dgrad": "current current", "wgrad": "quantized quantized"},
    "E8": {"fprop": "quantized quantized", "dgrad": "current quantized", "wgrad": "quantized quantized"},
    "FakeQuant with MXFP8": FAILED,
}
"""Experiment -> the logged casts of the operands of each product, by name."""


def line(what: str, *, expected: object, found: object) -> str:
    """Return a line of the report."""
    return f"{what}: expected {expected}, found {found}: {'equal' if expected == found else 'DIFFERENT'}"


def bits(values: Array) -> Array:
    """Return F32 as its patterns; every NaN is the same one."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), np.ascontiguousarray(values, np.float32).view(np.uint32))


def patterns(*, step: int) -> Iterator[Array]:
    """Yield all F32 numbers, or every n-th, in pieces."""
    for first in range(0, PATTERNS, PIECE * step):
        last = min(PATTERNS, first + PIECE * step)
        yield np.arange(first, last, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def cuda_cast(*, step: int, device: str = "cuda") -> Iterator[str]:
    """Cast every F32 pattern by torch, clamped first as in trainers, and print how many differ from numpy's."""
    import torch

    for format_, dtype in ((Fp8Format.E4M3, torch.float8_e4m3fn), (Fp8Format.E5M2, torch.float8_e5m2)):
        largest = fp8_cast.LIMITS[format_].largest
        differ = 0
        for values in patterns(step=step):
            there = torch.from_numpy(values).to(device)
            found = there.clamp(-largest, largest).to(dtype).float().cpu().numpy()
            differ += int(np.count_nonzero(bits(found) != bits(fp8_cast.cast(values, format_))))
        yield line(f"cast to {format_.value}, clamped, patterns that differ", expected=0, found=differ)
        infinity = torch.tensor([float("inf")], device=device).to(dtype).float().item()
        expected = largest if format_ is Fp8Format.E4M3 else float("inf")
        yield line(f"torch {torch.__version__}: infinity in {format_.value}", expected=expected, found=infinity)


def accumulation() -> Iterator[str]:
    """Print the distance from F32 of fast and of slow accumulation, by the length of the sums."""
    import torch

    one = torch.ones((), device="cuda")
    for length in (1024, 2048, 4096, 8192, 16384):
        chance = torch.Generator("cuda").manual_seed(length)
        left, right = (torch.randn(SIDE, length, generator=chance, device="cuda") for _ in range(2))
        a, b = (values.to(torch.float8_e4m3fn) for values in (left, right))
        exact = a.double() @ b.double().T
        errors = {
            fast: (
                torch._scaled_mm(a, b.T, one, one, out_dtype=torch.float32, use_fast_accum=fast).double() - exact  # noqa: SLF001  there is no public name
            ).norm()
            / exact.norm()
            for fast in (True, False)
        }
        ratio = (errors[True] / errors[False].clamp(min=1e-12)).item()
        yield f"sums of {length}: error {errors[True]:.2e} fast, {errors[False]:.2e} slow: ratio {ratio:.1f}"


def by_blocks(values: Array, rows: int, columns: int, recipe: Recipe) -> tuple[Array, Array]:
    """Return codes (as scaled numbers) and scales of blocks: numpy's own, of a square of `SIDE`."""
    blocks = values.reshape(SIDE // rows, rows, SIDE // columns, columns)
    scale = fp8_cast.scales(np.abs(blocks).max((1, 3)), Fp8Format.E4M3, recipe)
    codes = fp8_cast.cast(blocks, Fp8Format.E4M3, scale=scale[:, None, :, None])
    return codes.reshape(SIDE, SIDE), scale


def quantisers() -> Iterator[str]:
    """Compare the codes and scales of Transformer Engine's quantisers."""
    import torch
    import transformer_engine.pytorch as te
    import transformer_engine_torch as tex
    from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
    from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
    from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer

    e4m3 = tex.DType.kFloat8E4M3
    values = (torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(1)) * 0.02).bfloat16()
    there, here = values.cuda(), values.float().numpy()

    def told(name: str, raw: Any, inverse: Any, expected: tuple[Array, Array]) -> Iterator[str]:  # noqa: ANN401  torch's
        codes = raw.view(torch.float8_e4m3fn).float().cpu().numpy()
        differ = int(np.count_nonzero(bits(codes) != bits(expected[0])))
        yield line(f"{name}: codes that differ", expected=0, found=differ)
        back = inverse.cpu().numpy()
        if back.ndim > 1:  # padded for the hardware
            back = back[: expected[1].shape[0], : expected[1].shape[1]]
        if back.dtype == np.uint8:  # E8M0
            back = np.ldexp(np.float32(1), back.astype(np.int32) - 127)
        ours = np.float32(1) / expected[1]
        apart = int(np.count_nonzero(np.asarray(back, np.float32).reshape(ours.shape) != ours))
        yield line(f"{name}: scales that differ", expected=0, found=apart)

    scale = torch.full((1,), 1000.0, device="cuda")
    fixed = Float8Quantizer(scale, torch.zeros(1, device="cuda"), e4m3)(there)
    by_thousand = fp8_cast.cast(here, Fp8Format.E4M3, scale=1000.0), np.full((1, 1), 1000.0, np.float32)
    yield from told("a given scale", fixed._data, fixed._scale_inv, by_thousand)  # noqa: SLF001  no public name
    current = Float8CurrentScalingQuantizer(e4m3, torch.device("cuda"))(there)
    whole = by_blocks(here, SIDE, SIDE, Recipe.TENSORWISE)
    yield from told("current scaling", current._data, current._scale_inv.cpu(), whole)  # noqa: SLF001
    for name, dimensions, rows in (("weight", 2, 128), ("activation", 1, 1)):
        block = Float8BlockQuantizer(e4m3, rowwise=True, columnwise=True, block_scaling_dim=dimensions)(there)
        inverse = block._rowwise_scale_inv if dimensions == 2 else block._rowwise_scale_inv.T  # noqa: PLR2004, SLF001
        ours = by_blocks(here, rows, 128, Recipe.BLOCKWISE)
        yield from told(f"blockwise, {name}", block._rowwise_data, inverse, ours)  # noqa: SLF001
    if torch.cuda.get_device_capability() < BLACKWELL:
        yield f"mxfp8: {NOT_RUN}: this GPU is no Blackwell"
    else:
        mx = MXFP8Quantizer(e4m3)(there)
        ours = by_blocks(here, 1, 32, Recipe.MXFP8)
        yield from told("mxfp8", mx._rowwise_data, mx._rowwise_scale_inv, ours)  # noqa: SLF001
    yield f"with Transformer Engine {te.__version__}"


def delayed() -> Iterator[str]:
    """Let Transformer Engine update the scale of a delayed recipe, step by step."""
    import torch
    import transformer_engine_torch as tex

    for amaxes, expected in DELAYED:
        history, scale = torch.zeros(4, 1, device="cuda"), torch.ones(1, device="cuda")
        found = []
        for amax in amaxes[:-1]:
            newest = torch.tensor([amax], device="cuda")
            tex.fused_amax_and_scale_update_after_reduction(
                newest, [history], [scale], "max", tex.DType.kFloat8E4M3, 0.0
            )
            found.append(scale.item())
        yield line(f"scales after amax {amaxes}", expected=expected, found=tuple(found))


def off_switch() -> str:
    """Return the name of the feature that switches FP8 off for a product."""
    major, minor = version("transformer-engine").split(".")[:2]
    return "DisableQuantizationGEMM" if (int(major), int(minor)) >= (2, 13) else "DisableFP8GEMM"


def experiments() -> Iterator[str]:
    """Train a linear layer for two steps under each debug config, and read the casts of the operands from its log."""
    for name, feature in GEMMS.items():
        with tempfile.TemporaryDirectory() as folder:
            features = f"  transformer_engine: {{{feature.replace('{off}', off_switch())}}}\n"
            layers = "  layers: {layer_name_regex_pattern: '.*'}\n"
            Path(folder, "debug.yaml").write_text(f"it:\n  enabled: True\n{layers}{features}", encoding="utf-8")
            command = [sys.executable, __file__, "--one-layer", folder]
            done = subprocess.run(command, capture_output=True, check=False)
            seen = OperandsSeen()
            for log in sorted(Path(folder).rglob("nvdlfw_inspect_globalrank-0.log")):
                for text in log.read_bytes().splitlines():
                    seen.add(text)
        did: dict[str, list[str]] = {}
        for operand in seen.operands():
            did.setdefault(operand.gemm.value, []).append("+".join(each.value for each in operand.computed))
        found = FAILED if done.returncode else {gemm: " ".join(words) for gemm, words in did.items()}
        yield line(f"{name} in one layer", expected=DID[name], found=found)


def one_layer(folder: str) -> None:
    """Train one linear layer under `debug.yaml`."""
    import nvdlfw_inspect.api as inspect
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling
    from transformer_engine.debug import features

    config = str(Path(folder, "debug.yaml"))
    inspect.initialize(config_file=config, feature_dirs=list(features.__path__), log_dir=folder)
    layer = te.Linear(SIDE, SIDE, params_dtype=torch.bfloat16, name="layers.1.fc1")
    for _ in range(2):
        with te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling()):
            out = layer(torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16, requires_grad=True))
        out.float().square().mean().backward()
        inspect.step()
    inspect.end_debug()


def histogram() -> Iterator[str]:
    """Print the cost of counting the magnitudes of an operand, relative to the product that uses it."""
    import torch

    left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def milliseconds(work: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            work()
        begin.record()
        for _ in range(20):
            work()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 20

    counted = milliseconds(lambda: torch.bincount((left.view(torch.int16) & 0x7FFF).flatten().int(), minlength=32768))
    ratio = counted / milliseconds(lambda: left @ right)
    yield f"histogram of an operand of 4096 x 4096: ratio to its product in BF16 {ratio:.2f}"


def why_not() -> str | None:
    """Return why nothing can be measured here."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "there is no GPU"
    capability: tuple[int, int] = torch.cuda.get_device_capability()
    return None if capability >= HOPPER else f"{torch.cuda.get_device_name()} has no FP8 of Hopper"


def lacks(package: str) -> bool:
    """Return whether a package is not installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return True
    return False


def main() -> None:
    """Run all checks that are possible here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="cast every 4,096th pattern alone")
    parser.add_argument("--one-layer", metavar="FOLDER", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"{NOT_RUN}: {reason}")
        return
    if asked.one_layer:
        one_layer(asked.one_layer)
        return
    checks: tuple[tuple[Callable[[], Iterator[str]], tuple[str, ...]], ...] = (
        (lambda: cuda_cast(step=4096 if asked.quick else 1), ()),
        (accumulation, ()),
        (quantisers, ("transformer-engine",)),
        (delayed, ("transformer-engine",)),
        (experiments, ("transformer-engine", "nvdlfw-inspect")),
        (histogram, ()),
    )
    for check, needs in checks:
        missing = [package for package in needs if lacks(package)]
        for text in check() if not missing else (f"{check.__name__}: {NOT_RUN}: {missing[0]} is not installed",):
            print(text, flush=True)


if __name__ == "__main__":
    main()
