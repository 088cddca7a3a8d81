"""Grammars that answers must follow: one matcher per request, asked for the tokens that may come next.

The work is llguidance's (Earley parser over derivatives of regular expressions). A matcher is a pure function of its grammar and
of the answer's tokens, so nothing of it is saved: after a preemption or a restart it reads the answer again and goes on.
Masks are computed on threads of their own, beside the forward pass, outside of Python's lock; grammars are compiled on another
one, so that no running answer waits for somebody else's grammar.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from edgewise.core.errors import UnsupportedField
from edgewise.engine.vocabulary import Vocabulary
from edgewise.models.whisper.rules import TokenRules, read_rules

LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Bounds on what one grammar may cost: about 20 ms for a regular expression, 15 ms for a mask, 0.5 kB for each of the lexer's
states. A grammar beyond them is refused, or its answer fails, by name."""

KEPT = 8
"""Compiled grammars kept for requests to come."""


@dataclass(frozen=True, slots=True)
class Permitted:
    """Tokens that may come next.

    Attributes:
        bits: One bit per id, the lowest bit of the first byte first; all zero when nothing may come.
        problem: Why nothing may come; None while something may.
        group_from: As of `kernels.sample.RowControls`.
    """

    bits: bytes
    problem: str | None = None
    group_from: int | None = None


class TokenTable:
    """A vocabulary as llguidance takes it. Texts are never tokenized with it: masks allow every spelling of what is allowed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.spellings
        self.special_token_ids = vocabulary.special
        self.eos_token_id = vocabulary.eos[0]
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError(f"a text of {len(text)} characters was to be tokenized in the engine")


def grammar_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """llguidance's index of the vocabulary."""
    return LLTokenizer(TokenTable(vocabulary), eos_token=list(vocabulary.eos))  # type: ignore[arg-type]


class _Following:
    """One answer and its matcher."""

    def __init__(self, compiled: Future[LLMatcher]) -> None:
        self.compiled = compiled
        self._matcher: LLMatcher | None = None
        self._read = 0

    def permitted(self, answer: Seq[int]) -> Permitted:
        if self._matcher is None:
            self._matcher = self.compiled.result().deep_copy()
        matcher = self._matcher
        if not matcher.is_error():
            matcher.consume_tokens(list(answer[self._read :]))
            self._read = len(answer)
        if matcher.is_error():
            return Permitted(b"", _plain(matcher.get_error()))
        bits = matcher.compute_bitmask()
        if matcher.is_error():
            return Permitted(b"", _plain(matcher.get_error()))
        return Permitted(bits, None if any(bits) else "no token of the vocabulary can continue the answer")


class _Ruled:
    """One answer and the token rules of its model, which need no matcher."""

    def __init__(self, rules: TokenRules) -> None:
        self.compiled: Future[Any] = Future()
        self.compiled.set_result(None)
        self._rules = rules

    def permitted(self, answer: Seq[int]) -> Permitted:
        bits = self._rules.permitted(answer)
        return Permitted(bits, None if any(bits) else "the rules leave no token", self._rules.group_from)


class Constraints:
    """Matchers of the requests in work. Called from the engine's loop.

    Args:
        vocabulary: None refuses every grammar.
    """

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: Future[LLTokenizer] | None = None
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="engine-grammar")
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="engine-mask")
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._open: dict[str, _Following | _Ruled] = {}
        self._problems: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Constraints(open={len(self._open)}, compiled={len(self._compiled)})"

    def open(self, request_id: str, grammar: str) -> Future[Any]:
        """Begin to compile a grammar; returns at once. Whoever asks for a mask before it is done waits for it.

        Raises:
            UnsupportedField: The engine was started without a vocabulary.
        """
        rules = read_rules(grammar)
        if rules is not None:
            ruled = self._open[request_id] = _Ruled(rules)
            return ruled.compiled
        if self._vocabulary is None or not self._vocabulary.eos:
            raise UnsupportedField(
                "This model cannot follow a grammar: it has no end token. Leave 'response_format' and strict 'tools' out, or ask "
                "another model.",
                param="response_format",
            )
        if self._tokenizer is None:
            self._tokenizer = self._compiler.submit(grammar_tokenizer, self._vocabulary)
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiled[grammar] = self._compiler.submit(_compile, self._tokenizer, grammar)
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        self._open[request_id] = _Following(compiled)
        return compiled

    def close(self, request_id: str) -> None:
        """Forget a request; unknown ids had no grammar. One that nobody wants any more is not compiled."""
        following = self._open.pop(request_id, None)
        self._problems.pop(request_id, None)
        if following is None or any(other.compiled is following.compiled for other in self._open.values()):
            return
        if following.compiled.cancel():
            self._compiled = OrderedDict(pair for pair in self._compiled.items() if pair[1] is not following.compiled)

    def begin(self, request_id: str, answer: Seq[int]) -> Future[Permitted] | None:
        """Start computing what may come after `answer`, the request's tokens so far; None if it follows no grammar."""
        following = self._open.get(request_id)
        if following is None:
            return None
        return self._threads.submit(self._permitted, request_id, following, tuple(answer))

    def problem(self, request_id: str) -> str:
        """Why the request's answer cannot go on."""
        return self._problems.get(request_id, "nothing may follow")

    def stop(self) -> None:
        for pool in (self._compiler, self._threads):
            pool.shutdown(wait=False, cancel_futures=True)

    def _permitted(self, request_id: str, following: _Following | _Ruled, answer: Seq[int]) -> Permitted:
        permitted = following.permitted(answer)
        if permitted.problem is not None:
            self._problems[request_id] = permitted.problem
        return permitted


def _compile(tokenizer: Future[LLTokenizer], grammar: str) -> LLMatcher:
    return LLMatcher(tokenizer.result(), grammar, log_level=0, limits=LIMITS)


def _plain(error: str) -> str:
    """The first line of what llguidance says."""
    return error.strip().split("\n", 1)[0][:200]
