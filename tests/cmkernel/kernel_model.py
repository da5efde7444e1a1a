"""The kernel's own code, run on paper: what each warp does is recorded, then all warps of all ranks are interleaved.

``record`` runs the methods of ``mosaic_gpu_cta``'s CTA with plain integers, in a world where a copy, a wait or a signal
only writes itself down. So nothing of the protocol is repeated here. A warp's sequence never depends on data, so it is
a list.

``Machine`` holds the state of all ranks and executes one operation of one warp, or one stage of one copy, at a time, in
any order that the waits allow. It raises ``Violation`` where a copy reads what hasn't arrived or a slot that has been
overwritten, where anything is written twice or to the wrong place, and where a tile is multiplied from wrong operands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import types
from typing import Any

import jax.numpy as jnp

from cmkernel import mosaic_gpu_cta, ring
from cmkernel.protocol import make_protocol

CELL = 64  # Rows and columns that are tracked as one.


class Violation(Exception):
    """The protocol let something happen that must not."""


class Deadlock(Violation):
    """Warps are left and none can go on."""


@dataclasses.dataclass(frozen=True)
class Ref:
    name: str
    rank: int = 0
    index: tuple = ()

    @property
    def at(self):
        return self

    def __getitem__(self, index):
        return dataclasses.replace(self, index=(*self.index, *(index if isinstance(index, tuple) else (index,))))

    @property
    def dtype(self):
        return jnp.bfloat16


class _Value:
    """A value nobody looks at but for its shape."""

    def __init__(self, shape=None):
        self.shape = shape

    def __getitem__(self, index):
        return self

    def astype(self, dtype):
        return self


class _OutSmem(Ref):
    def __setitem__(self, index, value):
        pass


class _Acc:
    def __init__(self, shape):
        self.shape = shape

    def __getitem__(self, index):
        return _Value(self.shape)


@dataclasses.dataclass
class Warp:
    """Operations of one warp, or of one compute warpgroup."""

    rank: int
    cta: int
    role: str
    ops: list[tuple]


class Recorder:
    """Stands for the modules that the kernel calls; records the calls."""

    def __init__(self, num_ranks: int):
        self.num_ranks = num_ranks
        self.ops: list[tuple] = []
        self.waits: dict[tuple, int] = {}
        self.wg = 0
        self.warp = None

        def add(*op):
            self.ops.append(op)

        def wait(ref):
            key = (ref.name, *ref.index)
            add("wait", *key, self.waits.setdefault(key, 0))
            self.waits[key] += 1

        def loop(lower, upper):
            def run(body):
                for i in range(lower, upper):
                    body(i)

            return run

        def run_scoped(body, **kwargs):
            return body(acc_ref=kwargs["acc_ref"])

        def when(condition):
            return lambda body: body() if condition else None

        def store(src, dst):
            if dst.name == "out":
                add("out", dst.index[0], dst.index[1][0], dst.index[2][0])
            else:
                add("store", src, dst)

        self.pl = types.SimpleNamespace(
            loop=loop,
            when=when,
            ds=lambda start, size: (start, size),
            run_scoped=run_scoped,
            DeviceIdType=types.SimpleNamespace(LOGICAL=None),
            semaphore_signal=lambda ref, device_id, device_id_type: add("signal", device_id, ref.index[0]),
        )
        self.plgpu = types.SimpleNamespace(
            barrier_wait=wait,
            barrier_arrive=lambda ref: add("arrive", ref.name, *ref.index),
            copy_gmem_to_smem=lambda src, dst, barrier: add("load", src, dst, (barrier.name, *barrier.index)),
            copy_smem_to_gmem=store,
            wait_smem_to_gmem=lambda n, wait_read_only: add("wait_stores", n, wait_read_only),
            remote_ref=lambda ref, rank, kind: dataclasses.replace(ref, rank=rank),
            wgmma=lambda acc, lhs, rhs: add("wgmma", lhs.index[0]),
            wgmma_wait=lambda n: add("wgmma_wait", n),
            commit_smem=lambda: None,
            set_max_registers=lambda *args, **kwargs: None,
            ACC=lambda shape, dtype: _Acc(shape),
            warp_map=lambda body: body(self.warp),
            # For the shared memory's types.
            SMEM=lambda *args, **kwargs: None,
            RefUnion=lambda *args: None,
            TilingTransform=lambda *args: None,
            SwizzleTransform=lambda *args: None,
            find_swizzle=lambda bits: 128,
            Barrier=lambda num_arrivals, num_barriers: (num_arrivals, num_barriers),
        )
        self.lax = types.SimpleNamespace(
            rem=lambda a, b: a % b,
            div=lambda a, b: a // b,
            cond=lambda condition, yes, no: yes() if condition else no(),
            fori_loop=lambda lower, upper, body, value: functools.reduce(
                lambda value, i: body(i, value), range(lower, upper), value
            ),
            axis_index=lambda name: self.wg,
        )
        self.jnp = types.SimpleNamespace(
            minimum=min, maximum=max, where=lambda c, a, b: a if c else b, float32=None, dtype=jnp.dtype
        )

    @contextlib.contextmanager
    def installed(self, *others):
        """Stand for the modules in ``mosaic_gpu_cta`` and in ``others``, which import the same ones."""
        names, functions = ("pl", "plgpu", "lax", "jnp"), ("await_count", "fence_async_proxy", "_store_clock")
        places = [(module, name) for module in (mosaic_gpu_cta, *others) for name in names]
        places += [(mosaic_gpu_cta, name) for name in functions]
        before = [(module, name, getattr(module, name)) for module, name in places]
        for module in (mosaic_gpu_cta, *others):
            for name in names:
                setattr(module, name, getattr(self, name))
        mosaic_gpu_cta.await_count = lambda ref: self.ops.append(("await", ref.index[0]))
        mosaic_gpu_cta.fence_async_proxy = lambda: self.ops.append(("fence",))
        mosaic_gpu_cta._store_clock = lambda ref: self.ops.append(("stamp", *ref.index))
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)


@dataclasses.dataclass
class Recording:
    """All warps of all ranks, and how many arrivals complete a phase of each barrier."""

    num_ranks: int
    config: Any
    protocol: Any
    m_shard: int
    k: int
    warps: list[Warp]
    num_arrivals: dict[str, int]
    machine: Any = None  # Class of the machine that runs this, by default ``Machine``.

    def start(self) -> Machine:
        return (self.machine or Machine)(self)


def record(
    config, *, num_ranks: int, m_shard: int, k: int, n_shard: int, num_sms: int, stamped: bool = False
) -> Recording:
    protocol = make_protocol(config, num_ranks=num_ranks, m_shard=m_shard, k=k, n_shard=n_shard, num_sms=num_sms)
    warps = []
    roles = [("compute", 0, None), ("compute", 1, None), *(("memory", 2, warp) for warp in range(4))]
    for rank, cta, (role, wg, warp) in itertools.product(range(num_ranks), range(num_sms), roles):
        recorder = Recorder(num_ranks)
        recorder.wg, recorder.warp = wg, warp
        with recorder.installed():
            types_ = mosaic_gpu_cta.smem_types(
                config, protocol, communicates=True, dtype=jnp.bfloat16, out_dtype=jnp.bfloat16
            )
            num_arrivals = barriers(types_)
            refs = {name: Ref(name) for name in num_arrivals}
            body = mosaic_gpu_cta.Cta(
                config=config,
                protocol=protocol,
                communicates=num_ranks > 1,
                rank=rank,
                index=cta,
                lhs_gmem=Ref("lhs", rank),
                rhs_gmem=Ref("rhs", rank),
                out_gmem=Ref("out", rank),
                scratch_gmem=Ref("scratch", rank),
                counters=Ref("counters", rank),
                lhs_smem=Ref("lhs_smem"),
                rhs_smem=Ref("rhs_smem"),
                rhs_halves_smem=Ref("rhs_halves_smem"),
                block_smem=Ref("block_smem"),
                out_smem=_OutSmem("out_smem"),
                stamps_gmem=Ref("stamps", rank) if stamped else None,
                **refs,
            )
            (body.compute if role == "compute" else body.move)()
        if recorder.ops:
            warps.append(Warp(rank, cta, f"{role}{wg if warp is None else warp}", recorder.ops))
    return Recording(num_ranks, config, protocol, m_shard, k, warps, num_arrivals)


def barriers(smem_types: dict[str, Any]) -> dict[str, int]:
    """Return the number of arrivals that complete a phase of each barrier."""
    return {name: value[0] for name, value in smem_types.items() if isinstance(value, tuple)}


def _cells(rows: tuple[int, int], columns: tuple[int, int], recording: Recording) -> list[tuple[int, int]]:
    """Cells inside the shard that a window covers."""
    return [
        (row, column)
        for row in range(rows[0], min(rows[0] + rows[1], recording.m_shard), CELL)
        for column in range(columns[0], min(columns[0] + columns[1], recording.k), CELL)
    ]


class Machine:
    """The state of all ranks."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self.pcs = [0] * len(recording.warps)
        self.arrivals: dict[tuple, int] = {}  # (rank, cta, barrier, slot) -> count
        self.counters: dict[tuple[int, int], int] = {}
        self.smem: dict[tuple, tuple] = {}  # (rank, cta, name, slot) -> (number of the load, {cell: shard})
        self.scratch: dict[tuple, int] = {}  # (rank, slot, cell) -> shard
        self.loads: list[tuple[int, int]] = []  # in flight: (warp, pc)
        self.stores: list[list] = [[] for _ in recording.warps]  # of each warp: [pc, stage, content]
        self.wgmmas: list[list] = [[] for _ in recording.warps]
        self.products: list[list] = [[] for _ in recording.warps]
        self.out: set[tuple] = set()

    def copy(self) -> Machine:
        other = object.__new__(type(self))
        other.recording = self.recording
        for name in ("pcs", "loads"):
            setattr(other, name, list(getattr(self, name)))
        for name in ("arrivals", "counters", "smem", "scratch"):
            setattr(other, name, dict(getattr(self, name)))
        other.stores = [[list(store) for store in stores] for stores in self.stores]
        other.wgmmas = [list(x) for x in self.wgmmas]
        other.products = [list(x) for x in self.products]
        other.out = set(self.out)
        return other

    def key(self) -> tuple:
        """Key of the state; the rest of the state follows from it, as long as nothing is violated."""
        stores = tuple(tuple((pc, stage) for pc, stage, _ in stores) for stores in self.stores)
        return tuple(self.pcs), tuple(sorted(self.loads)), stores

    def done(self) -> bool:
        finished = all(pc == len(warp.ops) for pc, warp in zip(self.pcs, self.recording.warps, strict=True))
        return finished and not self.loads and not any(self.stores)

    def choices(self) -> list[tuple]:
        """Operations that could happen next."""
        choices = [("op", i) for i in range(len(self.pcs)) if self._enabled(i)]
        choices += [("load", *load) for load in self.loads]
        choices += [("store", i, pc) for i, stores in enumerate(self.stores) for pc, _, _ in stores]
        return choices

    def take(self, choice: tuple) -> None:
        kind, *arguments = choice
        {"op": self._op, "load": self._finish_load, "store": self._advance_store}[kind](*arguments)

    def _enabled(self, i: int) -> bool:
        warp, pc = self.recording.warps[i], self.pcs[i]
        if pc == len(warp.ops):
            return False
        kind, *arguments = warp.ops[pc]
        if kind == "wait":
            name, slot, phase = arguments
            completed = self.arrivals.get((warp.rank, warp.cta, name, slot), 0) // self.recording.num_arrivals[name]
            if completed > phase + 1:
                raise Violation(f"{name}[{slot}] went on by two phases while {warp.role} waited for one")
            return completed % 2 != phase % 2  # The hardware only tells odd from even.
        if kind == "await":
            return self.counters.get((warp.rank, arguments[0]), 0) >= 1
        if kind == "wait_stores":
            n, read_only = arguments
            older = self._issued(i, n)
            return not any(pc in older and (stage == 0 or not read_only) for pc, stage, _ in self.stores[i])
        return True

    def _issued(self, i: int, n: int) -> set[int]:
        """All stores that a warp has issued so far but the last ``n``."""
        ops = self.recording.warps[i].ops
        issued = [pc for pc in range(self.pcs[i]) if ops[pc][0] == "store"]
        return set(issued[: len(issued) - n])

    def _op(self, i: int) -> None:
        warp, pc = self.recording.warps[i], self.pcs[i]
        kind, *arguments = warp.ops[pc]
        self.pcs[i] += 1
        if kind == "arrive":
            self._arrive(warp, *arguments)
        elif kind == "load":
            self.loads.append((i, pc))
        elif kind == "store":
            self.stores[i].append([pc, 0, None])
        elif kind == "signal":
            target, counter = arguments
            count = self.counters.get((target, counter), 0) + 1
            if count > 1:
                raise Violation(f"counter {counter} of rank {target} is signalled twice")
            self.counters[target, counter] = count
        elif kind == "wgmma":
            self.wgmmas[i].append((arguments[0], self.smem.get((warp.rank, warp.cta, "lhs_smem", arguments[0]))))
        elif kind == "wgmma_wait":
            pending = self.wgmmas[i]
            while len(pending) > arguments[0]:
                slot, content = pending.pop(0)
                if content is None or self.smem.get((warp.rank, warp.cta, "lhs_smem", slot)) != content:
                    raise Violation(f"slot {slot} is overwritten while {warp.role} multiplies it")
                self.products[i].append(content[1])
        elif kind == "out":
            self._check_product(i, warp, *arguments)

    def _check_product(self, i: int, warp: Warp, shard: int, row: int, column: int) -> None:
        config, protocol = self.recording.config, self.recording.protocol
        # All pieces of one output tile come from the same products; they are dropped when the next tile begins.
        products = self.products[i][-protocol.num_k_steps :]
        if (warp.rank, shard, row, column) in self.out:
            raise Violation(f"output {(shard, row, column)} of rank {warp.rank} is stored twice")
        self.out.add((warp.rank, shard, row, column))
        first_row = row // config.cta_tile_m * config.cta_tile_m
        for k_idx, content in enumerate(products):
            window = (first_row, config.cta_tile_m), (k_idx * config.tile_k, config.tile_k)
            if dict(content) != dict.fromkeys(_cells(*window, self.recording), shard):
                raise Violation(f"{warp.role} multiplies {content} for the output of shard {shard} at row {row}")

    def _arrive(self, warp: Warp, name: str, slot: int) -> None:
        key = (warp.rank, warp.cta, name, slot)
        self.arrivals[key] = self.arrivals.get(key, 0) + 1

    def _finish_load(self, i: int, pc: int) -> None:
        warp = self.recording.warps[i]
        _, src, dst, barrier = warp.ops[pc]
        self.loads.remove((i, pc))
        if src.name != "rhs":
            *slot, rows, columns = src.index
            content = []
            for cell in _cells(rows, columns, self.recording):
                shard = src.rank if src.name == "lhs" else self.scratch.get((src.rank, *slot, cell))
                if shard is None:
                    raise Violation(f"rank {src.rank} loads {cell} of slot {slot} before it has arrived")
                content.append((cell, shard))
            self.smem[warp.rank, warp.cta, dst.name, dst.index[0]] = (pc, tuple(content))
        self._arrive(warp, *barrier)

    def _advance_store(self, i: int, pc: int) -> None:
        warp = self.recording.warps[i]
        _, src, dst = warp.ops[pc]
        (store,) = [store for store in self.stores[i] if store[0] == pc]
        if store[1] == 0:
            content = self.smem.get((warp.rank, warp.cta, src.name, src.index[0]))
            slot, rows, columns = dst.index
            if content is None or [cell for cell, _ in content[1]] != _cells(rows, columns, self.recording):
                raise Violation(f"{warp.role} of rank {warp.rank} sends from a slot that holds other data: {content}")
            store[1:] = [1, content[1]]
            return
        self.stores[i].remove(store)
        slot = dst.index[0]
        for cell, shard in store[2]:
            if (dst.rank, slot, cell) in self.scratch:
                raise Violation(f"{cell} of slot {slot} of rank {dst.rank} is written twice")
            if shard != ring.source_shard(dst.rank, slot + 1, self.recording.num_ranks):
                raise Violation(f"shard {shard} lands in slot {slot} of rank {dst.rank}")
            self.scratch[dst.rank, slot, cell] = shard

    def check_end(self) -> None:
        recording = self.recording
        num_cells = len(_cells((0, recording.m_shard), (0, recording.k), recording))
        if len(self.scratch) != recording.num_ranks * (recording.num_ranks - 1) * num_cells:
            raise Violation("something was never sent")
        outs = {(rank, shard) for rank, shard, _, _ in self.out}
        if outs != set(itertools.product(range(recording.num_ranks), repeat=2)):
            raise Violation("some output was never stored")


