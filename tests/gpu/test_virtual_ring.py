"""The kernel's body for D virtual ranks on one GPU: exact on integers, whatever is delayed."""

import pytest

from tests.gpu import attacks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("delay", ["none", "scattered", "late loads, odd steps", "late sends, odd steps"])
@pytest.mark.parametrize("form", attacks.SMALL_FORMS)
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_every_call_is_exact(one_gpu, num_ranks, form, delay, num_calls, timeout_s):
    wrong = one_gpu.call(attacks.virtual_ring, num_ranks, form, delay, calls=num_calls, timeout_s=timeout_s)
    assert wrong == [0]


@pytest.mark.parametrize("form", attacks.SMALL_FORMS)
def test_an_odd_ring_is_exact(one_gpu, form, num_calls, timeout_s):
    wrong = one_gpu.call(attacks.virtual_ring, 3, form, "scattered", calls=num_calls, timeout_s=timeout_s)
    assert wrong == [0]


@pytest.mark.parametrize("form", attacks.SMALL_FORMS)
def test_normal_data_stay_within_the_tolerance(one_gpu, form, timeout_s):
    wrong = one_gpu.call(attacks.virtual_ring, 4, form, calls=20, kind="normal", timeout_s=timeout_s)
    assert wrong == [0]


@pytest.mark.parametrize("kind", ["integers", "normal"])
def test_a_float32_result(one_gpu, kind, timeout_s):
    options = {"kind": kind, "out_dtype": "float32", "calls": 20}
    assert one_gpu.call(attacks.virtual_ring, 4, "both ways, halves", **options, timeout_s=timeout_s) == [0]


@pytest.mark.parametrize("form", ["communication CTAs", "in-tile"])
def test_every_call_gives_the_same_bits(one_gpu, form, num_calls, timeout_s):
    changed = one_gpu.call(attacks.virtual_ring_repeated, 4, form, calls=num_calls, timeout_s=timeout_s)
    assert changed == [0]
