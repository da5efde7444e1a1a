"""Clock, power and throttling of this rank's GPU during timing, sampled through NVML."""

from __future__ import annotations

import statistics
import threading
from typing import Any

import pynvml

from jobs.health.nvml import num_active_links, visible_gpu
from jobs.records.row import Telemetry

INTERVAL_S = 0.05
# Bits of nvmlClocksEventReasons for a clock below the requested one, with nvidia-smi's names.
_THROTTLE_REASONS = {
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
}


class Sampler:
    """A thread that samples NVML until it is stopped."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples: list[tuple[float, float, float, int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    @classmethod
    def start(cls) -> Sampler:
        """Start sampling this process's GPU."""
        sampler = cls(visible_gpu())
        sampler._thread.start()
        return sampler

    def stop(self, rank: int) -> Telemetry | None:
        """End the thread and summarize its samples; ``None`` without any."""
        self._stopped.set()
        self._thread.join()
        if not self._samples:
            return None
        clocks, powers, temperatures, reasons = zip(*self._samples, strict=True)
        seen = [name for bit, name in _THROTTLE_REASONS.items() if any(r & bit for r in reasons)]
        return Telemetry(
            rank=rank,
            num_samples=len(clocks),
            sm_clock_mhz=statistics.median(clocks),
            sm_clock_min_mhz=min(clocks),
            power_w=statistics.median(powers),
            power_max_w=max(powers),
            temperature_c=statistics.median(temperatures),
            throttle_reasons=tuple(seen),
        )

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            try:
                self._samples.append(
                    (
                        pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
                        pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3,
                        pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU),
                        pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle),
                    )
                )
            except pynvml.NVMLError:
                # Drivers refuse some readings with MIG and vGPU; the times don't depend on them.
                return


def nvlink_name() -> str:
    """NVLink of this process's GPU as nvidia-smi names it, such as ``NV18`` for 18 active links; else ``PCIe``."""
    active = num_active_links(visible_gpu())
    return f"NV{active}" if active else "PCIe"
