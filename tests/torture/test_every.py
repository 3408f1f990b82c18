"""`make torture TORTURE="--every run"` leaves out no change."""

import pytest
from each import each
from torture.cage import Ended, Fault
from torture.every import WAYS, each_change, each_change_of

CALLS = ["mkdir", "unlink", "write", "rename", "write", "unlink"]
ROOM = {"mkdir", "write"}
KILLS = 4  # the change at which the command of `Stage` dies without a message, which reports no failure


class Stage:
    """A command of six changes, and of one more if the first fails. A failure at `wrong` is reported."""

    def __init__(self, wrong: int = 0) -> None:
        self.wrong = wrong

    def clean(self, name: str) -> Ended:
        return Ended(0, False, 0.0, "", "", len(CALLS))

    def ended(self, name: str, fault: Fault) -> Ended:
        calls = [*CALLS, "write"] if fault.at == 1 else CALLS
        able = [at for at, call in enumerate(calls, 1) if call in ROOM or fault.kind != "ENOSPC"]
        at = next((at for at in able if at >= fault.at), 0)
        if at == KILLS:
            return Ended(-9, False, 0.0, "", "")
        return Ended(0, False, 0.0, "", "", len(calls), calls[at - 1] if at else "", at)

    def complaints(self, name: str, ended: Ended) -> list[str]:
        return ["it is lost"] if self.wrong and ended.failed_at == self.wrong else []


@each("kind, failed", [("EIO", [1, 2, 3, 0, 5, 6]), ("EINTR", [1, 2, 3, 0, 5, 6]), ("ENOSPC", [1, 3, 5])])
def test_each_change_fails_that_can(kind: str, failed: list[int]) -> None:
    assert [ended.failed_at for ended, _ in each_change(Stage(), "run", kind, False)] == failed  # type: ignore[arg-type]


def test_faults_are_reported_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert each_change_of(Stage(wrong=5), ["run"]) == len(WAYS)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "every, run: ENOSPC at change 4 and from then on (write): it is lost" in said
    assert "(mkdir 1, unlink 2, untold 1, write 2); 1 found" in said
