"""Chat templates render as transformers renders them, and none can hang or fill the service."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from edgewise.core.errors import BadModelFile, TemplateFailed
from edgewise.models.files import ModelFiles
from edgewise.models.templates import ChatTemplate, load_template
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.weights.write import write_gguf

TinyModelFactory = Callable[..., ModelFiles]
Messages = list[dict[str, Any]]

CHATML = """{%- if tools %}<|im_start|>system
{{ messages[0].content + '\\n' if messages[0].role == 'system' else '' }}Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}
  {%- if message.role in ['user', 'assistant'] or not tools %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""

LLAMA3 = """{{- bos_token }}{% set loop_messages = messages %}
{%- for message in loop_messages %}
{%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim %}
{{- content + '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
{#- dates -#}{{ date_string | default('no date') }}"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}
    {%- else %}{{- ' ' + message['content'] + eos_token}}{%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}{%- set role = 'model' -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor -%}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

FEATURES = """{%- macro field(name, value='-') -%}[{{ name }}={{ value }}]{%- endmacro -%}
{%- set state = namespace(count=0, seen=[]) -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' %}{% continue %}{% endif -%}
  {%- set state.count = state.count + 1 -%}
  {{ field(message.role, message.content[:5] | upper) }}
  {%- if state.count >= 3 %}{% break %}{% endif -%}
{%- endfor -%}
{% generation %}{{ state.count }}{% endgeneration %}
{{ {'b': '<é&>', 'a': [1, 2.5, none, true]} | tojson }} {{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}
{{ dict(a=1).items() | list }} {{ 'x' if tools is none else 'y' }} {{ missing }}|{{ eos_token }}
{{ strftime_now('%Y') | length }} {{ '%s-%s' % ('a', 1) }} {{ ' a '.strip() ~ 1 }} {{ range(3) | list }}
"""

STYLES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "features": FEATURES}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATS: list[Messages] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": " Be kind. "}, {"role": "user", "content": "<b>größer & 'so'</b>\n"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "tool_calls": None},
        {"role": "user", "content": "three 日本 😀"},
    ],
    [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}, {"role": "assistant", "content": "c"}],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "größer <x>", "parameters": {"type": "object"}}}]


@pytest.fixture
def made() -> Iterator[Callable[[str], ChatTemplate]]:
    templates: list[ChatTemplate] = []

    def make(source: str) -> ChatTemplate:
        templates.append(ChatTemplate({"default": source}, TOKENS))
        return templates[-1]

    yield make
    for each in templates:
        each.close()


def theirs(source: str, messages: Messages, **options: Any) -> str:
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    rendered: Any = render_jinja_template([plain], chat_template=source, **{**TOKENS, **options})
    return str(rendered[0][0])


def theirs_or_fault(source: str, messages: Messages, options: dict[str, Any]) -> tuple[str | None, str | None]:
    try:
        return theirs(source, messages, **options), None
    except TemplateError as error:
        return None, str(error)


@pytest.mark.parametrize("source", STYLES.values(), ids=STYLES)
def test_renders_as_transformers_does(made: Callable[[str], ChatTemplate], source: str) -> None:
    ours = made(source)
    rendered = 0
    for messages in CHATS:
        for tools in (None, TOOLS):
            for prompt in (True, False):
                options: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt}
                expected, fault = theirs_or_fault(source, messages, options)
                if fault is None:
                    assert ours.render(messages, **options) == expected
                    rendered += 1
                    continue
                with pytest.raises(TemplateFailed, match=re.escape(fault)):
                    ours.render(messages, **options)
    assert rendered >= 8
    assert ours.render(CHATS[0], date_string="today") == theirs(
        source, CHATS[0], add_generation_prompt=True, date_string="today"
    )


def test_starter_template(starter_files: ModelFiles, starter_reference: Any) -> None:
    tokenizer = load_tokenizer(starter_files)
    ours = load_template(starter_files, tokenizer)
    for messages in CHATS:
        for prompt in (True, False):
            text = ours.render(messages, add_generation_prompt=prompt)
            options: dict[str, Any] = {"add_generation_prompt": prompt}
            assert text == starter_reference.apply_chat_template(messages, tokenize=False, **options)
            ids = starter_reference.apply_chat_template(messages, return_dict=False, **options)
            assert tokenizer.encode(text) == ids
    ours.close()


def test_a_message_cannot_write_template_code(made: Callable[[str], ChatTemplate]) -> None:
    text = "{{ 7*7 }}{% raw %}${x}"
    assert text in made(CHATML).render([{"role": "user", "content": text}])


def test_half_surrogate_pairs_reach_the_caller(made: Callable[[str], ChatTemplate]) -> None:
    """JSON can carry them; it is the tokenizer that refuses them by place."""
    assert "\ud83d" in made(CHATML).render([{"role": "user", "content": "\ud83d"}])


def test_long_conversations_pass_the_pipe(made: Callable[[str], ChatTemplate]) -> None:
    content = "0123456789abcdef" * 65536  # 1 MiB
    assert len(made(CHATML).render([{"role": "user", "content": content}] * 4)) > 4 << 20


# --- limits ---

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 10**(10**10) }}", "stopped after 2 s of CPU time"),
        ("{{ 'x' * 10**10 }}", "stopped at 512 MiB of memory"),
        ("{{ 'x'.center(10**10) }}", "stopped at 512 MiB of memory"),
        (
            "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
            "stopped at 512 MiB of memory",
        ),
        ("{{ 'x' * (17 * 1024 * 1024) }}", "wrote 17825792 characters; the limit is 16777216"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include 'x' %}", "TypeError"),
        ("{{ a.b.c }}", "UndefinedError: 'a' is undefined"),
        ("{% if", "TemplateSyntaxError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('No, thanks.') }}", "refuses these messages: No, thanks."),
    ],
)
def test_misbehaving_templates_are_stopped(made: Callable[[str], ChatTemplate], source: str, expected: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        made(source).render(CHATS[0])
    assert expected in caught.value.message
    assert caught.value.http_status == 400


def test_a_stopped_template_renders_again(made: Callable[[str], ChatTemplate]) -> None:
    chat = made("{% if messages[0].content == 'loop' %}" + ENDLESS + "{% endif %}fine")
    assert chat.render(CHATS[0]) == "fine"
    with pytest.raises(TemplateFailed):
        chat.render([{"role": "user", "content": "loop"}])
    assert chat.render(CHATS[0]) == "fine"


# --- the process ---


def pid_of(chat: ChatTemplate) -> int:
    assert chat.pid is not None
    return chat.pid


def gone(pid: int) -> bool:
    """Ended, reaped or not, within the patience of the test's own time limit."""
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.01)
    return True


def test_a_process_ended_from_outside_is_replaced(made: Callable[[str], ChatTemplate]) -> None:
    chat = made("fine")
    assert chat.pid is None
    chat.render(CHATS[0])
    first = pid_of(chat)
    os.kill(first, signal.SIGKILL)
    assert chat.render(CHATS[0]) == "fine"
    assert pid_of(chat) != first
    chat.close()
    chat.close()
    assert chat.pid is None
    assert chat.render(CHATS[0]) == "fine"


def test_the_process_ends_with_its_owner(made: Callable[[str], ChatTemplate]) -> None:
    chat = ChatTemplate({"default": "fine"}, {})
    chat.warm_up()
    pid = pid_of(chat)
    del chat
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_the_process_ends_with_a_killed_parent() -> None:
    code = (
        "import os, signal\n"
        "from edgewise.models.templates import ChatTemplate\n"
        "chat = ChatTemplate({'default': 'fine'}, {})\n"
        "chat.render([])\n"
        "print(chat.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert gone(int(done.stdout))


# --- where templates come from ---


def test_models_without_a_template_serve_completions(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    files = local_files(folder, name="plain")
    with pytest.raises(TemplateFailed, match="'plain' has no chat template: use /v1/completions"):
        load_template(files, load_tokenizer(files))


def sources(folder: Path) -> dict[str, str]:
    files = local_files(folder)
    chat = load_template(files, load_tokenizer(files))
    chat.close()
    return chat.sources


def test_a_folder_may_keep_its_template_in_four_places(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    assert "<|im_start|>" in sources(folder)["default"]
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "T"}, {"name": 3}, "x"]
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert sources(folder) == {"default": "A", "tool_use": "T"}
    (folder / "chat_template.json").write_text('{"chat_template": "B"}')
    assert sources(folder) == {"default": "B", "tool_use": "T"}
    (folder / "chat_template.jinja").write_text("C")
    assert sources(folder) == {"default": "C", "tool_use": "T"}
    (folder / "chat_template.jinja").write_bytes(b"C\xff")
    with pytest.raises(BadModelFile, match=r"chat_template\.jinja, byte 1: not UTF-8"):
        sources(folder)
    (folder / "chat_template.jinja").write_text("C" * ((1 << 20) + 1))
    with pytest.raises(BadModelFile, match="the limit is 1048576"):
        sources(folder)


def test_tools_choose_the_template_for_tools(tmp_path: Path) -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "tools {{ tools[0].function.name }}"}, {})
    assert chat.render([], tools=TOOLS) == "tools f"
    assert chat.render([], tools=[]) == "plain"
    chat.close()


def test_a_header_may_name_further_templates(tmp_path: Path, tiny_model: ModelFiles) -> None:
    metadata = {"general.architecture": "llama", "tokenizer.chat_template": "A"}
    write_gguf(
        tmp_path / "m.gguf",
        {**metadata, "tokenizer.chat_templates": ["tool_use", "lost"], "tokenizer.chat_template.tool_use": "T"},
        [],
    )
    chat = load_template(local_files(tmp_path), load_tokenizer(tiny_model))
    assert chat.sources == {"default": "A", "tool_use": "T"}
    assert repr(chat).startswith("ChatTemplate(['default', 'tool_use'], RenderProcess(pid=")
    chat.close()


def test_tiny_template_gives_transformers_ids(tiny_model: ModelFiles) -> None:
    tokenizer = load_tokenizer(tiny_model)
    chat = load_template(tiny_model, tokenizer)
    reference = AutoTokenizer.from_pretrained(next(iter(tiny_model.paths.values())).parent)
    for messages in CHATS:
        ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode(chat.render(messages)) == ids
    chat.close()
