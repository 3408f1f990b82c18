"""The supported families, one row each."""

from collections.abc import Mapping

from localspec.families.family import Family
from localspec.families.gemma3 import GEMMA3
from localspec.families.gemma4 import GEMMA4, UNIFIED
from localspec.families.glm4 import GLM4
from localspec.families.gpt_oss import GPT_OSS
from localspec.families.granite import GRANITE, GRANITE_4
from localspec.families.llama import LLAMA
from localspec.families.ministral3 import MINISTRAL3
from localspec.families.mistral import MISTRAL
from localspec.families.phi3 import PHI3
from localspec.families.qwen2 import QWEN2
from localspec.families.qwen3 import QWEN3
from localspec.families.qwen3_moe import QWEN3_MOE
from localspec.families.qwen35 import QWEN35
from localspec.families.qwen35_moe import QWEN35_MOE
from localspec.families.smollm3 import SMOLLM3

_ROWS = (
    LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, GEMMA3, SMOLLM3, GRANITE, GRANITE_4, MINISTRAL3, GEMMA4, QWEN35, GLM4, UNIFIED,
    QWEN3_MOE, GPT_OSS, QWEN35_MOE,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {one.model_type: one for one in _ROWS}
_IN_GGUF = [(one.gguf.architecture, one) for one in _ROWS if one.gguf]
# By `general.architecture` of a GGUF file. If several families have the same one, the first row counts, unless its
# `config` names another.
OF_GGUF: Mapping[str, Family] = dict(_IN_GGUF) | dict(reversed(_IN_GGUF))
