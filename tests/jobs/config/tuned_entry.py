"""Entry of a table of tuned configs, for tests."""

from cmkernel import PpermuteConfig
from cmkernel.tuned import Entry, Shape

ENTRY = Entry(
    shape=Shape(device_kind="cpu", num_ranks=2, m_shard=64, k=256, n_shard=256, dtype="bfloat16"),
    implementation="ppermute",
    config=PpermuteConfig(num_chunks=2),
    us=100.0,
    heuristic_us=110.0,
    date="2026-11-30",
    jax="0.11.2",
)
