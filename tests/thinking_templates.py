"""Stand-ins for chat templates of thinking families: how each is switched, and what it makes of earlier thoughts."""

from pathlib import Path

from scripted_models import TEMPLATE, Script, scripted_model

# The mode is in the system message, even in a user's own one, and earlier answers stay as they were.
SMOLLM3 = """{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- if enable_thinking -%}
  {%- set reasoning_mode = "/think" -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- elif "/think" in system_message -%}
    {%- set reasoning_mode = "/think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "Today Date: " ~ strftime_now("%d %B %Y") ~ "\\nReasoning Mode: " + reasoning_mode + "\\n\\n" -}}
{%- if custom_instructions -%}
  {{- custom_instructions + "\\n\\n" -}}
{%- elif reasoning_mode == "/think" -%}
  {{- "First think, in the form: <think> Thought section </think> Solution section.\\n\\n" -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
  {%- if message.role == "user" -%}
    {{ "<|im_start|>user\\n" + message.content + "<|im_end|>\\n" }}
  {%- elif message.role == "assistant" -%}
    {%- if reasoning_mode == "/think" -%}
      {{ "<|im_start|>assistant\\n" + message.content.lstrip("\\n") + "<|im_end|>\\n" }}
    {%- else -%}
      {{ "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" + message.content.lstrip("\\n") + "<|im_end|>\\n" }}
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ "<|im_start|>assistant\\n" if reasoning_mode == "/think" else "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" }}
{%- endif -%}
"""

# The same template, switched only by words in the system message.
WORDS = SMOLLM3[SMOLLM3.index('{{- "<|im_start|>system') :].replace(
    '{{- "<|im_start|>system', '{%- set reasoning_mode = "/think" -%}\n{{- "<|im_start|>system', 1
)

# Its own system message switches thinking on, so a user's system message leaves no place for it; off by default.
GRANITE = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Today's Date: " + strftime_now('%B %d, %Y') + ". You are an assistant." %}
    {%- if thinking %}
        {%- set system_message = system_message + " Write your thoughts between <think></think> and write your response between <response></response> for each user query." %}
    {%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}
{%- endif %}
"""

# It always thinks: the prompt itself ends in the mark.
R1 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% else %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)

# It asks for the thoughts before all earlier answers.
KEEPS = (
    "{% for message in messages %}<{{ message.role }}>{% if message.reasoning_content %}<think>{{ message.reasoning_content }}"
    "</think>{% endif %}{{ message.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


_PIECES = [b"<thi", b"nk>\n", b"so it", b" is.", b"\n</th", b"ink>\n", b"\n", b"Yes", b"."]
_CLOSED = (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)


def switched_model(path: Path) -> Script:
    """Return a model as Qwen3: it thinks `so it is.` before `Yes.`, unless a closed pair of marks comes first."""
    yes = 260 + _PIECES.index(b"Yes")
    return scripted_model(path, _PIECES, follows={ord("\n"): yes}, template=TEMPLATE + _CLOSED)
