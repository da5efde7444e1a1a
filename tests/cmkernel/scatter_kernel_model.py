"""``kernel_model`` for the reduce-scatter: the same warps on paper, other things to be right about.

A tile's identity follows its data: a product knows the rows of lhs and columns of rhs that it came from, so a staged
piece, a sent block and an added partial sum do too. ``ScatterMachine`` raises ``Violation`` where a buffer or slot is
overwritten too early, where a partial sum lands at the wrong place or twice, is added before it has arrived, in another
order than that of the slots, or not at all.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp

from cmkernel import mosaic_gpu_scatter_cta, ring
from cmkernel.protocol import make_scatter_protocol

from .kernel_model import Machine, Recorder, Recording, Ref, Violation, Warp, barriers

ROWS, COLUMNS = 64, 32  # Cells: rows and columns that are tracked as one.


class _Piece:
    """A piece of an accumulator, by its place in the warpgroup's tile."""

    def __init__(self, shape, row=0, column=0):
        self.shape, self.row, self.column = shape, row, column

    def __getitem__(self, index):
        rows, columns = index
        shape = rows.stop - rows.start, columns.stop - columns.start
        return _Piece(shape, self.row + rows.start, self.column + columns.start)

    def __add__(self, other):
        return self

    def astype(self, dtype):
        return self


class _Acc:
    def __init__(self, shape):
        self.shape = shape

    def __getitem__(self, index):
        return _Piece(self.shape)


@dataclasses.dataclass(frozen=True)
class _Smem(Ref):
    """Shared memory that threads read and write themselves."""

    recorder: Any = None

    def __getitem__(self, index):
        if index is Ellipsis:
            self.recorder.ops.append(("read", self.name, *self.index))
            return _Piece(())
        return super().__getitem__(index)

    def __setitem__(self, slot, piece):
        self.recorder.ops.append(("write", self.name, (*self.index, slot), piece.row, piece.column, piece.shape))


class _Recorder(Recorder):
    def __init__(self, num_ranks):
        super().__init__(num_ranks)

        def wgmma(acc, lhs, rhs):
            self.ops.append(("wgmma", lhs.index, rhs.index))

        self.plgpu.wgmma = wgmma
        self.plgpu.copy_smem_to_gmem = lambda src, dst: self.ops.append(("store", src, dst))
        self.plgpu.ACC = lambda shape, dtype: _Acc(shape)


def record(config, *, num_ranks: int, m_shard: int, k: int, n: int, num_sms: int) -> ScatterRecording:
    sizes = {"num_ranks": num_ranks, "m_shard": m_shard, "k": k, "n_shard": n}
    protocol = make_scatter_protocol(config, **sizes, num_sms=num_sms)
    warps = []
    roles = [("compute", 0, None), ("compute", 1, None), *(("memory", 2, warp) for warp in range(4))]
    for rank, cta, (role, wg, warp) in itertools.product(range(num_ranks), range(num_sms), roles):
        recorder = _Recorder(num_ranks)
        recorder.wg, recorder.warp = wg, warp
        with recorder.installed(mosaic_gpu_scatter_cta):
            types = mosaic_gpu_scatter_cta.scatter_smem_types(
                config, communicates=True, dtype=jnp.bfloat16, out_dtype=jnp.bfloat16, partial_dtype=jnp.bfloat16
            )
            num_arrivals = barriers(types)
            gmem = ("lhs", "rhs", "out", "scratch", "staging")
            body = mosaic_gpu_scatter_cta.ScatterCta(
                config=config,
                protocol=protocol,
                communicates=True,
                rank=rank,
                index=cta,
                counters=Ref("counters", rank),
                **{f"{name}_gmem": Ref(name, rank) for name in gmem},
                **{name: Ref(name) for name in ("lhs_smem", "rhs_smem", "send_smem", *num_arrivals)},
                **{name: _Smem(name, recorder=recorder) for name in ("out_smem", "rhs_addends_smem")},
            )
            (body.compute if role == "compute" else body.move)()
        if recorder.ops:
            warps.append(Warp(rank, cta, f"{role}{wg if warp is None else warp}", recorder.ops))
    return ScatterRecording(num_ranks, config, protocol, m_shard, k, warps, num_arrivals, ScatterMachine, n)


