"""Tunes a decoder's step on the card at hand: every product, attention, and the whole step, on random numbers of the model's
shapes. Speed and bits do not depend on the values, so no weights are read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from edgewise.kernels.rope import rope_tables
from edgewise.kernels.triton.attention_trials import AttentionShape, AttentionTrial
from edgewise.kernels.triton.blocks import ROW_CLASSES, Form
from edgewise.kernels.triton.candidates import attention_candidates, attention_forms, forms_of, product_candidates
from edgewise.kernels.triton.decode_attention import AttentionBlocks, AttentionForm
from edgewise.kernels.triton.plan import DEFAULT_PLAN, Plan, row_class, site
from edgewise.kernels.triton.product_trials import ProductTrial
from edgewise.kernels.triton.tuning import FAILURES, Choice, Journal, Timer, Tuner, marked
from edgewise.kernels.tuned import Place, Trial, Tuned
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.whole_step import WholeStep
from edgewise.models.decoder.kv_formats import kv_formats
from edgewise.models.decoder.native.formats import Quantize

_CODES = {"int8": torch.int8, "int4": torch.uint8, "fp8": torch.float8_e4m3fn}
_STORED = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
# Batches by which attention is judged: rows and tokens of each.
_WORK = ((1, 256), (8, 1024), (16, 8192), (64, 1024), (1, 32768))
_WHOLE = "whole step"
_WORTH = 0.99  # what overlapping must take of a step's time at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What is tuned for.

    Attributes:
        config: The decoder.
        dtype: Of weights and states.
        kv_dtype, quantize: Definite names.
        max_rows, max_context: Of the largest batch, and of a sequence.
        most_tokens: Of all sequences that attention is timed with: there is memory for so many.
    """

    config: DecoderConfig
    dtype: torch.dtype
    kv_dtype: str
    quantize: Quantize
    max_rows: int
    max_context: int
    most_tokens: int = 1 << 17

    @property
    def classes(self) -> list[int]:
        return [rows for rows in ROW_CLASSES if rows <= row_class(self.max_rows)]

    @property
    def codes(self) -> torch.dtype:
        return _CODES.get(self.quantize, self.dtype)


class _Product(NamedTuple):
    """A product of a decoder, and how often a step computes it."""

    kind: str
    shape: tuple[int, int]
    biased: bool
    wide: bool
    times: int


def shape_name(aim: Aim) -> str:
    """All that decides which plan is best, in words."""
    config = aim.config
    attention = f"heads {config.num_heads}/{config.num_kv_heads}x{config.head_dim} rotary {config.rotary_dim}"
    extra = [name for name in ("qk_norm", "qkv_bias", "output_bias", "mlp_bias", "post_norms") if getattr(config, name)]
    windows = sorted({str(window) for window in config.windows})
    return (
        f"hidden {config.hidden_size} ffn {config.ffn_size} layers {config.num_layers} vocab {config.vocab_size} {attention} "
        f"windows {','.join(windows)} softcap {config.attention_softcap} {config.activation} {' '.join(extra)}"
        f"{_mixture(config)}; "
        f"{str(aim.dtype).removeprefix('torch.')}, weights {aim.quantize}, kv {aim.kv_dtype}; "
        f"rows {aim.max_rows if aim.max_rows < ROW_CLASSES[0] else row_class(aim.max_rows)}, "
        f"context {aim.max_context}"
    )


def _mixture(config: DecoderConfig) -> str:
    """What of a model's experts decides; "" where it has none."""
    experts = config.experts
    if experts is None:
        return ""
    return (
        f" experts {experts.per_token}/{experts.count}x{experts.ffn_size} in {sum(experts.layers)} layers"
        f"{' normalised' if experts.normalised else ''}"
    )


def tune(
    aim: Aim,
    device: torch.device,
    *,
    place: Place,
    timer: Timer,
    progress: Callable[[float, str], None],
    journal: Journal | None = None,
    cache_bytes: int = 0,
) -> Tuned:
    """Check and time all candidates, and put together what is best.

    Args:
        progress: Called with the share done and what comes next.
        cache_bytes: Of the card's cache.

    Raises:
        RuntimeError: The device computes no more; the journal knows after which candidate, and the next try leaves it out.
    """
    began = time.monotonic()
    tuner = Tuner(timer, journal)
    steps = _Steps(aim, progress)
    plan, figures = DEFAULT_PLAN, dict[str, object]()
    try:
        form, chosen = _products(aim, device, tuner, steps, cache_bytes)
        attention_form, attention = _attention(aim, device, tuner, steps)
        steps.next("whole steps")
        plan, figures = _whole(aim, device, tuner, timer, form, chosen, attention_form, attention)
        failed = _wrong_default(tuner.trials) if plan == DEFAULT_PLAN else ""
    except _Unusable as error:
        failed = str(error)
    progress(1.0, "done")
    used: dict[str, list[dict[str, object]]] = {name: [dict(cut._asdict())] for name, cut in plan.products.items()}
    for rows, cut in plan.attention.items():
        for name in {trial.site for trial in tuner.trials}:
            if name.startswith(_attention_site(plan.attention_form, "")) and name.endswith(f"r{rows}"):
                used[name] = [dict(cut._asdict())]
    return Tuned(
        place=place,
        shape=shape_name(aim),
        plan=plan.document(),
        trials=marked(tuner.trials, used),
        when=time.strftime("%FT%TZ", time.gmtime()),
        seconds=round(time.monotonic() - began, 1),
        figures=figures,
        failed=failed,
    )


