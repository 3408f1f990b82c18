"""`each`: a test that goes through many values in one case, for checks that cost next to nothing."""

import inspect
import random
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test once for each value, as `parametrize` would, and name the value that fails.

    `names` are one or several arguments with commas between them. The random seed is set again for each value, and
    `tmp_path` is another directory. Other fixtures are shared by all values.
    """
    taken, values = [name.strip() for name in names.split(",")], list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def through_all(**fixtures: Any) -> None:
            path = fixtures.get("tmp_path")
            for number, value in enumerate(values):
                random.seed(0)
                if "torch" in sys.modules:
                    sys.modules["torch"].manual_seed(0)
                if path is not None:
                    fixtures["tmp_path"] = path / str(number)
                    fixtures["tmp_path"].mkdir()
                given = dict(zip(taken, value if len(taken) > 1 else (value,), strict=True))
                try:
                    test(**fixtures, **given)
                except BaseException as failure:
                    failure.add_note(f"with {names} = {value!r}")
                    raise

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in taken]
        through_all.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        through_all.values = [*values, *getattr(test, "values", ())]  # type: ignore[attr-defined]
        del through_all.__wrapped__  # type: ignore[attr-defined]  # pytest would look through it
        return through_all

    return decorate
