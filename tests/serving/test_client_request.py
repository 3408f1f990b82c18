"""Requests are read completely: what cannot be done is refused by name, and no field is ignored."""

from typing import Any

import pytest
from each import each
from golden import matching, wording

from localspec.serving.client_request import RequestRefused, chat_request, text_request

HI = [{"role": "user", "content": "Hi"}]


def test_all_that_is_served():
    asked = chat_request(
        {
            "model": "demo", "messages": [{"role": "developer", "content": "Be brief."}, *HI], "temperature": 0.5,
            "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "max_completion_tokens": 9, "stop": ["a", "b"],
            "stream": True, "stream_options": {"include_usage": True}, "user": "me", "reasoning_effort": "none",
        }
    )  # fmt: skip
    assert asked.messages == [{"role": "system", "content": "Be brief."}, *HI]
    assert asked.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7}
    assert (asked.model, asked.max_tokens, asked.stop, asked.client) == ("demo", 9, ("a", "b"), "me")
    assert asked.stream and asked.usage_in_stream and asked.think is False
    plain = chat_request({"messages": HI})
    assert (plain.model, plain.sampling, plain.max_tokens, plain.stop, plain.think) == (None, {}, None, (), None)
    assert not plain.stream and not plain.usage_in_stream and plain.whole
    for value, whole in (("auto", False), ("disabled", True)):
        assert chat_request({"messages": HI, "truncation": value}).whole is whole
    assert text_request({"prompt": ["Once"], "stop": "."}).text == "Once"


def test_what_clients_send_and_means_nothing_is_no_mistake():
    nothing = {
        "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "store": False, "metadata": {},
        "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "logprobs": False, "top_logprobs": 0,
        "response_format": {"type": "text"}, "service_tier": "auto", "temperature": None, "stop": None,
    }  # fmt: skip
    assert chat_request({"messages": HI, **nothing}) == chat_request({"messages": HI})


def test_parts_of_text_belong_together_and_thoughts_come_along():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = {"role": "assistant", "content": "B", "reasoning_content": "hm", "refusal": None}
    asked = chat_request({"messages": [{"role": "user", "content": parts}, said, *HI]})
    assert asked.messages == [
        {"role": "user", "content": "ab"}, {"role": "assistant", "content": "B", "reasoning_content": "hm"}, *HI
    ]  # fmt: skip


@each(
    "more, field, words",
    [
        ({"n": 2}, "n", "not supported"),
        ({"n": True}, "n", "not supported"),
        ({"truncation": "last"}, "truncation", wording("must_auto_disabled")),
        ({"tools": [{"type": "function"}]}, "tools", "cannot call tools"),
        ({"tool_choice": "required"}, "tool_choice", "cannot call tools"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format",
            wording("say_in_the_prompt"),
        ),
        ({"logprobs": True}, "logprobs", "not reported"),
        ({"logit_bias": {"5": 100}}, "logit_bias", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"store": True}, "store", "not saved"),
        ({"temprature": 1}, "temprature", "temperature"),
        ({"temperature": "1"}, "temperature", "a number"),
        ({"temperature": float("nan")}, "temperature", "a number"),
        ({"top_k": 1.5}, "top_k", "whole number"),
        ({"seed": -1}, "seed", "whole number"),
        ({"max_tokens": 0}, "max_tokens", "1 or more"),
        ({"max_tokens": True}, "max_tokens", wording("whole_number_1_more_true")),
        ({"max_tokens": [None, False]}, "max_tokens", "not [null, false]."),
        ({"temperature": None, "top_p": "1"}, "top_p", "not '1'."),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "contradict"),
        ({"stop": [""]}, "stop", wording("none_of_them_empty")),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "without 'stream'"),
        ({"stream": True, "stream_options": {"other": True}}, "other", wording("there_is_no_field_other")),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "minimal"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "reasoning_effort", "contra"),
        ({"model": 5}, "model", "a text"),
        ({"messages": []}, "messages", "list of 1"),
        ({"messages": None}, "messages", "missing"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "nothing to answer"),
        ({"messages": [{"role": "tool", "content": "x"}, *HI]}, "messages[0]", "tool"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "missing"),
        ({"messages": ["Hi"]}, "messages[0]", "an object"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]", "pictures"),
        ({"messages": [{"role": "user", "content": "x", "name": "Tim"}]}, "name", wording("say_it_in_content")),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(more: dict[str, Any], field: str, words: str):
    with pytest.raises(RequestRefused, match=".") as refused:
        chat_request({"messages": HI, **more})
    assert refused.value.field == field and words in str(refused.value)


@each(
    "more, hint",
    [
        ({"repeat_penalty": 1.1}, ""),
        ({"options": {}}, ""),
        ({"stream_option": {}}, wording("did_you_mean_stream")),
        ({"stream": True, "stream_option": {}}, wording("did_you_mean_stream_options")),
        ({"max_token": 5}, wording("did_you_mean_max_tokens")),
    ],
)
def test_no_field_is_suggested_that_would_be_refused_as_well(more: dict[str, Any], hint: str):
    with pytest.raises(RequestRefused) as refused:
        chat_request({"messages": HI, **more})
    assert str(refused.value) == wording("there_field_here_leave_out", value=[*more][-1], hint=hint)


@each(
    "more",
    [
        {"suffix": "x"},
        {"echo": True},
        {"best_of": 2},
        {"logprobs": 1},
        {"prompt": [1, 2]},
        {"prompt": ["a", "b"]},
        {"prompt": ""},
        {"prompt": None},
    ],
)
def test_so_is_what_a_text_cannot_have(more: dict[str, Any]):
    with pytest.raises(RequestRefused):
        text_request({"prompt": "Once", **more})


def test_what_asks_for_nothing_is_taken():
    """Clients send back fields that they received, and name themselves."""
    got = {"role": "assistant", "content": "B", "annotations": [], "audio": None, "function_call": None}
    later = {"role": "system", "content": "x"}
    asked = chat_request(
        {
            "messages": [*HI, {**got, "tool_calls": None, "refusal": None}, later, *HI], "prompt_cache_key": "a",
            "safety_identifier": "", "prompt_cache_retention": "24h", "verbosity": "medium",
            "web_search_options": None, "whatever": None,
        }
    )  # fmt: skip
    assert asked.messages == [*HI, {"role": "assistant", "content": "B"}, later, *HI]
    for field, value in (("prompt_cache_key", 3), ("verbosity", "low"), ("whatever", 0)):
        with pytest.raises(RequestRefused, match=field) as refused:
            chat_request({"messages": HI, field: value})
        assert refused.value.field == field
    with pytest.raises(RequestRefused, match="annotations"):
        chat_request({"messages": [{**got, "annotations": [{"type": "url_citation"}]}, *HI]})


@each("body", [None, [], "x", 5])
def test_a_body_that_is_no_object(body: object):
    with pytest.raises(RequestRefused, match=matching("json_object")):
        chat_request(body)
