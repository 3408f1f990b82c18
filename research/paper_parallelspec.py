"""What ParallelSpec's paper finds (tables 1 and 2, figure 4), tried on a model: docs/figures/paper-parallelspec.md.

    python research/paper_parallelspec.py --data FILE… --prompts data/eval --work build/parallelspec \
        --out docs/figures/paper-parallelspec.md

Everything is trained, all alike. What was trained or measured is kept in `--work`, so a run that was stopped goes on.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from experiment import Variant, about, begun, compared, parser, parts

KIND = "parallelspec"
GROUPS = {
    "Table 1: against Medusa's heads": {
        "Medusa, five heads": Variant("medusa", {"heads": 5}),
        "ParallelSpec": Variant(KIND),
        "ParallelSpec, EAGLE-style": Variant(KIND, {"form": "eagle"}),
    },
    "Figure 4: size of the group": {
        f"{masks + 1} tokens": Variant(KIND, {"masks": masks} if masks != 4 else {}) for masks in (1, 2, 3, 4, 5)
    },
    "Table 2: labels": {
        "the text": Variant(KIND, flags=("--labels", "text")),
        "the target's own answers": Variant(KIND, flags=("--labels", "text"), distilled=True),
        "the target's distribution": Variant(KIND),
    },
    "Not in the paper: the token before a mask": {
        "without a correction": Variant(KIND, {"correction": 0}),
        "a correction of rank 64": Variant(KIND),
    },
    "Not in the paper: what the layer begins as": {
        "fresh": Variant(KIND, {"begin": "fresh"}),
        "the target's first": Variant(KIND, {"begin": "first"}),
        "the target's last": Variant(KIND),
    },
}


def main(given: Sequence[str] | None = None) -> None:
    asked = begun(parser(__doc__), given)
    with ExitStack() as at_the_end:
        made = {title: partial(compared, group, asked, at_the_end) for title, group in GROUPS.items()}
        parts(asked, f"# ParallelSpec's figures, on `{asked.model}`\n\n{about(asked, 'paper_parallelspec.py')}", made)


if __name__ == "__main__":
    main()