class _Unusable(Exception):
    """No form is right everywhere; the message names a site."""


def _wrong_default(trials: Sequence[Trial]) -> str:
    """A site whose cut by default was refused, and why; "" where none was. The default is tried first."""
    first: dict[str, Trial] = {}
    for trial in trials:
        if trial.site == _WHOLE:
            continue
        default = _attention_site(DEFAULT_PLAN.attention_form, "") if "registers" in trial.candidate else ""
        if trial.candidate.get("form", DEFAULT_PLAN.form) == DEFAULT_PLAN.form and trial.site.startswith(default):
            first.setdefault(trial.site, trial)
    return next((f"{each.site}: {each.why_not}" for each in first.values() if each.why_not), "")


class _Steps:
    """Says how far the tuning has come."""

    def __init__(self, aim: Aim, progress: Callable[[float, str], None]) -> None:
        forms = len(forms_of(aim.codes)) + len(aim.classes) - 1
        self._total = forms * len(list(_products_of(aim))) + len(attention_forms(_stored(aim))) + 1
        self._done = 0
        self._progress = progress

    def next(self, what: str) -> None:
        self._progress(min(self._done / self._total, 1.0), what)
        self._done += 1


def _products_of(aim: Aim) -> Iterator[_Product]:
    """Those of experts and of their router are cut by default (`kernels.triton.expert_product`)."""
    config = aim.config
    dense = sum(config.experts_of(layer) is None for layer in range(config.num_layers))
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, layers = config.hidden_size, config.num_layers
    yield _Product("project", (queries + 2 * keys, hidden), config.qkv_bias, False, layers)
    added = "plain" if config.post_norms else "add"
    yield _Product(added, (hidden, queries), config.output_bias, False, layers)
    if dense:
        yield _Product("gated", (2 * config.ffn_size, hidden), config.mlp_bias, False, dense)
        yield _Product(added, (hidden, config.ffn_size), config.mlp_bias, False, dense)
    yield _Product("project", (config.vocab_size, hidden), False, True, 1)


def _products(
    aim: Aim, device: torch.device, tuner: Tuner, steps: _Steps, cache_bytes: int
) -> tuple[Form, dict[str, Choice]]:
    """The form whose few rows are quickest, of those in which every product has a right cut for all numbers of rows; and the
    best cuts in it.

    Raises:
        _Unusable: There is no such form.
    """
    products = list(_products_of(aim))

    def trial(product: _Product) -> ProductTrial:
        return ProductTrial(
            product.kind,
            aim.codes,
            product.shape,
            dtype=aim.dtype,
            device=device,
            activation=aim.config.activation,
            biased=product.biased,
            wide=product.wide,
            cache_bytes=cache_bytes,
            most_rows=aim.classes[-1],
        )

    def choice(own: ProductTrial, product: _Product, form: Form, rows: int) -> Choice:
        name = site(product.kind, aim.codes, product.shape, rows)
        steps.next(f"{name} {form}")
        cuts = product_candidates(aim.codes, product.shape, rows, product.kind == "gated", device, form)
        timed = min(rows, aim.max_rows)  # what is multiplied without matrix instructions takes longer for each row
        return tuner.choose(name, cuts, lambda cut: own.problem(cut, rows), lambda cut: own.calls(cut, timed))

    totals: dict[Form, float] = {}
    few: dict[Form, dict[str, Choice]] = {}
    rows = aim.classes[0]
    for form in forms_of(aim.codes):
        few[form] = {}
        for product in products:
            name = site(product.kind, aim.codes, product.shape, rows)
            few[form][name] = choice(trial(product), product, form, rows)
        of_sites = {site(one.kind, aim.codes, one.shape, rows): one.times for one in products}
        totals[form] = sum(few[form][name].us * times for name, times in of_sites.items())
    for form in sorted(totals, key=lambda form: totals[form]):
        chosen = dict(few[form])
        if _all_right(chosen):
            for product in products:
                own = trial(product)
                for more in aim.classes[1:]:
                    chosen[site(product.kind, aim.codes, product.shape, more)] = choice(own, product, form, more)
            if _all_right(chosen):
                return form, chosen
        lacking = next(name for name, own in chosen.items() if own.apart is None)
    raise _Unusable(f"{lacking}: every way to cut it was refused")


