"""A scripted reply with drafts, for tests of the views that show them."""

from tui.scripted_engine import ScriptedEngine

from localspec.events import Draft, Event, Text


def drafted_reply(engine: ScriptedEngine) -> list[Event]:
    """Return nine tokens in four steps: "Snow falls on the hill: é\n" and a hostile one, with refused tokens below.

    Snow │ falls on the      │ hill  │ : [half é │ half é] │ ␛
         │         in town   │       │                     │
         │            a roof │       │                     │
    """
    snow, falls, on, the, hill, colon, half, rest, evil = engine.ids(
        "Snow", " falls", " on", " the", " hill", ":", b" \xc3", b"\xa9\n", "\x1b]0;evil\x07"
    )
    inn, town, a, roof, bad = engine.ids(" in", " town", " a", " roof", "\x1b[2J")
    first = Draft(
        [snow, falls, on, a, roof, inn, town],
        [-1, 0, 1, 2, 3, 1, 5],
        ["", "phrases", "prompt", "phrases", "phrases", "medusa", "medusa"],
        None,
        [0, 1, 2],
    )
    alone = Draft((the,), (-1,), None, None, (0,))
    both = Draft((hill, colon, half, bad), (-1, 0, 1, 2), ("", "medusa+phrases", "medusa", "medusa"), None, (0, 1, 2))
    last = Draft((rest, a), (-1, 0), ("", "prompt"), None, (0,))
    return [
        Text("Snow", (snow,), ("target",), 0.1, 0),
        Text(" falls on the", (falls, on, the), ("phrases", "prompt", "target"), 0.2, 1, (first,)),
        Text(" hill", (hill,), ("target",), 0.3, 2, (alone,)),
        Text(": é\n", (colon, half, rest), ("medusa+phrases", "medusa", "target"), 0.4, 3, (both,)),
        Text("␛]0;evil␇", (evil,), ("target",), 0.5, 4, (last,)),
    ]
