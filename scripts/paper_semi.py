"""What the paper of semi-autoregressive drafting finds (figures 4 and 5), tried on a model: docs/paper-semi.md.

    python scripts/paper_semi.py --data FILE… --prompts data/eval --work build/semi --out docs/paper-semi.md

Everything is trained, all alike. What was trained or measured is kept in `--work`, so a run that was stopped goes on.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from experiment import Variant, about, begun, compared, parser, parts

TEXT = ("--labels", "text")
GROUPS = {
    "Figure 4: the model of recent tokens": {
        "none": Variant("semi", {"recent": "none"}),
        "simplified transformer": Variant("semi"),
        "LSTM": Variant("semi", {"recent": "lstm"}),
    },
    "Figure 5: joint against separate": {
        "separate": Variant("semi", flags=TEXT),
        "joint": Variant("semi", {"joint": True}, TEXT),
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
