"""Rounds hold every pair inside a host exactly once, neighbours between hosts, and no member twice."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from jobs.health.pairs import rounds

sizes = st.lists(st.integers(1, 8), min_size=1, max_size=8)


def groups_of(sizes):
    ends = list(itertools.accumulate(sizes))
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


@given(sizes)
def test_rounds(sizes):
    groups = groups_of(sizes)
    found = rounds(groups)
    for pairs in found:
        ranks = [rank for pair in pairs for rank in pair]
        assert ranks, "no round is empty"
        assert len(ranks) == len(set(ranks))
    pairs = sorted(tuple(sorted(pair)) for one in found for pair in one)
    inside = [pair for group in groups for pair in itertools.combinations(group, 2)]
    between = [(here[-1], there[0]) for here, there in itertools.pairwise(groups)]
    if len(groups) > 2:
        between.append((groups[-1][-1], groups[0][0]))
    assert pairs == sorted(tuple(sorted(pair)) for pair in [*inside, *between])


@given(sizes)
def test_as_few_rounds_as_possible(sizes):
    largest = max(sizes)
    inside = 0 if largest == 1 else largest - 1 + largest % 2
    between = 0 if len(sizes) == 1 else 1 if len(sizes) == 2 else 2 + len(sizes) % 2
    assert len(rounds(groups_of(sizes))) == inside + between
