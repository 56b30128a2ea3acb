"""Digests of tensors."""

from __future__ import annotations

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, TensorDigests


def test_each_tensor_has_its_own_digest_in_the_order_of_the_names() -> None:
    first, second = b"a" * TENSOR_DIGEST_BYTES, b"b" * TENSOR_DIGEST_BYTES
    digests = TensorDigests(names=("bias", "weight"), digests=first + second)

    assert len(digests) == 2
    assert digests.at(1) == second
    assert digests.by_name == {"bias": first, "weight": second}
