"""Test the findings of the paper on semi-autoregressive drafting (table 2, figures 4 and 5, §4.2) on published models.

    python research/paper_semi.py -m smollm2-135m --data FILE… --prompts data/eval --out build/semi > page.md

All variants are trained with the same data and steps.
"""

from collections.abc import Sequence
from functools import partial

from experiment import Bench, Variant, compared, page, parser

TEXT = ("--labels", "text")
GROUPS = {
    "Table 2: against heads that predict each depth by itself": {
        "block (Medusa's heads)": Variant("medusa"),
        "semi": Variant("semi"),
    },
    "Figure 4: the model of recent tokens": {
        "none": Variant("semi", {"recent": "none"}),
        "simplified transformer": Variant("semi"),
        "LSTM": Variant("semi", {"recent": "lstm"}),
    },
    "Figure 5: joint against separate": {
        "separate": Variant("semi", flags=TEXT),
        "separate, the target first": Variant("semi", {"first": 0.5}, TEXT),
        "joint": Variant("semi", {"joint": True}, TEXT),
    },
    "Section 4.2: ranks": {
        "joint, r_p = 16": Variant("semi", {"joint": True}, TEXT),
        "joint, r_p = 64": Variant("semi", {"joint": True, "rank": 64}, TEXT),
        "joint, r_p = 16, r_q = 64": Variant("semi", {"joint": True, "draft_rank": 64}, TEXT),
        "joint, r_p = 16, without the head": Variant("semi", {"joint": True, "lm_head": False}, TEXT),
    },
}


def sections(bench: Bench) -> dict[str, partial[str]]:
    """Return the parts of the page by title, as functions that make them."""
    return {title: partial(compared, group, bench) for title, group in GROUPS.items()}


def main(argv: Sequence[str] | None = None) -> None:
    page(parser(__doc__), "Figures of semi-autoregressive drafting", "paper_semi.py", sections, argv)


if __name__ == "__main__":
    main()
