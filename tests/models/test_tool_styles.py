"""How a model writes tool calls, told from its template."""

from __future__ import annotations

import pytest

from edgewise.models.templates import ChatTemplate
from edgewise.models.templates.tool_styles import StyleName, ToolSupport, tool_support

TEMPLATES: dict[StyleName, str] = {
    "hermes": "{% if tools %}Use <tool_call> tags.{% endif %}{% for call in message.tool_calls %}{{ call }}{% endfor %}",
    "llama": "{% if tools %}Environment: ipython. Answer as {'name': .., \"parameters\": ..}{% endif %}",
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ message.tool_calls }}",
    "mistral_args": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ name }}[ARGS]{{ message.tool_calls }}",
    "phi": "{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}",
    "glm": "{% if tools %}{{ tools }}{% endif %}<|observation|>{{ content }}",
    "generic": "{% for message in messages %}{{ message.content }}{% endfor %}",
}


@pytest.mark.parametrize("style", TEMPLATES)
def test_each_style_is_known_by_its_sign(style: StyleName) -> None:
    assert tool_support({"default": TEMPLATES[style]}).style == style


@pytest.mark.parametrize("sign", ["<function=", "<arg_key>"])
def test_calls_that_are_no_json_are_not_taken_for_it(sign: str) -> None:
    assert tool_support({"default": TEMPLATES["hermes"] + sign}).style == "generic"


def test_the_template_that_is_rendered_with_tools_counts() -> None:
    support = tool_support({"default": TEMPLATES["generic"], "tool_use": TEMPLATES["hermes"]})
    assert support == ToolSupport("hermes", writes_calls=True)
    assert tool_support({"default": "{{ raise_exception('System role not supported') }}"}).refuses_system


def test_a_template_that_has_another_name_for_tools_gets_them_under_it() -> None:
    template = ChatTemplate(
        {"default": "{% if xml_tools %}{{ xml_tools | length }} tools{% else %}none{% endif %}"}, {}
    )
    try:
        assert template.render([], tools=[{"type": "function"}]) == "1 tools"
        assert template.render([]) == "none"
    finally:
        template.close()
