"""The prefill budget follows measured costs."""

from edgewise.engine.pacing import Pacer


def test_an_idle_engine_prefills_at_full_width() -> None:
    assert Pacer(max_step_tokens=512, grain=16).budget(0) == 512


def test_a_batch_size_that_is_new_is_measured_alone() -> None:
    pacer = Pacer(max_step_tokens=512, grain=16)
    assert pacer.budget(4) == 0
    pacer.observe(decoding=4, prefilling=0, seconds=0.04)
    assert pacer.budget(4) == 16
    assert pacer.budget(3) == 16
    assert pacer.budget(5) == 0


def test_a_long_prefill_makes_room_for_measuring_again() -> None:
    pacer = Pacer(max_step_tokens=512, grain=16)
    pacer.observe(decoding=2, prefilling=0, seconds=0.04)
    budgets = []
    for _ in range(200):
        budgets.append(pacer.budget(2))
        pacer.observe(decoding=2, prefilling=budgets[-1], seconds=0.05 if budgets[-1] else 0.04)
    assert budgets.count(0) == 200 // 65
    assert all(budget >= 16 for budget in budgets if budget)


def test_the_budget_keeps_the_bound() -> None:
    pacer = Pacer(max_step_tokens=512, grain=16)
    for _ in range(30):
        pacer.observe(decoding=8, prefilling=0, seconds=0.040)
        pacer.observe(decoding=8, prefilling=32, seconds=0.040 + 32 * 0.0002)
    # half of 40 ms buys 100 prompt tokens of 0.2 ms, in whole pages of 16
    assert pacer.budget(8) == 96


def test_it_follows_a_growing_context() -> None:
    pacer = Pacer(max_step_tokens=512, grain=16)
    pacer.observe(decoding=1, prefilling=0, seconds=0.02)
    for cost in (0.0001, 0.001):
        for _ in range(30):
            pacer.observe(decoding=1, prefilling=64, seconds=0.02 + 64 * cost)
        assert pacer.budget(1) == max(16, int(0.01 / cost) // 16 * 16)


def test_it_never_stops_prefill_nor_passes_the_step() -> None:
    slow, fast = Pacer(max_step_tokens=512, grain=16), Pacer(max_step_tokens=512, grain=16)
    slow.observe(decoding=2, prefilling=0, seconds=0.01)
    slow.observe(decoding=2, prefilling=16, seconds=5.0)
    fast.observe(decoding=2, prefilling=0, seconds=1.0)
    fast.observe(decoding=2, prefilling=16, seconds=1.0)
    assert slow.budget(2) == 16
    assert fast.budget(2) == 510


def test_where_a_prompt_token_is_dear_the_chunk_gets_small_and_the_bound_holds() -> None:
    pacer = Pacer(max_step_tokens=512)
    pacer.observe(decoding=8, prefilling=0, seconds=0.080)
    for _ in range(30):
        budget = pacer.budget(8)
        pacer.observe(decoding=8, prefilling=budget, seconds=0.080 + budget * 0.0045)
    assert pacer.budget(8) == 8
    assert pacer.budget(8) * 0.0045 <= 0.5 * 0.080
