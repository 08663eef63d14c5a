"""For code that is compiled: all-reduces and the norms behind them become one operator.

    torch._inductor.config.post_grad_custom_post_pass = verbena.ops.fusion.FusionPass("tp")

The pass looks for an all-reduce whose result only a norm uses, by the names of their operators: Verbena's, PyTorch's
functional collectives with an operator of add and RMSNorm, and those of vLLM's graphs."""
import dataclasses
import operator
from collections.abc import Collection
from typing import Any

# all-reduce -> where its tensor is among the arguments. Of functional collectives the wait behind it is skipped.
_ALL_REDUCES = ("verbena.all_reduce", "vllm.all_reduce", "_c10d_functional.all_reduce")
_WAIT = "_c10d_functional.wait_tensor"


@dataclasses.dataclass(frozen=True)
class _NormRule:
    """How an operator's arguments are those of verbena.all_reduce_rms_norm; it returns (output, residual), or output alone."""
    name: str
    residual: int | None  # places of arguments
    weight: int
    epsilon: int
    rounds_sum: bool = False
    rounds_normed: bool = False
    returns_pair: bool = True


_NORMS = {rule.name: rule for rule in (
    _NormRule("verbena.rms_norm", 1, 2, 3),
    _NormRule("vllm_ir.fused_add_rms_norm", 1, 2, 3, rounds_normed=True),
    _NormRule("vllm_ir.rms_norm", None, 1, 2, rounds_normed=True, returns_pair=False),
)}


class FusionPass:
    """Of graphs behind autograd. `group` is what set_group() calls the communicator of the all-reduces' team, `names` what they
    call it (None: the same); `codec`, if not None, allows fewer bits."""

    def __init__(self, group: str, names: Collection[str] | None = None, codec: str | None = None) -> None:
        self.group = group
        self.names = frozenset([group] if names is None else names)
        self.codec = codec
        self.count_fused = 0  # of the last graph

    def uuid(self) -> str:
        """Two passes with one are one to the compiler's cache."""
        return f"verbena-fusion-1-{self.group}-{sorted(self.names)}-{self.codec}"

    def __call__(self, graph: Any) -> None:
        self.count_fused = 0
        for node in list(graph.nodes):
            rule = _NORMS.get(_name_of(node))
            all_reduce = _find_all_reduce(node, self.names) if rule is not None else None
            if rule is not None and all_reduce is not None and _can_fuse(graph, node, rule, all_reduce):
                self._fuse(graph, node, rule, all_reduce)
        if self.count_fused:
            graph.eliminate_dead_code()
            graph.lint()

    def _fuse(self, graph: Any, norm: Any, rule: _NormRule, all_reduce: Any) -> None:
        import torch
        arguments = norm.args
        more = dict(norm.kwargs)
        if rule.name == "verbena.rms_norm":
            more.update(zip(("weight_offset", "rounds_sum", "rounds_normed"), arguments[5:]))
        else:
            more.update(rounds_sum=rule.rounds_sum, rounds_normed=rule.rounds_normed)
        residual = None if rule.residual is None else arguments[rule.residual]
        with graph.inserting_before(norm):
            fused = graph.call_function(
                torch.ops.verbena.all_reduce_rms_norm.default,
                (all_reduce.args[0], residual, arguments[rule.weight], arguments[rule.epsilon], self.group),
                {**more, "codec": self.codec or ""})
            output = graph.call_function(operator.getitem, (fused, 0))
            second = graph.call_function(operator.getitem, (fused, 1))
        total = _find_sum(all_reduce)
        for user in list(total.users):
            if user is not norm:  # without a residual the second result is the sum
                user.replace_input_with(total, second)
        if rule.returns_pair:
            norm.replace_all_uses_with(fused)
        else:
            norm.replace_all_uses_with(output)
        self.count_fused += 1


def _name_of(node: Any) -> str:
    """ "verbena.all_reduce" for a call of torch.ops.verbena.all_reduce.default."""
    if node.op != "call_function":
        return ""
    return ".".join(str(node.target).replace("::", ".").split(".")[:2])


def _find_sum(all_reduce: Any) -> Any:
    """The node that others take for its result."""
    users = list(all_reduce.users)
    return users[0] if len(users) == 1 and _name_of(users[0]) == _WAIT else all_reduce


def _find_all_reduce(norm: Any, names: frozenset[str]) -> Any:
    """The all-reduce, a sum over a group of these names, whose result is the norm's first argument; or None."""
    node = norm.args[0] if norm.args else None
    if hasattr(node, "op") and _name_of(node) == _WAIT:
        node = node.args[0]
    if not hasattr(node, "op") or _name_of(node) not in _ALL_REDUCES:
        return None
    told = {one for one in (*node.args[1:], *node.kwargs.values()) if isinstance(one, str)}
    return node if told & names and told <= names | {"sum"} else None


def _can_fuse(graph: Any, norm: Any, rule: _NormRule, all_reduce: Any) -> bool:
    if len(norm.args) <= max(rule.weight, rule.epsilon) or (norm.kwargs and rule.name != "verbena.rms_norm"):
        return False
    order = {node: place for place, node in enumerate(graph.nodes)}
    others = [user for user in _find_sum(all_reduce).users if user is not norm]
    # A norm with a residual has not got the sum, and one without has it no sooner than its own place.
    has_residual = rule.residual is not None and norm.args[rule.residual] is not None
    return not others or (not has_residual and all(order[user] > order[norm] for user in others))