def explore_randomly(recording: Recording, rng, *, slow: float = 0.0, watch=lambda warp, op: None) -> None:
    """One random interleaving to its end.

    ``slow``: share of warps that are rarely scheduled. ``watch`` is told who executes which operation.
    """
    machine = recording.start()
    lazy = {i for i in range(len(recording.warps)) if rng.random() < slow}
    lazy_copies = rng.random() < 0.5
    while not machine.done():
        choices = machine.choices()
        if not choices:
            raise Deadlock(describe(machine))
        eager = [
            choice
            for choice in choices
            if (choice[0] == "op" and choice[1] not in lazy) or (choice[0] != "op" and not lazy_copies)
        ]
        choice = rng.choice(eager if eager and rng.random() < 0.99 else choices)
        if choice[0] == "op":
            warp = recording.warps[choice[1]]
            watch(warp, warp.ops[machine.pcs[choice[1]]])
        machine.take(choice)
    machine.check_end()


def victims(recording: Recording) -> dict[str, Any]:
    """By name: which choices a schedule puts off for as long as anything else can happen."""
    ops = [warp.ops for warp in recording.warps]

    def is_stage(stage):
        return lambda machine, choice: (
            choice[0] == "store" and any(store[:2] == [choice[2], stage] for store in machine.stores[choice[1]])
        )

    found = {
        "copies leaving shared memory": is_stage(0),
        "copies landing": is_stage(1),
        "loads": lambda machine, choice: choice[0] == "load",
        "signals": lambda machine, choice: choice[0] == "op" and ops[choice[1]][machine.pcs[choice[1]]][0] == "signal",
    }
    for rank in range(recording.num_ranks):
        found[f"rank {rank}"] = lambda machine, choice, rank=rank: recording.warps[choice[1]].rank == rank
    for role in sorted({warp.role for warp in recording.warps}):
        found[role] = lambda machine, choice, role=role: choice[0] == "op" and recording.warps[choice[1]].role == role
    return found


