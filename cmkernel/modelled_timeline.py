"""Modelled times at which ``mosaic_gpu`` receives and multiplies each shard.

The protocol is walked with the rates of ``cmkernel.performance_model``. All ranks do the same at the same time, each
with another shard, so one rank's timeline holds for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cmkernel import ring
from cmkernel.config import OPERAND_BYTES, KernelConfig
from cmkernel.performance_model import Rates, rates
from cmkernel.protocol import Protocol, make_protocol
from cmkernel.timeline import Interval, StepTimes


def modelled_timeline(
    config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int
) -> tuple[StepTimes, ...]:
    """Device steps of a call on H200s with lhs ``[m_shard, k]`` and rhs ``[k, n_shard]`` on each rank.

    Raises:
      ValueError: the model doesn't know the config's tiles.
    """
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}
    protocol = make_protocol(config, **sizes)
    return tuple(_Walk(protocol, rates(config, **sizes), config, m_shard=m_shard, k=k).steps())


class _Walk:
    """Clocks of one rank's compute CTAs and sending warps."""

    def __init__(self, protocol: Protocol, rates: Rates, config: KernelConfig, *, m_shard: int, k: int) -> None:
        self._protocol, self._rates, self._config = protocol, rates, config
        self._m_shard, self._k = m_shard, k
        self._cta_free = [0.0] * protocol.num_compute_ctas
        self._cta_next = [0] * protocol.num_compute_ctas
        self._sender_free = [0.0] * protocol.num_senders
        self._sender_next = [0] * protocol.num_senders

    def steps(self) -> Iterator[StepTimes]:
        pieces = [[0.0] * self._protocol.num_chunks for _ in range(self._protocol.num_m_tiles)]
        arrival = None
        for step in range(self._protocol.num_ranks):
            sent = [[0.0] * self._protocol.num_chunks for _ in pieces]
            begun = self._send(step, pieces, sent)
            multiply, wait_us, begun_in_tile = self._multiply(step, pieces, sent)
            yield StepTimes(step, multiply, arrival, wait_us)
            pieces = sent
            arrival = Interval(min([*begun, *begun_in_tile], default=0.0), max(map(max, sent)))

    def _send(self, step: int, pieces: Sequence[Sequence[float]], sent: list[list[float]]) -> list[float]:
        """Run the communication CTAs' jobs of ``step``: return their start times, store arrival times in ``sent``."""
        if not ring.sends_in(step, self._protocol.num_ranks):
            return []
        begun = []
        for sender in range(self._protocol.num_senders):
            while self._sender_next[sender] < self._protocol.num_local_jobs(sender):
                job_step, m_idx, chunk = self._protocol.job(sender, self._sender_next[sender])
                if job_step != step:
                    break
                start_us = max(self._sender_free[sender], pieces[m_idx][chunk])
                copy_us = self._piece_bytes(m_idx, chunk) * self._protocol.num_senders / self._rates.send_bytes_per_us
                self._sender_free[sender] = start_us + copy_us
                self._sender_next[sender] += 1
                sent[m_idx][chunk] = start_us + copy_us + self._rates.arrival_us
                begun.append(start_us)
        return begun

    def _multiply(
        self, step: int, pieces: Sequence[Sequence[float]], sent: list[list[float]]
    ) -> tuple[Interval, float, list[float]]:
        """Run the compute CTAs' tiles of ``step``: return their interval, mean wait, and their sends' start times."""
        protocol = self._protocol
        starts, ends, begun, waited_us = [], [], [], 0.0
        for cta in range(protocol.num_compute_ctas):
            for index in range(self._cta_next[cta], protocol.num_local_tiles(cta, step + 1)):
                _, m_idx, n_idx = protocol.tile(cta, index)
                sends = protocol.sends_in_tile and bool(protocol.sends_tile(step, m_idx, n_idx))
                step_us = self._rates.sending_step_us if sends else self._rates.step_us
                if cta + index * protocol.num_compute_ctas >= protocol.num_whole_tiles:
                    step_us *= self._rates.half_time
                now_us = start_us = self._cta_free[cta]
                for chunk, here_us in enumerate(pieces[m_idx]):
                    waited_us += max(0.0, here_us - now_us)
                    now_us = max(now_us, here_us)
                    if sends and chunk >= protocol.first_in_tile_chunk:
                        begun.append(now_us)
                    now_us += self._chunk_steps(chunk) * step_us
                    if sends and chunk >= protocol.first_in_tile_chunk:
                        sent[m_idx][chunk] = max(sent[m_idx][chunk], now_us + self._rates.arrival_us)
                self._cta_free[cta] = now_us
                starts.append(max(start_us, pieces[m_idx][0]))
                ends.append(now_us)
            self._cta_next[cta] = protocol.num_local_tiles(cta, step + 1)
        return Interval(min(starts), max(ends)), waited_us / protocol.num_compute_ctas, begun

    def _chunk_steps(self, chunk: int) -> int:
        return int(self._protocol.chunk_end(chunk)) - chunk * self._protocol.chunk_k_steps

    def _piece_bytes(self, m_idx: int, chunk: int) -> int:
        rows = min(self._config.cta_tile_m, self._m_shard - m_idx * self._config.cta_tile_m)
        start = chunk * self._protocol.chunk_k_steps * self._config.tile_k
        columns = min(self._k, int(self._protocol.chunk_end(chunk)) * self._config.tile_k) - start
        return rows * columns * OPERAND_BYTES
