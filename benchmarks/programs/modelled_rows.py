"""The JAX tutorial's rows beside the project's: measured where there were GPUs, modelled for more ranks.

    PYTHONPATH=. python benchmarks/programs/modelled_rows.py [--write]

Prints a Markdown table of times in microseconds. --write also puts it in place of the one in docs/kernel.md. A test
compares the two, so run it again whenever the models change.
"""

from __future__ import annotations

import argparse
import pathlib

from cmkernel import cost, performance_model

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "kernel.md"

# The JAX tutorial's problem and table (https://docs.jax.dev/en/latest/pallas/gpu/collective_matmul.html): kernel, bound
# and reference on H100s, in microseconds. Its bound is D times the 43 us that it measured for
# one shard's multiply, plus 6 us for each exchange.
PROBLEM = {"m_shard": 1024, "k": 4096, "n_shard": 4096}
ARTICLE_US = {2: (102, 92, 147), 4: (212, 190, 290), 8: (436, 386, 565)}
# Kernel time on 2x H200, 2026-11-30.
MEASURED_US = {2: 87.7}
NUM_SMS = 132
DEVICE_KIND, DTYPE = "NVIDIA H200", "float16"

HEADINGS = (
    "D",
    "tutorial's kernel, measured on H100",
    "its bound, from a measured multiply",
    "its all-gather then dot, measured",
    "`mosaic_gpu`, measured on H200",
    "`mosaic_gpu`, MODELLED for H200",
    "roofline of the ring, MODELLED",
    "roofline of all-gather then dot, MODELLED",
    "bound by the tutorial's formula at peak, MODELLED",
)


def row(num_ranks: int) -> tuple[str, ...]:
    sizes = {**PROBLEM, "num_ranks": num_ranks}
    config = performance_model.heuristic_config(**sizes, num_sms=NUM_SMS)
    modelled_us = performance_model.modelled_us(config, **sizes, num_sms=NUM_SMS)
    device = cost.device_model(DEVICE_KIND)
    assert device is not None
    roofline = cost.expected_time(device, **sizes, dtype=DTYPE)
    modelled = modelled_us, roofline.overlapped_us, roofline.serial_us, roofline.article_bound_us
    measured_us = MEASURED_US.get(num_ranks)
    return (
        str(num_ranks),
        *map(str, ARTICLE_US[num_ranks]),
        "-" if measured_us is None else f"{measured_us:.1f}",
        *(f"{time_us:.1f}" for time_us in modelled),
    )


def table() -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(row, ARTICLE_US)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def with_table(text: str) -> str:
    """``text`` with the present table in the place of the one that has these headings."""
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {HEADINGS[0]} | {HEADINGS[1]} |"))
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    return "".join([*lines[:start], table(), *lines[end:]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="also put the table into docs/kernel.md")
    if parser.parse_args().write:
        DOCS.write_text(with_table(DOCS.read_text()))
    print(table(), end="")


if __name__ == "__main__":
    main()
