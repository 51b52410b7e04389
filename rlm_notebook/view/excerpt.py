"""Which children of a large node a saved view or a terminal shows: the ends, and every error."""

from __future__ import annotations

from collections.abc import Sequence

from rlm_notebook.trace.tree import Span

NOT_GOOD = ("error", "null", "interrupted")


def excerpt(children: Sequence[Span], head: int, tail: int, errors: int) -> list[Span | int]:
    """The children to show, in order, and in place of those left out their number.

    Parameters
    ----------
    head, tail
        How many are shown from the beginning and from the end.
    errors
        How many failed ones are shown besides, at most.
    """
    if len(children) <= head + tail:
        return list(children)
    keep = set(range(head)) | set(range(len(children) - tail, len(children)))
    failed = [i for i, child in enumerate(children) if child.state in NOT_GOOD and i not in keep]
    keep.update(failed[:errors])
    shown: list[Span | int] = []
    for index, child in enumerate(children):
        if index in keep:
            shown.append(child)
        elif shown and isinstance(shown[-1], int):
            shown[-1] += 1
        else:
            shown.append(1)
    return shown
