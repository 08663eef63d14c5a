"""A torch.compile pass that fuses an all-reduce and the RMSNorm that follows it into one operator.

    torch._inductor.config.post_grad_custom_post_pass = verbena.ops.fusion.FusionPass("tp")

The pass recognises all-reduces of torch.ops.verbena, of PyTorch's functional collectives and of vLLM's graphs, and RMSNorms of
torch.ops.verbena and of vLLM's graphs. Importing this module imports PyTorch."""
import dataclasses
import operator
from collections.abc import Collection
from typing import Any

import torch

try:
    from torch._inductor.custom_graph_pass import CustomGraphPass
except ImportError:  # the compiler of PyTorch before 2.6 does not cache the graphs of custom passes
    CustomGraphPass = object

# After an all-reduce of functional collectives, the graph has a wait node (_WAIT), which the pass skips.
_ALL_REDUCES = ("verbena.all_reduce", "vllm.all_reduce", "_c10d_functional.all_reduce")
_WAIT = "_c10d_functional.wait_tensor"
_VERSION = 2  # version of the pass's behaviour, for the compiler's cache


@dataclasses.dataclass(frozen=True)
class _NormRule:
    """Maps the arguments of a norm operator to the arguments of verbena.all_reduce_rms_norm. Arguments in `ignored` do not change the
    result. Arguments that the rule does not name must have their default values. The norm operator returns (output, residual), or only the
    output."""
    x: str
    residual: str | None
    options: tuple[str, ...] = ()  # arguments that are passed on by name
    ignored: tuple[str, ...] = ()
    rounds_normed: bool = False
    returns_pair: bool = True


_NORMS = {
    "verbena.rms_norm": _NormRule("x", "residual", ("weight_offset", "rounds_sum", "rounds_normed"), ("group",)),
    # The pass does not fuse norms with variance_size, which square only the first elements of a row.
    "vllm_ir.fused_add_rms_norm": _NormRule("x", "x_residual", rounds_normed=True),
    "vllm_ir.rms_norm": _NormRule("x", None, rounds_normed=True, returns_pair=False),
}
_TYPES = {torch.float16, torch.bfloat16}


class FusionPass(CustomGraphPass):
    """A compiler pass that fuses all-reduces with norms. Install it as a post-grad pass.

    Args:
        group: the communicator's name, as passed to set_group().
        names: the pass may fuse all-reduces of groups that have one of these names in the graph; None for `group` alone.
        codec: allows quantised sums with this codec; None for exact sums.
    """

    def __init__(self, group: str, names: Collection[str] | None = None, codec: str | None = None) -> None:
        self.group = group
        self.names = frozenset([group] if names is None else names)
        self.codec = codec
        self.count_fused = 0  # number of fused pairs in the last graph

    def uuid(self) -> str:
        """Returns a key for the compiler's cache. Passes that produce different graphs have different keys."""
        return f"verbena-fusion-{_VERSION}-{self.group}-{sorted(self.names)}-{self.codec}"

    def __call__(self, graph: Any) -> None:
        self.count_fused = 0
        for node in list(graph.nodes):
            rule = _NORMS.get(_name_of(node))
            match = None if rule is None else _match(graph, node, rule, self.names)
            if rule is not None and match is not None:
                self._fuse(graph, node, rule, match)
        if self.count_fused:
            graph.eliminate_dead_code()
            graph.lint()

    def _fuse(self, graph: Any, norm: Any, rule: _NormRule, match: "_Match") -> None:
        options = {name: match.arguments[name] for name in rule.options}
        if rule.rounds_normed:
            options["rounds_normed"] = True
        arguments = match.arguments
        with graph.inserting_before(norm):
            fused = graph.call_function(
                torch.ops.verbena.all_reduce_rms_norm.default,
                (match.all_reduce.args[0], match.residual, arguments["weight"], arguments["epsilon"], self.group),
                {**options, "codec": self.codec or ""})
            output = graph.call_function(operator.getitem, (fused, 0))
            second = graph.call_function(operator.getitem, (fused, 1))
        _copy_types(norm, match, fused, output, second)
        for user in list(match.total.users):
            if user is not norm:  # without a residual, the second result is the sum
                user.replace_input_with(match.total, second)
        norm.replace_all_uses_with(fused if rule.returns_pair else output)
        self.count_fused += 1


@dataclasses.dataclass(frozen=True)
class _Match:
    all_reduce: Any
    total: Any  # the node whose users read the all-reduce's result
    residual: Any
    arguments: dict[str, Any]  # the norm's arguments, by their names in the schema


def _match(graph: Any, norm: Any, rule: _NormRule, names: Collection[str]) -> _Match | None:
    arguments = _name_arguments(norm, rule)
    if arguments is None:
        return None
    total = arguments[rule.x]
    all_reduce = _find_all_reduce(total, names)
    residual = None if rule.residual is None else arguments[rule.residual]
    if all_reduce is None or not _have_types(total, residual, arguments["weight"]):
        return None
    order = {node: place for place, node in enumerate(graph.nodes)}
    others = [user for user in total.users if user is not norm]
    # With a residual, the fused operator does not return the sum, so no other node may read the sum. Without a residual, the second result
    # is the sum, which only nodes after the norm can read.
    if others and (residual is not None or any(order[user] < order[norm] for user in others)):
        return None
    return _Match(all_reduce, total, residual, arguments)


def _name_arguments(norm: Any, rule: _NormRule) -> dict[str, Any] | None:
    """Returns all arguments by name, including defaults. Returns None if an argument that the fused operator lacks has another value than
    its default."""
    schema = norm.target._schema.arguments
    given = {one.name: value for one, value in zip(schema, norm.args)} | norm.kwargs
    known = {rule.x, rule.residual, "weight", "epsilon", *rule.options, *rule.ignored}
    if any(one.name not in known and given.get(one.name, one.default_value) != one.default_value for one in schema):
        return None
    return {one.name: given.get(one.name, one.default_value) for one in schema}


def _have_types(total: Any, residual: Any, weight: Any) -> bool:
    """Returns True if all tensors have the same type and the kernel supports this type. Returns False if the graph does not record the
    types."""
    values = [getattr(node, "meta", {}).get("val") for node in (total, residual, weight) if node is not None]
    types = {None if value is None else value.dtype for value in values}
    return len(types) == 1 and types <= _TYPES


def _copy_types(norm: Any, match: _Match, fused: Any, output: Any, second: Any) -> None:
    """Copies the recorded types of the replaced nodes to the new nodes, because later passes read these types."""
    total = match.total.meta["val"]
    normed = norm.meta.get("val", total)
    output.meta["val"] = normed[0] if isinstance(normed, (tuple, list)) else normed
    second.meta["val"] = total
    fused.meta["val"] = (output.meta["val"], second.meta["val"])


def _name_of(node: Any) -> str:
    """Returns an operator's name, such as "verbena.all_reduce" for torch.ops.verbena.all_reduce.default."""
    if not hasattr(node, "op") or node.op != "call_function":
        return ""
    return ".".join(str(node.target).replace("::", ".").split(".")[:2])


def _find_all_reduce(total: Any, names: Collection[str]) -> Any:
    """Returns the all-reduce node whose result is `total`. Returns None if there is no such node, or if the node is not a sum over a group
    in `names`."""
    node = total
    if _name_of(node) == _WAIT:
        node = node.args[0]
        if len(node.users) != 1:
            return None
    if _name_of(node) not in _ALL_REDUCES:
        return None
    told = {one for one in (*node.args[1:], *node.kwargs.values()) if isinstance(one, str)}
    return node if told & set(names) and told <= {*names, "sum"} else None
