"""The chunked cross-entropy against the plain one: value and gradient, fp32, bf16 and fp16."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minimind.model.loss import IGNORE, cross_entropy_by_row, summed_cross_entropy

HIDDEN, VOCAB, TOKENS = 24, 97, 50


def inputs(dtype: torch.dtype = torch.float32, trained: float = 0.6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3).to(dtype).requires_grad_()
    labels = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    labels[torch.rand(TOKENS, generator=generator) > trained] = IGNORE
    return hidden, weight, labels


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy((hidden @ weight.t()).float(), labels, ignore_index=IGNORE, reduction="sum")


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
@pytest.mark.parametrize("trained", [0.3, 1.0])
def test_equals_plain_in_fp32(chunk: int, trained: float) -> None:
    hidden, weight, labels = inputs(trained=trained)
    loss, expected = summed_cross_entropy(hidden, weight, labels, chunk), plain(hidden, weight, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-5)
    # An incoming gradient as the training step sends it: loss scale over tokens.
    factor = 65536.0 / 30
    for ours, theirs in zip(
        gradients(loss * factor, hidden, weight), gradients(expected * factor, hidden, weight), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * factor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_plain(dtype: torch.dtype) -> None:
    """Against fp32 from the same half weights, the error must not exceed the plain half form's (with room for luck)."""
    hidden, weight, labels = inputs(dtype)
    exact_inputs = (hidden.detach().float().requires_grad_(), weight.detach().float().requires_grad_())
    exact = plain(*exact_inputs, labels)
    loss, half = summed_cross_entropy(hidden, weight, labels, 16), plain(hidden, weight, labels)
    assert loss.dtype == torch.float32
    assert abs(loss - exact) <= 1.5 * abs(half - exact) + 2e-3 * exact
    ours, theirs = gradients(loss, hidden, weight), gradients(half, hidden, weight)
    for grad, reference, truth in zip(ours, theirs, gradients(exact, *exact_inputs), strict=True):
        assert grad.dtype == dtype
        assert (grad.float() - truth).norm() <= 1.2 * (reference.float() - truth).norm()


def test_fp16_keeps_probabilities_below_fp16_range() -> None:
    """A probability of 1e-9 is lost in fp16 but for the internal scale; a loss scale brings it back into range."""
    hidden = torch.zeros(1, 2, dtype=torch.float16)
    hidden[0, 0] = 1.0
    weight = torch.zeros(3, 2, dtype=torch.float16)
    weight[:, 0] = torch.tensor([20.0, 0.0, -1.0])  # probabilities 1, 2.06e-9, 7.6e-10
    weight.requires_grad_()
    loss = summed_cross_entropy(hidden, weight, torch.tensor([0]))
    (grad,) = torch.autograd.grad(loss * 65536.0, weight)
    torch.testing.assert_close(grad[1, 0].float(), torch.tensor(65536 * 2.06e-9), rtol=0.1, atol=0)


def test_fp16_overflow_shows_as_inf() -> None:
    """A loss scale that is too large must be seen by the loss scaler, not clamped."""
    hidden, weight, labels = inputs(torch.float16)
    (grad,) = gradients(summed_cross_entropy(hidden, weight, labels) * 2.0**30, weight)
    assert torch.isinf(grad).any()


def test_no_trainable_token_gives_zero_connected() -> None:
    hidden, weight, labels = inputs()
    loss = summed_cross_entropy(hidden, weight, torch.full_like(labels, IGNORE))
    assert loss.item() == 0.0
    assert all(bool((grad == 0).all()) for grad in gradients(loss, hidden, weight))


def test_tied_weight_gets_both_gradients() -> None:
    """The weight is the embedding too: its gradient is the sum of both uses."""
    _, weight, labels = inputs(trained=1.0)
    ids = torch.arange(TOKENS) % VOCAB
    ours = gradients(summed_cross_entropy(F.embedding(ids, weight), weight, labels, 8), weight)[0]
    theirs = gradients(plain(F.embedding(ids, weight), weight, labels), weight)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_backward_twice_gives_the_same() -> None:
    """The kept gradients are not scaled in place."""
    hidden, weight, labels = inputs()
    loss = summed_cross_entropy(hidden, weight, labels)
    first = torch.autograd.grad(loss * 3, hidden, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss * 3, hidden)[0])