def _all_right(chosen: Mapping[str, Choice]) -> bool:
    """Whether every site has a right candidate that is not overlapped: overlapping may be dropped in the end."""
    return all(choice.apart is not None for choice in chosen.values())


def _stored(aim: Aim) -> torch.dtype:
    """The pages of layers that see everything, which are the longest."""
    formats = kv_formats(aim.config, aim.kv_dtype, str(aim.dtype).removeprefix("torch."))
    return _STORED[formats[_widest(aim.config)]]


def _widest(config: DecoderConfig) -> int:
    """A layer without a window, or the first."""
    return next((index for index, window in enumerate(config.windows) if window is None), 0)


def attention_shapes(aim: Aim, device: torch.device) -> list[AttentionShape]:
    """One of every kind of layer; the first is what is timed."""
    config = aim.config
    longest = min(aim.max_context, max(tokens for _, tokens in _WORK))
    formats = kv_formats(config, aim.kv_dtype, str(aim.dtype).removeprefix("torch."))
    layers = dict.fromkeys([_widest(config), *range(config.num_layers)])
    found: dict[tuple[object, ...], AttentionShape] = {}
    for index in layers:
        rope = config.rope_of(index)
        key = (config.windows[index], formats[index], rope)
        if key not in found:
            # Angles as such change nothing: longrope's divisors, which lie in the weights' file, are left out.
            plain = None if rope is None else replace(rope, kind="default", sections=())
            table = None if plain is None else rope_tables(plain, config.rotary_dim, longest + 64, device=device)
            found[key] = AttentionShape(
                heads=config.num_heads,
                kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                stored=_STORED[formats[index]],
                dtype=aim.dtype,
                scale=config.attention_scale,
                table=table,
                window=config.windows[index],
                softcap=config.attention_softcap,
                normed=config.qk_norm,
            )
    return list(found.values())


