"""Every code by name, for the library. Rows of trainers and features are imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core import findings as core

if TYPE_CHECKING:
    from ckpttool.fp8.findings import Fp8Code
    from ckpttool.guard.findings import GuardCode
    from ckpttool.health.findings import HealthCode
    from ckpttool.marks.findings import MarkCode
    from ckpttool.nodes.findings import NodesCode
    from ckpttool.postflight.findings import PostflightCode
    from ckpttool.replicas.findings import ReplicasCode
    from ckpttool.retention.findings import RetentionCode
    from ckpttool.trainers.deepspeed.findings import DeepSpeedCode
    from ckpttool.trainers.export_findings import ExportCode
    from ckpttool.trainers.findings import TrainersCode
    from ckpttool.trainers.huggingface.findings import HuggingFaceCode
    from ckpttool.trainers.megatron.findings import MegatronCode
    from ckpttool.trainers.mindformers.findings import MindFormersCode
    from ckpttool.watch.findings import WatchCode

    class Code(
        core.Code, TrainersCode, ExportCode, MindFormersCode, MegatronCode, DeepSpeedCode, HuggingFaceCode,
        HealthCode, ReplicasCode, NodesCode, GuardCode, Fp8Code,
        PostflightCode, RetentionCode, WatchCode, MarkCode,
    ):  # fmt: skip
        """Every kind of finding. Codes may be added but are never renamed, so scripts can rely on them."""

else:

    class _All(core.Rows):
        """The metaclass of `Code`, which lists the rows and finds them by name or code, like an enum."""

        def __iter__(self) -> Iterator[core.Row]:
            from ckpttool.core.extensions import rows

            return rows()

        def __len__(self) -> int:
            return sum(1 for _ in self)

        def __call__(self, code: str) -> core.Row:
            from ckpttool.core.extensions import row_of

            return row_of(code)

        def __getitem__(self, name: str) -> core.Row:
            for row in self:
                if row.name == name:
                    return row
            raise KeyError(name)

        def __instancecheck__(self, value: object) -> bool:
            return isinstance(value, core.Row)

        def __getattr__(self, name: str) -> core.Row:
            try:
                return self[name]
            except KeyError:
                raise AttributeError(f"no finding has the code {name}") from None

    class Code(core.Code, metaclass=_All):
        """Every kind of finding. Codes may be added but are never renamed, so scripts can rely on them."""
