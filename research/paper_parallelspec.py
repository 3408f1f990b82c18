"""Test the findings of ParallelSpec's paper (tables 1 and 2, figure 4) on published models.

    python research/paper_parallelspec.py -m smollm2-135m --data FILE… --prompts data/eval --out build/parallelspec > page.md

All variants are trained with the same data and steps.
"""

from collections.abc import Sequence
from functools import partial

from experiment import Bench, Variant, compared, page, parser

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


def sections(bench: Bench) -> dict[str, partial[str]]:
    """Return the parts of the page by title, as functions that make them."""
    return {title: partial(compared, group, bench) for title, group in GROUPS.items()}


def main(argv: Sequence[str] | None = None) -> None:
    page(parser(__doc__), "ParallelSpec's figures", "paper_parallelspec.py", sections, argv)


if __name__ == "__main__":
    main()