def _work(aim: Aim) -> list[tuple[int, int]]:
    """Batches that the engine can have, at least one for every class of rows."""
    longest = {rows: max(1, min(aim.max_context, aim.most_tokens // rows)) for rows, _ in _WORK}
    found = [(rows, min(tokens, longest[rows])) for rows, tokens in _WORK if rows <= aim.max_rows]
    missing = [min(rows, aim.max_rows) for rows in aim.classes if not any(row_class(own) == rows for own, _ in found)]
    return list(
        dict.fromkeys(
            [*found, *((rows, max(1, min(1024, aim.max_context, aim.most_tokens // rows))) for rows in missing)]
        )
    )


def _attention_site(form: AttentionForm, rest: str) -> str:
    return f"attention {'/'.join(map(str, form))} {rest}"


def _attended(aim: Aim) -> str:
    """The shape of attention: a name in the journal must mean the same for every model."""
    config = aim.config
    types = f"{str(aim.dtype).removeprefix('torch.')} over {str(_stored(aim)).removeprefix('torch.')}"
    return f"{config.num_heads}/{config.num_kv_heads}x{config.head_dim} {types}"


def _attention(aim: Aim, device: torch.device, tuner: Tuner, steps: _Steps) -> tuple[AttentionForm, dict[int, Choice]]:
    """The form that is quickest over all batches, each weighed by its time in the first form that is right; and its launches.

    Raises:
        _Unusable: No form is right for all batches.
    """
    work = _work(aim)
    shapes = attention_shapes(aim, device)
    most = max(rows * tokens for rows, tokens in work)
    trials = [
        AttentionTrial(shape, device, most_tokens=most if index == 0 else 0, max_context=aim.max_context)
        for index, shape in enumerate(shapes)
    ]
    known: dict[tuple[AttentionForm, AttentionBlocks], str] = {}

    def problem(form: AttentionForm, blocks: AttentionBlocks) -> str:
        if (form, blocks) not in known:
            known[form, blocks] = next((reason for trial in trials if (reason := trial.problem(form, blocks))), "")
        return known[form, blocks]

    times: dict[AttentionForm, dict[tuple[int, int], Choice]] = {}
    for form in attention_forms(_stored(aim)):
        steps.next(f"attention {form}")
        found = {}
        for rows, tokens in work:
            found[rows, tokens] = tuner.choose(
                _attention_site(form, f"{_attended(aim)} {rows}x{tokens} r{row_class(rows)}"),
                attention_candidates(device, aim.config.head_dim),
                lambda blocks, form=form: problem(form, blocks),  # type: ignore[misc]
                lambda blocks, form=form, rows=rows, tokens=tokens: trials[0].calls(form, blocks, rows, tokens),  # type: ignore[misc]
            )
        times[form] = found
    usable = {form: own for form, own in times.items() if all(choice.apart is not None for choice in own.values())}
    if not usable:
        raise _Unusable(
            f"{_attention_site(DEFAULT_PLAN.attention_form, _attended(aim))}: every way to launch it was refused"
        )
    first = next(iter(usable.values()))
    scores = {form: sum(own[each].us / first[each].us for each in work) for form, own in usable.items()}
    best = min(scores, key=lambda form: scores[form])
    # Of several batches of a class the longest decides: it has most to win.
    by_class: dict[int, Choice] = {}
    for (rows, _), choice in sorted(times[best].items(), key=lambda item: item[0][0] * item[0][1]):
        by_class[row_class(rows)] = choice
    return best, by_class


def _whole(
    aim: Aim,
    device: torch.device,
    tuner: Tuner,
    timer: Timer,
    form: Form,
    chosen: dict[str, Choice],
    attention_form: AttentionForm,
    attention: dict[int, Choice],
) -> tuple[Plan, dict[str, object]]:
    """The plan, class by class by default, as chosen, or overlapped, whichever takes a whole step less; `DEFAULT_PLAN` where
    that takes less over all classes, or where nothing else is right.

    Raises:
        _Unusable: Not even the default plan is right.
    """
    plans = {
        name: Plan(
            form=form,
            attention_form=attention_form,
            products={site: cut for site, choice in chosen.items() if (cut := pick(choice)) is not None},
            attention={rows: cut for rows, choice in attention.items() if (cut := pick(choice)) is not None},
        )
        for name, pick in _PICKS.items()
    }
    figures: dict[str, object] = {}
    try:
        return _best_whole(aim, device, tuner, timer, plans, figures), figures
    except FAILURES as error:
        tuner.refuse(_WHOLE, {"label": plans["apart"].label}, f"{type(error).__name__}: {str(error)[:200]}")
        return DEFAULT_PLAN, figures


_PICKS: dict[str, Callable[[Choice], Any]] = {
    "default cuts": lambda choice: choice.apart if choice.default is None else choice.default,
    "apart": lambda choice: choice.apart,
    "overlapped": lambda choice: choice.apart if choice.overlapped is None else choice.overlapped,
}
"""What is taken of each site, by how a plan is called in the figures; a default that was refused is never taken."""


def _best_whole(
    aim: Aim,
    device: torch.device,
    tuner: Tuner,
    timer: Timer,
    plans: Mapping[str, Plan],
    figures: dict[str, object],
) -> Plan:
    whole = WholeStep(aim.config, aim.dtype, aim.kv_dtype, aim.quantize, device, aim.max_context)
    apart, wrong = plans["apart"], bool(_wrong_default(tuner.trials))
    mixed, by_default, as_chosen = apart, 0.0, 0.0
    for rows in aim.classes:
        default = math.inf if wrong else timer(whole.calls(DEFAULT_PLAN, rows))
        times = {
            name: timer(whole.calls(plan, rows)) for name, plan in plans.items() if name == "apart" or plan != apart
        }
        best = "default cuts" if times.get("default cuts", times["apart"]) < times["apart"] else "apart"
        if times.get("overlapped", times[best]) < _WORTH * times[best]:
            best = "overlapped"
        mixed = _with_class(mixed, plans[best], rows)
        by_default, as_chosen = by_default + default, as_chosen + times[best]
        shown = times if wrong else {"default": default, **times}
        figures[str(rows)] = {name: round(us, 2) for name, us in shown.items()}
    tried = [mixed, apart, DEFAULT_PLAN]
    if apart.label and as_chosen >= by_default:  # another form changes bits, and must be worth it
        tuner.refuse(_WHOLE, {"label": apart.label}, "steps take no less time than by default")
        tried = [DEFAULT_PLAN, mixed, apart]
    for plan in tried:
        reason = whole.problem(plan, aim.classes)
        if not reason:
            return plan
        tuner.refuse(_WHOLE, {"label": plan.label, "plan": _called(plan, plans)}, reason)
    raise _Unusable(f"{_WHOLE}: {reason}")


def _with_class(plan: Plan, other: Plan, rows: int) -> Plan:
    """`plan` with what `other` has for a class of rows."""
    products = {name: cut for name, cut in other.products.items() if name.endswith(f" r{rows}")}
    launches = {own: cut for own, cut in other.attention.items() if own == rows}
    return replace(plan, products={**plan.products, **products}, attention={**plan.attention, **launches})


def _called(plan: Plan, plans: Mapping[str, Plan]) -> str:
    return next((name for name, own in {"default": DEFAULT_PLAN, **plans}.items() if own == plan), "mixed")
