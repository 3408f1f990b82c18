"""For a cage, whose trainings then generate one reply of each kind at their end: as the fixture `one_reply_of_each_kind`."""

from localspec.training import verdict

verdict.SECONDS = 0.0
