"""Stand-ins for the tokenizers and chat templates of each family, as their repositories hold them."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3, LLAMA3_BOS, MISTRAL3, CHATML = "llama3", "llama3-bos", "mistral3", "qwen2"
QWEN3, PHI3, METASPACE, GEMMA3 = "qwen3", "phi3", "llama2", "gemma3"

_LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEXTS = [
    "the cat sat on the mat and the dog sat on the log", "one two three four 12345", "über allen Gipfeln ist Ruh",
    "Hello world! Don't you'll we're def return", "漢字かな交じり文", "<b>x</b> \n\n\t  end",
] * 10  # fmt: skip

_LLAMA3_TEMPLATE = """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

_MISTRAL_TEMPLATE = """{%- set today = strftime_now("%Y-%m-%d") %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Today is " + today + "." %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] " + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

_CHATML_TEMPLATE = """{%- if tools %}
    {{- 'tools' }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3_TEMPLATE = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

_PHI3_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

_LLAMA2_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'] | trim + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)

# As Gemma 3's: no system role, a system message begins the first turn; the assistant is called model.
_GEMMA3_TEMPLATE = (
    "{{ bos_token }}{% set before = messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' %}"
    "{% for message in (messages[1:] if before else messages) %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Turns must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{{ (before if loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

# Expressions that a template may use or attempt, one in each template.
TEMPLATES = [
    "{{ messages | tojson }}", "{{ messages | tojson(indent=2) }}", "{{ {'é': '<&>'} | tojson(sort_keys=true) }}",
    "{{ strftime_now('%Y-%m-%d') }}", "{{ raise_exception('no') }}", "{{ undefined_name }}|{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "  {% if true %}\n  x\n  {% endif %}\n y", "a\n{%- if true -%}\n b \n{%- endif %}", "{# comment #}x\n",
    "{% set n = namespace(a=1, self=2) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ n.self }}", "{% set n = namespace(_a=1) %}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}", "{{ dict(a=1) }}{{ dict.fromkeys(['x']) }}", "{{ dict.__class__ }}",
    "{{ messages.__class__.__mro__ }}", "{{ ''.__class__ }}", "{% set _ = messages.append(1) %}{{ messages | length }}",
    "{{ messages[0].pop('role') }}", "{{ tools is none }}{{ documents }}{{ add_generation_prompt }}", "{{ 1/0 }}", "{{ messages + 1 }}", "{% if %}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}{% endfor %}",
    "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].content) }}", "{{ messages[0].content | e }}", "{{ range(3) | list }}", "{{ range(10000000) }}",
    "{% include 'x' %}", "{{ cycler }}", "{{ messages | map(attribute='role') | join(',') }}", "{{ 'a' ~ 1 ~ none }}", "{{ messages[-1]['content'][::-1] }}",
    "{{ joiner }}", "{{ '%s' | format('x') }}", "{{ '{0.__class__}'.format(1) }}", "\n\nx\n\n",
]  # fmt: skip


def _byte_level(split: str | None, special: list[str], nfc: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=not nfc))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def _metaspace(special: list[str], legacy: bool) -> Tokenizer:
    """Return a tokenizer as Llama 2's and Phi 3's: sentencepiece with bytes; a normalizer or splitter marks spaces."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(_TEXTS, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    content = json.loads(trained.to_str())["model"]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *content["vocab"]]
    vocab = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(
        models.BPE(
            vocab, [tuple(merge) for merge in content["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ["<unk>", "<s>", "</s>", *special]])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer


def write_tokenizer(path: Path, name: str) -> Path:
    """Write tokenizer.json, its config, the template where the family keeps it, and a config.json of the family."""
    model, config, template = {"model_type": "llama"}, {}, None
    if name in (LLAMA3, LLAMA3_BOS):
        special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        tokenizer = _byte_level(_LLAMA3_SPLIT, special, nfc=False)
        bos = tokenizer.token_to_id("<|begin_of_text|>")
        if name == LLAMA3_BOS:
            template_processor = processors.TemplateProcessing(
                "<|begin_of_text|> $A", "<|begin_of_text|> $A $B", [("<|begin_of_text|>", bos)]
            )
            tokenizer.post_processor = processors.Sequence(
                [processors.ByteLevel(trim_offsets=False), template_processor]
            )
        config = {
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        model |= {"eos_token_id": [tokenizer.token_to_id("<|eot_id|>")]}
        config["chat_template"] = _LLAMA3_TEMPLATE
    elif name == MISTRAL3:
        special = ["[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
        tokenizer = _metaspace(special, legacy=False)
        config = {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "tokenizer_class": "LlamaTokenizer",
            "legacy": False,
        }
        config |= {"chat_template": _MISTRAL_TEMPLATE, "add_bos_token": True, "add_eos_token": False}
        model = {"model_type": "mistral", "eos_token_id": 2}
    elif name in (CHATML, QWEN3):
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokenizer = _byte_level(_QWEN_SPLIT, special, nfc=True)
        tokenizer.add_tokens(["<tool_call>", "<think>"])
        config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
        config |= {"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
        config["chat_template"] = _CHATML_TEMPLATE if name == CHATML else QWEN3_TEMPLATE
        model = {"model_type": name, "eos_token_id": tokenizer.token_to_id("<|im_end|>")}
    elif name == PHI3:
        special = ["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
        tokenizer = _metaspace(special, legacy=True)
        config = {"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": "<unk>"}
        config |= {"tokenizer_class": "LlamaTokenizer", "legacy": False}
        template = _PHI3_TEMPLATE
        model = {"model_type": "phi3", "eos_token_id": tokenizer.token_to_id("<|endoftext|>"), "pad_token_id": 0}
    elif name == GEMMA3:
        tokenizer = _metaspace(["<start_of_turn>", "<end_of_turn>"], legacy=True)
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _GEMMA3_TEMPLATE}
        model = {"model_type": "gemma3_text", "eos_token_id": [2, tokenizer.token_to_id("<end_of_turn>")]}
    else:
        tokenizer = _metaspace([], legacy=True)
        config = {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "tokenizer_class": "LlamaTokenizer",
            "legacy": False,
        }
        config["chat_template"] = _LLAMA2_TEMPLATE
        model |= {"eos_token_id": 2}
    added = json.loads(tokenizer.to_str())["added_tokens"]
    config["added_tokens_decoder"] = {str(token.pop("id")): token for token in added}
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps(model))
    if template:
        (path / "chat_template.jinja").write_text(template)
    return path
