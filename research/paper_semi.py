"""What the paper of semi-autoregressive drafting finds (table 2, figures 4 and 5, §4.2), tried on a model.

    python research/paper_semi.py --data FILE… --prompts data/eval --work build/semi --out docs/figures/paper-semi.md

Everything is trained, all alike. What was trained or measured is kept in `--work`, so a run that was stopped goes on.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from experiment import Variant, about, begun, compared, parser, parts

TEXT = ("--labels", "text")
GROUPS = {
    "Table 2: beside heads that foresee each depth by itself": {
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


def main(given: Sequence[str] | None = None) -> None:
    asked = begun(parser(__doc__), given)
    with ExitStack() as at_the_end:
        made = {title: partial(compared, group, asked, at_the_end) for title, group in GROUPS.items()}
        head = f"# Semi-autoregressive drafting, on `{asked.model}`\n\n{about(asked, 'paper_semi.py')}"
        parts(asked, head, made)


if __name__ == "__main__":
    main()
