"""Rounds of pairs that exchange data; pairs of a round share no member, so each has its links to itself."""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]


def rounds(groups: Sequence[Sequence[int]]) -> list[list[Pair]]:
    """All pairs inside each group, groups in parallel; then the last of each group with the first of the next.

    Args:
      groups: ranks by host, in ring order.
    """
    inside = [_tournament(group) for group in groups]
    longest = max((len(own) for own in inside), default=0)
    merged = [[pair for own in inside if i < len(own) for pair in own[i]] for i in range(longest)]
    return merged + _between(groups)


def _tournament(players: Sequence[int]) -> list[list[Pair]]:
    """All pairs in as few rounds as possible, by the circle method: one player stays, the others rotate."""
    seats: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    turns = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        turns.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in turns if pairs]


def _between(groups: Sequence[Sequence[int]]) -> list[list[Pair]]:
    """Neighbours in the ring of groups: even pairs, odd pairs, and the closing pair of an odd ring."""
    edges = [(here[-1], there[0]) for here, there in zip(groups, [*groups[1:], *groups[:1]], strict=True)]
    if len(groups) < 3:
        edges = edges[: len(groups) - 1]
    closing = [edges.pop()] if len(edges) % 2 and len(edges) > 1 else []
    return [pairs for pairs in (edges[::2], edges[1::2], closing) if pairs]
