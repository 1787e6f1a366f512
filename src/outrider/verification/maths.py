"""The arithmetic of accept rules: given p and q, which numbers a rule flips its coins with.

No randomness in here, so that `tests/verification` can enumerate every outcome.
p is always the target's law, q the draft's; both (V,).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outrider.cores import one_thread
from outrider.verification.law import Law


def ratio(p: Law | Tensor, q: Law | Tensor, token: int, weight: float = 1.0) -> float:
    """min(1, weight * p / q) at one token; 0 where q says that the token cannot have been drawn.

    **Exact:** Leviathan 2023, algorithm 1. A token with q = 0 has probability 0, so refusing it changes
    no law, and keeps a draft that misdeclares its q from being believed.
    """
    drawn = float(q[token])
    return min(1.0, weight * float(p[token]) / drawn) if drawn > 0.0 else 0.0


@one_thread()
def residual(p: Tensor, q: Tensor, weight: float = 1.0) -> tuple[Tensor, float]:
    """(weight * p - q)+ normalised, and its sum before that; p itself and 0 where nothing is left.

    **Exact:** the law of the token after a rejection. Nothing is left only where p = q, or by rounding;
    then a rejection has probability 0.
    """
    left = (weight * p).sub_(q).clamp_min_(0)
    mass = float(left.sum())
    return (left.div_(mass), mass) if mass > 0.0 else (p, 0.0)


def stop_chance(weight: float, mass: float) -> float:
    """S / (S + 1 - w): the chance to keep a path of weight w here, if no longer one was kept.

    **Exact:** `mass` is S = sum (w p - q)+ at the path's end (Sun 2025; Weng 2025). Where w = 1 it is 1.
    """
    below = mass + 1.0 - weight
    return mass / below if below > 0.0 else 1.0


@dataclass(frozen=True, slots=True)
class Transport:
    """k-SEQ for one p, q and k: accept x with min(1, p / (rho q)), draw from `residual` if none was."""

    rho: float
    residual: Tensor


@one_thread()
def k_seq(p: Tensor, q: Tensor, k: int, num_halvings: int = 40) -> Transport:
    """Solve 1 - (1 - b)^k = rho b, b = sum min(q, p / rho), for the smallest rho that is valid.

    **Exact:** for every rho with (1 - (1 - b)^k) / b <= rho, solved or not: the residual is computed
    from the rho in use, so bisection costs only acceptance (Sun 2023, algorithm 2).
    """

    def factor(rho: float) -> tuple[float, Tensor]:
        taken = (p / rho).minimum(q)
        b = min(1.0, float(taken.sum()))
        return ((1.0 - (1.0 - b) ** k) / b if b > 0.0 else float(k)), taken

    low, rho = 1.0, float(k)
    if factor(low)[0] <= low:
        rho = low
    for _ in range(num_halvings if rho > low else 0):
        middle = 0.5 * (low + rho)
        if factor(middle)[0] <= middle:
            rho = middle
        else:
            low = middle
    share, taken = factor(rho)
    return Transport(rho, residual(p, taken * share)[0])