def explore_delaying(recording: Recording, rng, victim) -> None:
    """One interleaving to its end, random but for the victim's choices: those are taken where nothing else is left."""
    machine = recording.start()
    while not machine.done():
        choices = machine.choices()
        if not choices:
            raise Deadlock(describe(machine))
        others = [choice for choice in choices if not victim(machine, choice)]
        choice = rng.choice(others or choices)
        if not others:
            # Somebody waits for this warp's copies, but as likely as not for all but the newest.
            choice = min(other for other in choices if other[:2] == choice[:2])
        machine.take(choice)
    machine.check_end()


def explore_orders_of_arrival(recording: Recording, *, limit: int) -> int:
    """Every order in which copies can complete and signals become visible; returns the number of states.

    Warps go on as soon as they may: an operation that only enables others loses no order by being early. What a slow
    warp could do wrong is left to the random schedules.
    """
    start = _run_warps(recording.start())
    seen, todo = {start.key()}, [start]
    while todo:
        machine = todo.pop()
        choices = machine.choices()
        if not choices:
            if not machine.done():
                raise Deadlock(describe(machine))
            machine.check_end()
        for choice in choices:
            after = machine.copy()
            after.take(choice)
            _run_warps(after)
            if (key := after.key()) not in seen:
                seen.add(key)
                todo.append(after)
        assert len(seen) <= limit, "more states than expected"
    return len(seen)


def _run_warps(machine: Machine) -> Machine:
    """Take all operations but signals, and the loads of rhs, whose content nobody tracks, until there are none left."""
    warps = machine.recording.warps

    def is_early(choice: tuple) -> bool:
        kind, i = choice[:2]
        if kind == "op":
            return warps[i].ops[machine.pcs[i]][0] != "signal"
        return kind == "load" and warps[i].ops[choice[2]][1].name == "rhs"

    while early := [choice for choice in machine.choices() if is_early(choice)]:
        for choice in early:
            machine.take(choice)
    return machine


def describe(machine: Machine) -> str:
    stuck = [
        f"rank {warp.rank} CTA {warp.cta} {warp.role}: {warp.ops[pc]}"
        for pc, warp in zip(machine.pcs, machine.recording.warps, strict=True)
        if pc < len(warp.ops)
    ]
    return "; ".join(stuck)
