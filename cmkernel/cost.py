"""Cost model of both operations, per rank: work, traffic and expected time from datasheet rates."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

# Synchronisation that the JAX tutorial adds to its bound for each exchange between ranks
# (https://docs.jax.dev/en/latest/pallas/gpu/collective_matmul.html).
ARTICLE_EXCHANGE_US = 6.0

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """Datasheet rates of one GPU."""

    peak_tflops: float
    """Dense f16 and bf16 tensor-core rate, TFLOP/s."""
    link_gbytes_per_s: float
    """NVLink bandwidth to the other GPUs in one direction, GB/s."""


# Keyed by jax's ``Device.device_kind``. Sources: NVIDIA's H100, H200 and GH200 datasheets. They quote tensor-core rates
# with sparsity, halved here.
_DEVICES = {
    "NVIDIA H100 80GB HBM3": DeviceModel(989.4, 450.0),
    "NVIDIA H100 NVL": DeviceModel(835.5, 300.0),
    "NVIDIA H100 PCIe": DeviceModel(756.5, 300.0),
    "NVIDIA H200": DeviceModel(989.4, 450.0),
    "NVIDIA H200 NVL": DeviceModel(835.5, 450.0),
    "NVIDIA GH200 120GB": DeviceModel(989.4, 450.0),
    "NVIDIA GH200 480GB": DeviceModel(989.4, 450.0),
}


def device_model(device_kind: str) -> DeviceModel | None:
    """Datasheet rates by jax's name of the device, or ``None`` for CPUs and other GPUs."""
    return _DEVICES.get(device_kind)


def peak_tflops(device_kind: str, dtype: str) -> float | None:
    """Dense tensor-core peak for ``dtype`` in TFLOP/s, or ``None`` if unknown. float32 has no peak here."""
    model = device_model(device_kind)
    return model.peak_tflops if model and ITEMSIZE[dtype] == 2 else None


def flops(*, m_shard: int, k: int, n_shard: int, num_ranks: int) -> int:
    """Floating-point operations of one rank: ``2 * (num_ranks * m_shard) * k * n_shard``."""
    return 2 * num_ranks * m_shard * k * n_shard


def gathered_bytes(*, m_shard: int, k: int, num_ranks: int, dtype: str) -> int:
    """Size of the gathered lhs in bytes, which nccl-tests calls the size of an all-gather."""
    return num_ranks * m_shard * k * ITEMSIZE[dtype]


def received_bytes(*, m_shard: int, k: int, num_ranks: int, dtype: str) -> int:
    """Bytes that each rank receives, and sends, over all steps: every shard but its own."""
    return (num_ranks - 1) * m_shard * k * ITEMSIZE[dtype]


@dataclasses.dataclass(frozen=True)
class Links:
    """Bandwidth between the ranks of a ring over several hosts, in one direction, GB/s.

    Raises:
      ValueError: a value isn't greater than 0.
      TypeError: an argument is unknown. For the old names ``link_gbps`` and ``nic_gbps`` the message gives the new one.
    """

    link_gbytes_per_s: float
    """From a device to another one of its host."""
    nic_gbytes_per_s: float
    """From a host to the others, through one network card."""
    nics_per_host: int = 1
    """Network cards that a host's devices share. More cards than devices bring nothing."""

    def __new__(cls, *_: object, **options: object) -> Self:
        """Refuse the names that these options had when gbps stood for gigabytes."""
        for name in ("link", "nic"):
            if f"{name}_gbps" in options:
                raise TypeError(f"{name}_gbps={options[f'{name}_gbps']} is now called {name}_gbytes_per_s (GB/s)")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name}={value} must be greater than 0")


# DGX or HGX H100 or H200 (NVIDIA's datasheets): one 400 Gb/s adapter (ConnectX-7, 50 GB/s) for each of the 8 GPUs.
_NIC_GBYTES_PER_S, _NICS_PER_HOST = 50.0, 8
# Devices without a model: processes that copy through memory, and one network card of 10 Gb/s.
_UNKNOWN_LINKS = Links(link_gbytes_per_s=10.0, nic_gbytes_per_s=1.25)


def default_links(device_kind: str) -> Links:
    """Links assumed between hosts with such devices unless the caller gives better ones."""
    model = device_model(device_kind)
    return Links(model.link_gbytes_per_s, _NIC_GBYTES_PER_S, _NICS_PER_HOST) if model else _UNKNOWN_LINKS


