"""Whatever JSON a client sends, it gets an answer or OpenAI's error object, and the next one is served."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Running

NAMES = (
    "model messages prompt input system stream stream_options max_tokens max_completion_tokens max_output_tokens n "
    "seed stop prediction temperature top_p top_k min_p logit_bias presence_penalty frequency_penalty text reasoning "
    "repetition_penalty tools tool_choice response_format thinking include logprobs top_logprobs echo instructions "
    "chat_template_kwargs output_config context_management stop_sequences modalities reasoning_effort whatever \ud800"
)
FIELDS = NAMES.split()
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.just(10**400),
    st.floats(),
    st.sampled_from(["", "x", "auto", "\ud800", "required"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["type", "function", "name", "role", "content", "text", "schema", "5"]), inner, max_size=3
        ),
    ),
    max_leaves=5,
)
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(sorted(BASES)), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=2))
def test_any_body_has_its_answer(server: Running, path: str, more: dict[str, Any]) -> None:
    asked = {**BASES[path], **more}
    for name in [name for name in asked if name.startswith("max_")]:  # no answer up to the end of the context
        if asked[name] is None or (isinstance(asked[name], int) and asked[name] > 40):
            asked[name] = 2
    response = server.http.post(path, content=json.dumps(asked).encode())
    assert response.status_code in (200, 400, 404, 413), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