@dataclasses.dataclass
class ScatterRecording(Recording):
    n: int = 0


def cells(rows: tuple[int, int], columns: tuple[int, int]) -> list[tuple[int, int]]:
    """Cells that a window covers."""
    return list(itertools.product(range(rows[0], sum(rows), ROWS), range(columns[0], sum(columns), COLUMNS)))


class ScatterMachine(Machine):
    """The state of all ranks. Content of memory is (block, row, column) of a partial sum and the rank that made it."""

    def __init__(self, recording: ScatterRecording):
        super().__init__(recording)
        self.memory: dict[tuple, Any] = {}  # of staging and out: (name, rank, buffer, cell) -> content
        self.reads: list[list] = [[] for _ in recording.warps]

    def copy(self) -> Machine:
        other = super().copy()
        other.memory = dict(self.memory)
        other.reads = [list(x) for x in self.reads]
        return other

    def _op(self, i: int) -> None:
        warp, pc = self.recording.warps[i], self.pcs[i]
        kind, *arguments = warp.ops[pc]
        if kind in ("write", "read", "wgmma", "wgmma_wait"):
            self.pcs[i] += 1
            getattr(self, f"_{kind}")(i, warp, *arguments)
        else:
            super()._op(i)

    def _wgmma(self, i: int, warp: Warp, lhs: tuple, rhs: tuple) -> None:
        contents = [self.smem.get((warp.rank, warp.cta, "lhs_smem", lhs[0]))]
        contents.append(self.smem.get((warp.rank, warp.cta, "rhs_smem", rhs[0])))
        self.wgmmas[i].append((lhs, rhs, contents))

    def _wgmma_wait(self, i: int, warp: Warp, num_pending: int) -> None:
        pending = self.wgmmas[i]
        while len(pending) > num_pending:
            lhs, rhs, contents = pending.pop(0)
            now = [
                self.smem.get((warp.rank, warp.cta, name, ref[0]))
                for name, ref in (("lhs_smem", lhs), ("rhs_smem", rhs))
            ]
            if None in contents or now != contents:
                raise Violation(f"slot {lhs[0]} is overwritten while {warp.role} multiplies it")
            (_, (block, rows, lhs_k)), (_, (rhs_k, columns)) = contents
            if lhs_k != rhs_k:
                raise Violation(f"{warp.role} multiplies k {lhs_k} of lhs by k {rhs_k} of rhs")
            self.products[i].append(((block, rows[0] + lhs[1][0], columns[0] + rhs[-1][0]), lhs_k[0]))

    def _write(self, i: int, warp: Warp, name: str, slot: tuple, row: int, column: int, shape: tuple) -> None:
        num_k_steps, tile_k = self.recording.protocol.num_k_steps, self.recording.config.tile_k
        products = self.products[i][-num_k_steps:]
        if [k for _, k in products] != [k * tile_k for k in range(num_k_steps)] or len(
            {tile for tile, _ in products}
        ) > 1:
            raise Violation(f"{warp.role} stores {products}, not one tile")
        ((block, first_row, first_column), _) = products[0]
        window = (first_row + row, shape[0]), (first_column + column, shape[1])
        places, added = cells(*window), ()
        if block == warp.rank:
            # A span is added slot by slot right before its pieces are staged.
            added = tuple(
                tuple(entry for entry in content if entry[1] in places)
                for content in self.reads[i][1 - self.recording.num_ranks :]
            )
        self.smem[warp.rank, warp.cta, name, *slot] = (self.pcs[i], (warp.rank, block, places, added))

    def _read(self, i: int, warp: Warp, name: str, slot: int) -> None:
        content = self.smem.get((warp.rank, warp.cta, name, slot))
        if content is None:
            raise Violation(f"{warp.role} adds a slot {slot} that holds nothing")
        self.reads[i].append(content[1])

    def _finish_load(self, i: int, pc: int) -> None:
        warp = self.recording.warps[i]
        _, src, dst, barrier = warp.ops[pc]
        self.loads.remove((i, pc))
        if src.name in ("lhs", "rhs"):
            content = src.index
        elif src.name == "scratch":
            slot, *window = src.index
            content = tuple((slot, cell, self.scratch.get((src.rank, slot, cell))) for cell in self._inside(window))
            if any(sent is None for _, _, sent in content):
                raise Violation(f"rank {src.rank} loads from slot {slot} before it has arrived")
        else:
            buffer, *window = src.index
            content = tuple(self.memory.get(("staging", src.rank, buffer, cell)) for cell in cells(*window))
            if None in content:
                raise Violation(f"rank {src.rank} sends from staging buffer {buffer} what was never staged")
        self.smem[warp.rank, warp.cta, dst.name, *dst.index] = (pc, content)
        self._arrive(warp, *barrier)

    def _inside(self, window) -> list[tuple[int, int]]:
        recording = self.recording
        return [(row, column) for row, column in cells(*window) if row < recording.m_shard and column < recording.n]

    def _advance_store(self, i: int, pc: int) -> None:
        warp = self.recording.warps[i]
        _, src, dst = warp.ops[pc]
        (store,) = [store for store in self.stores[i] if store[0] == pc]
        if store[1] == 0:
            content = self.smem.get((warp.rank, warp.cta, src.name, *src.index))
            if content is None:
                raise Violation(f"{warp.role} of rank {warp.rank} stores a slot that holds nothing")
            store[1:] = [1, content[1]]
            return
        self.stores[i].remove(store)
        getattr(self, f"_land_in_{dst.name}")(warp, dst, store[2])

    def _land_in_staging(self, warp: Warp, dst: Ref, content: tuple) -> None:
        rank, block, places, added = content
        buffer, *window = dst.index
        if added or block == rank:
            raise Violation(f"rank {rank} stages its own tile")
        for cell, place in zip(cells(*window), places, strict=True):
            self.memory["staging", rank, buffer, cell] = (rank, block, place)

    def _land_in_scratch(self, warp: Warp, dst: Ref, content: tuple) -> None:
        slot, *window = dst.index
        sender = ring.partial_sender(dst.rank, slot, self.recording.num_ranks)
        inside = self._inside(window)
        for cell, sent in zip(cells(*window), content, strict=True):
            if cell not in inside:
                continue
            if (dst.rank, slot, cell) in self.scratch:
                raise Violation(f"{cell} of slot {slot} of rank {dst.rank} is written twice")
            if sent != (sender, dst.rank, cell):
                raise Violation(f"{sent} lands at {cell} of slot {slot} of rank {dst.rank}")
            self.scratch[dst.rank, slot, cell] = sent

    def _land_in_out(self, warp: Warp, dst: Ref, content: tuple) -> None:
        rank, block, places, added = content
        window = cells(*dst.index)
        if block != rank or places != window:
            raise Violation(f"rank {rank} stores block {block} at {places} as its own at {window}")
        inside, num_ranks = self._inside(dst.index), self.recording.num_ranks
        expected = tuple(
            tuple((slot, cell, (ring.partial_sender(rank, slot, num_ranks), rank, cell)) for cell in inside)
            for slot in range(num_ranks - 1)
        )
        if added != expected:
            raise Violation(f"rank {rank} adds {added} to {window}")
        for cell in inside:
            if (rank, cell) in self.out:
                raise Violation(f"output {cell} of rank {rank} is stored twice")
            self.out.add((rank, cell))

    def check_end(self) -> None:
        recording = self.recording
        num_cells = recording.num_ranks * len(self._inside(((0, recording.m_shard), (0, recording.n))))
        if len(self.scratch) != (recording.num_ranks - 1) * num_cells:
            raise Violation("something was never sent")
        if len(self.out) != num_cells:
            raise Violation("some output was never stored")