@dataclasses.dataclass(frozen=True)
class ExpectedTime:
    """Modelled times of one case on one kind of device, in microseconds."""

    local_us: float
    """The multiply without communication."""
    exchange_us: float
    """All exchanges at the link's bandwidth."""
    serial_us: float
    """The exchanges and the multiply, one after the other."""
    overlapped_us: float
    """The ring, which hides each exchange behind the multiply of another step."""
    article_bound_us: float
    """The JAX tutorial's lower bound: ``D`` times one shard's multiply plus 6 us for each of ``D - 1`` exchanges."""


def expected_time(
    device: DeviceModel, *, m_shard: int, k: int, n_shard: int, num_ranks: int, dtype: str
) -> ExpectedTime:
    """Roofline of an all-gather matmul."""
    return roofline(
        device,
        flops=flops(m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks),
        exchanged_bytes=gathered_bytes(m_shard=m_shard, k=k, num_ranks=1, dtype=dtype),
        num_ranks=num_ranks,
    )


def roofline(device: DeviceModel, *, flops: int, exchanged_bytes: int, num_ranks: int) -> ExpectedTime:
    """Roofline of a ring: ``(D - 1) * max(step, exchange) + step`` for D ranks.

    Each of the ``D - 1`` steps beside an exchange takes as long as the slower of its multiply and that exchange. A
    gather exchanges before the multiply of a step, a reduce-scatter after it: the sum is the same.

    Args:
      device: rates of a rank's device.
      flops: floating-point operations of a rank, over all steps.
      exchanged_bytes: bytes that a rank sends in each of the ``D - 1`` exchanges.
      num_ranks: ``D``.
    """
    step_us = flops / num_ranks / device.peak_tflops * 1e-6
    exchange_us = exchanged_bytes / device.link_gbytes_per_s * 1e-3
    num_exchanges = num_ranks - 1
    return ExpectedTime(
        local_us=num_ranks * step_us,
        exchange_us=num_exchanges * exchange_us,
        serial_us=num_ranks * step_us + num_exchanges * exchange_us,
        overlapped_us=num_exchanges * max(step_us, exchange_us) + step_us,
        article_bound_us=article_bound_us(num_ranks * step_us, num_ranks),
    )


@dataclasses.dataclass(frozen=True)
class ExpectedRings:
    """Modelled times of the portable rings over several hosts, in microseconds."""

    flat_us: float
    two_level_us: float

    @property
    def prefers_two_level(self) -> bool:
        """True if the two-level ring saves at least 1 % of the flat ring's time, more than the model's rounding."""
        return self.two_level_us < 0.99 * self.flat_us

    def __str__(self) -> str:
        return f"expected: flat ring {self.flat_us:.1f} us, two-level ring {self.two_level_us:.1f} us"


def expected_rings(
    links: Links,
    *,
    peak_tflops: float | None,
    m_shard: int,
    k: int,
    n_shard: int,
    num_hosts: int,
    devices_per_host: int,
    dtype: str,
) -> ExpectedRings:
    """Roofline of both portable rings, where each exchange overlaps the multiplies that don't wait for it.

    Flat: every step but the last takes as long as the slowest of multiply, link and, between hosts, one card.
    Two-level: every revolution but the last takes as long as the slower of the ring within the host and the cards, each
    of which sends one shard for every device it serves.

    ``peak_tflops=None`` means unknown: the multiply then counts as 0 us, and communication alone decides.
    """
    work = flops(m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=1)
    multiply_us = work / peak_tflops * 1e-6 if peak_tflops else 0.0
    shard_bytes = gathered_bytes(m_shard=m_shard, k=k, num_ranks=1, dtype=dtype)
    link_us = shard_bytes / links.link_gbytes_per_s * 1e-3 if devices_per_host > 1 else 0.0
    nic_us = shard_bytes / links.nic_gbytes_per_s * 1e-3 if num_hosts > 1 else 0.0
    devices_per_nic = math.ceil(devices_per_host / min(links.nics_per_host, devices_per_host))
    revolution_us = (devices_per_host - 1) * max(multiply_us, link_us) + multiply_us
    return ExpectedRings(
        flat_us=(num_hosts * devices_per_host - 1) * max(multiply_us, link_us, nic_us) + multiply_us,
        two_level_us=(num_hosts - 1) * max(revolution_us, devices_per_nic * nic_us) + revolution_us,
    )


def article_bound_us(local_us: float, num_ranks: int) -> float:
    """The JAX tutorial's lower bound, from the time of the whole multiply (``D`` shards) without communication."""
    return local_us + ARTICLE_EXCHANGE_US * (num_ranks - 1)
