"""llama-index (OpenAILike): a chat, a stream, a completion, a tool call."""

from __future__ import annotations

from _cases import QUESTION, arguments, report
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

URL, MODEL = arguments()
llm = OpenAILike(
    model=MODEL,
    api_base=URL,
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    temperature=0.0,
    max_tokens=48,
    timeout=120,
)


def add(a: int, b: int) -> int:
    """Adds two whole numbers."""
    return a + b


def whole() -> None:
    answer = llm.chat([ChatMessage(role="user", content=QUESTION)])
    assert "Paris" in str(answer.message.content), answer


def stream() -> None:
    pieces = [piece.delta or "" for piece in llm.stream_chat([ChatMessage(role="user", content=QUESTION)])]
    assert "Paris" in "".join(pieces), pieces


def completion() -> None:
    answer = llm.complete(QUESTION)
    assert answer.text.strip(), answer


def tool_call() -> None:
    tools = [FunctionTool.from_defaults(fn=add)]
    answer = llm.chat_with_tools(tools, user_msg="What is 2 plus 3?", tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    assert [call.tool_name for call in calls][:1] == ["add"], answer


report({"chat": whole, "stream": stream, "complete": completion, "tool": tool_call})
