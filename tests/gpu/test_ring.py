"""The kernel over all GPUs of this machine, a process each: exact on integers, whatever comes late."""

import pytest

from tests.gpu import attacks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("form", [attacks.HEURISTIC, *attacks.FORMS])
def test_every_call_is_exact(all_gpus, form, num_calls, timeout_s):
    wrong = all_gpus.call(attacks.ring, form, calls=10 * num_calls, timeout_s=2 * timeout_s)
    assert wrong == [0] * len(all_gpus)


@pytest.mark.parametrize("form", attacks.FORMS)
def test_ranks_that_come_late(all_gpus, form, num_calls, timeout_s):
    wrong = all_gpus.call(attacks.ring, form, calls=2 * num_calls, late_ranks=True, timeout_s=timeout_s)
    assert wrong == [0] * len(all_gpus)


@pytest.mark.parametrize("delay", [delay for delay in attacks.DELAYS if delay != "none"])
@pytest.mark.parametrize("form", attacks.FORMS)
def test_slow_warps(all_gpus, form, delay, num_calls, timeout_s):
    wrong = all_gpus.call(attacks.ring, form, delay, calls=num_calls, timeout_s=timeout_s)
    assert wrong == [0] * len(all_gpus)


@pytest.mark.parametrize("form", [attacks.HEURISTIC, *attacks.FORMS])
def test_normal_data_stay_within_the_tolerance(all_gpus, form, timeout_s):
    wrong = all_gpus.call(attacks.ring, form, calls=20, kind="normal", timeout_s=timeout_s)
    assert wrong == [0] * len(all_gpus)


@pytest.mark.parametrize("form", [attacks.HEURISTIC, *attacks.FORMS])
def test_a_float32_result(all_gpus, form, timeout_s):
    wrong = all_gpus.call(attacks.ring, form, calls=20, out_dtype="float32", timeout_s=timeout_s)
    assert wrong == [0] * len(all_gpus)


def test_every_call_gives_the_same_bits(all_gpus, num_calls, timeout_s):
    changed = all_gpus.call(attacks.ring_repeated, calls=3 * num_calls, timeout_s=timeout_s)
    assert changed == [0] * len(all_gpus)
