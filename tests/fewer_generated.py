"""Whatever process imports it generates little at the end of a training: a cage, from which commands are forked."""

from localspec.training import generated

generated.TOKENS, generated.ELSEWHERE = 16, 4