def test_without_gradients_the_value_is_the_same() -> None:
    hidden, weight, labels = inputs()
    with torch.no_grad():
        value = summed_cross_entropy(hidden, weight, labels, 8)
    assert torch.equal(value, summed_cross_entropy(hidden, weight, labels, 8))
    assert not value.requires_grad


def rows_of_logits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Will hold the number of rows of each chunk of logits from now on."""
    rows: list[int] = []
    original = F.log_softmax

    def spy(values: Tensor, *args: object, **kwargs: object) -> Tensor:
        rows.append(values.shape[0])
        return original(values, *args, **kwargs)

    monkeypatch.setattr(F, "log_softmax", spy)
    return rows


def test_full_fp32_logits_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The widest fp32 logits that reach the log-softmax have ``chunk`` rows."""
    rows = rows_of_logits(monkeypatch)
    hidden, weight, labels = inputs(trained=1.0)
    summed_cross_entropy(hidden, weight, labels, 8)
    assert rows == [8] * 6 + [2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("trained", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("grad", [True, False])
def test_losses_by_row_leave_the_sum_and_its_gradients_as_they_are(
    dtype: torch.dtype, trained: float, grad: bool
) -> None:
    hidden, weight, labels = inputs(dtype, trained)
    shape = (5, TOKENS // 5)
    with torch.set_grad_enabled(grad):
        alone = summed_cross_entropy(hidden, weight, labels, 7)
        loss, rows = cross_entropy_by_row(hidden.view(*shape, HIDDEN), weight, labels.view(shape), 7)
        slices = [slice(start, start + 10) for start in range(0, TOKENS, 10)]
        each = [summed_cross_entropy(hidden[row], weight, labels[row]) for row in slices]
    assert torch.equal(loss, alone)
    assert (rows.shape, rows.dtype, rows.requires_grad) == ((5,), torch.float32, False)
    torch.testing.assert_close(rows, torch.stack(each).detach(), rtol=1e-5, atol=1e-5)
    if grad:
        ours, before = gradients(loss * 3, hidden, weight), gradients(alone * 3, hidden, weight)
        assert all(torch.equal(a, b) for a, b in zip(ours, before, strict=True))


@pytest.mark.parametrize("trained", [0, 1, 63, 64, 65, 150, 199, 200])
def test_sizes_do_not_follow_the_number_of_trained_tokens(trained: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps a kernel for each size it has met: a number that differs at each step made a run grow."""
    rows = rows_of_logits(monkeypatch)
    hidden, weight = torch.randn(200, 8), torch.randn(30, 8)
    labels = torch.full((200,), -100)
    labels[torch.randperm(200)[:trained]] = 3
    loss = summed_cross_entropy(hidden.requires_grad_(), weight, labels)
    assert sum(rows) in (-(-trained // 64) * 64, 200)
    expected = F.cross_entropy(hidden @ weight.t(), labels, reduction="sum", ignore_index=-100)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(loss, hidden)
    assert torch.equal(grad[labels == -100], torch.zeros(200 - trained, 8))


def test_a_frequent_token_does_not_overflow_native_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that multiplies fp16 nothing else is widened; this sum over tokens must be."""
    monkeypatch.setattr("minimind.model.ops.cpu_has_fast", lambda dtype: True)
    hidden = torch.full((64, 8), 2.0, dtype=torch.float16)
    weight = torch.zeros(30, 8, dtype=torch.float16, requires_grad=True)
    summed_cross_entropy(hidden, weight, torch.full((64,), 3)).backward()  # 64 x 2 x 1024 is above 65,504
    expected = -64 * 2 * (1 - 1 / 30)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad[3].float(), torch.full((8,), expected), rtol=1e-3, atol=0)
