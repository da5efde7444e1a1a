"""Device times from real traces: two calls each, recorded on 2x H200 on 2026-11-29 (GPU plane only)."""

from pathlib import Path

import jax
import pytest

from jobs.measure.profile import _calls, _summarize

DATA = Path(__file__).parent / "data"


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
