"""Device times from real traces: two calls each, recorded on 2x H200 on 2026-11-29 (GPU plane only)."""

import jax
import pytest

from jobs.measure.profile import Kernel, _calls, _summarize
from tests.paths import DATA


def summarize(name):
    data = jax.profiler.ProfileData.from_file(str(DATA / f"{name}.xplane.pb"))
    groups = _calls(data, "jit_cmkernel_align")
    assert len(groups) == 2
    return _summarize(groups)


def test_kernel_time_of_the_ring_is_its_kernel_alone():
    profile = summarize("mosaic_gpu")
    assert profile.kernel_us == pytest.approx([100.67, 99.07], abs=0.01)
    # From the first copy's start to the last copy's end, gaps included.
    assert profile.device_us == pytest.approx([264.0, 535.4], abs=0.1)
    assert "ring_all_gather_matmul_kernel_mosaic_gpu_kernel" in profile.kernels_us
    assert profile.kernels_us["MemcpyD2D"] > 25


def test_kernel_time_of_the_baseline_is_gather_plus_multiply():
    profile = summarize("xla")
    assert profile.kernel_us == pytest.approx([53.02 + 95.42, 53.12 + 95.39], abs=0.01)
    assert profile.device_us == pytest.approx([154.8, 148.4], abs=0.1)


def test_kernel_time_as_a_span_is_that_of_the_whole_call():
    profile = summarize("mosaic_gpu")
    assert profile.as_span().kernel_us == profile.device_us
    assert profile.as_span().kernels_us == profile.kernels_us


def test_the_aligner_is_no_part_of_a_call():
    assert not any("AllReduce" in name or "nvjet" in name for name in summarize("xla").kernels_us)


GEMM, GATHER = (
    "nvjet_sm90_tss_128x160_64x5_2x1_v_bz_NNT",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)


@pytest.mark.parametrize(
    ("names", "counted"),
    [
        ((GATHER, GEMM, "wrapped_convert"), (0, 1, 2)),
        (("Memset 3", GEMM, "loop_convert_fusion_1"), (1, 2)),
        ((GEMM, "loop_broadcast_fusion", "wrapped_convert", "wrapped_concatenate"), (0, 2)),
        # A conversion before the multiply isn't a conversion of its result.
        (("wrapped_convert", GATHER, "loop_convert_fusion", GEMM), (1, 3)),
        (("loop_broadcast_fusion", "ring_all_gather_matmul_kernel_mosaic_gpu_kernel", "memcpy128"), (1,)),
    ],
)
def test_a_conversion_after_a_gemm_is_part_of_the_multiply(names, counted):
    # The i-th kernel takes 2**i us, so that each sum is that of one choice only.
    call = [Kernel(name, 1e6 * i, 1e6 * i + 1e3 * 2**i) for i, name in enumerate(names)]
    assert _summarize([call]).kernel_us == [sum(2**i for i in counted)]
