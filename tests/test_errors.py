from each import each

from localspec.errors import DoesNotFit, LocalspecError, NotAllowed, NotHere, UsageMistake


@each("kind, code", [(LocalspecError, 1), (UsageMistake, 2), (NotHere, 3), (DoesNotFit, 4), (NotAllowed, 5)])
def test_exit_codes(kind, code):
    error = kind("One sentence.")
    assert isinstance(error, LocalspecError)
    assert (error.exit_code, str(error)) == (code, "One sentence.")
