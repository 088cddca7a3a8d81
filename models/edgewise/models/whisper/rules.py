"""Which token a Whisper model may write next: no control tokens, and times by the rules that it was trained on.

From the paper's section 4.5 and OpenAI's `decoding.py`. Times come in pairs, one that ends a stretch of text and one that
begins the next; they never go back; text begins with a time of at most a second; and a time is written where all times together
are likelier than the likeliest word (`group_from` of `kernels.sample.RowControls`). Torch-free: the engine asks once a token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edgewise.models.whisper.config import WhisperTokens

_MARK: Final = '{"whisper": '


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Rules of one text; the attributes are those of `WhisperTokens`.

    Attributes:
        times: Whether the text has times; otherwise none are written.
    """

    vocab_size: int
    end: int
    first_time: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    first_time_limit: int
    times: bool

    @property
    def group_from(self) -> int | None:
        """The first id of those that win together; None where times are not written."""
        return self.first_time if self.times else None

    def permitted(self, answer: Sequence[int]) -> bytes:
        """One bit per id, the lowest bit of the first byte first, of what may follow `answer`."""
        allowed = np.ones(self.vocab_size, dtype=bool)
        allowed[list(self.suppressed)] = False
        allowed[self.end + 1 : self.first_time] = False
        if not answer:
            allowed[list(self.suppressed_first)] = False
        if not self.times:
            allowed[self.first_time :] = False
        elif not answer:
            allowed[: self.first_time] = False
            allowed[self.first_time + self.first_time_limit + 1 :] = False
        else:
            self._hold_to_times(allowed, answer)
        return np.packbits(allowed, bitorder="little").tobytes()

    def _hold_to_times(self, allowed: npt.NDArray[np.bool_], answer: Sequence[int]) -> None:
        ends = answer[-1] >= self.first_time
        opens = ends and (len(answer) < 2 or answer[-2] >= self.first_time)
        if opens:
            allowed[self.first_time :] = False
        elif ends:
            allowed[: self.end] = False
        last = next((token for token in reversed(answer) if token >= self.first_time), None)
        if last is not None:  # the one that begins a stretch may equal the one that ended the stretch before, no other
            allowed[self.first_time : last if ends and not opens else last + 1] = False


def rules_text(tokens: WhisperTokens, vocab_size: int, *, times: bool) -> str:
    """The rules as `GenerateRequest.constraint` carries them."""
    rules = TokenRules(
        vocab_size=vocab_size,
        end=tokens.end,
        first_time=tokens.first_time,
        suppressed=tokens.suppressed,
        suppressed_first=tokens.suppressed_first,
        first_time_limit=tokens.first_time_limit,
        times=times,
    )
    return f"{_MARK}{json.dumps(asdict(rules))}}}"


def read_rules(text: str) -> TokenRules | None:
    """The rules in a constraint; None where it is a grammar."""
    if not text.startswith(_MARK):
        return None
    values: dict[str, Any] = json.loads(text)["whisper"]
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return TokenRules(**given)
