"""Mixture of experts on tensors: moves tokens to the ranks of their experts (dispatch) and brings the experts' rows back (combine),
between the GPUs of one or several hosts. docs/moe.md describes the layouts and the sums; include/verbena/moe.h says what both calls
guarantee.

    with verbena.SymmetricContext.from_environment() as context, \\
            verbena.moe.ExpertExchange(context, experts=256, max_tokens=128, top_k=8, hidden=7168) as exchange:
        sent = exchange.dispatch(x, topk_ids, topk_weights)     # sent.rows[r, i]: the i-th row that came from rank r
        y = exchange.combine(run_experts(sent), sent)           # one row for each token of x
"""
from verbena.ops.moe import Dispatched, ExpertExchange, Grouping, Order, Phase
from verbena.ops.torch_ops import get_exchange, set_exchange

__all__ = ["Dispatched", "ExpertExchange", "Grouping", "Order", "Phase", "get_exchange", "set_exchange"]
