"""Statistics of replies without an engine."""

from collections.abc import Mapping, Sequence

from localspec.events import Memory, Statistics


def said(
    ids: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    seconds: float = 1.0,
    steps: int = 4,
    draft: float = 0.0,
    verify: float = 0.0,
    beside: float = 0.0,
    by_depth: Sequence[float] = (),
    drafted: int = 0,
    memory: Memory | None = None,
    off: str | None = None,
    rows: Mapping[int, int] | None = None,
) -> Statistics:
    """Return a reply of these ids that took these seconds and steps after its first token."""
    counted = len(ids) - 1
    return Statistics(
        token_ids=tuple(ids),
        prompt_tokens=10,
        reused_tokens=0,
        prefill_seconds=0.5,
        first_token_seconds=0.5,
        decode_seconds=seconds,
        draft_seconds=draft,
        verify_seconds=verify,
        step_seconds=draft + verify + beside,
        tokens_per_second=counted / seconds if counted else 0.0,
        steps=steps,
        acceptance_length=counted / steps if steps else 0.0,
        acceptance_by_depth=tuple(by_depth),
        drafted=drafted,
        accepted=counted - steps,
        sources={"target": len(ids)},
        off_reason=off,
        memory=memory or Memory(target=80, drafter=0, cache=20, peak=1000),
        rows=rows or {},
    )
