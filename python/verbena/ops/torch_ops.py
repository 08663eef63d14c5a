"""The collectives as PyTorch operators (torch.ops.verbena), for code under torch.compile or in CUDA graphs. Operators take the
group's name, return new tensors, and have fake kernels, which compute the results' shapes without a GPU."""
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from verbena.ops.calls import Algorithm, Choice
from verbena.ops.communicator import Communicator
from verbena.ops.fused import Norm, Normed, Quantisation, make_normed
from verbena.ops.moe import Dispatched, ExpertExchange, Grouping

_groups: dict[str, Communicator] = {}
_exchanges: dict[str, ExpertExchange] = {}
_libraries: list[Any] = []  # (device, library); keeps the libraries that define the operators alive
_lock = threading.Lock()


def set_group(name: str, communicator: Communicator | None) -> None:
    """Gives a communicator the name `name`, by which torch.ops.verbena's operators find it. None removes the name. The first
    call registers the operators."""
    _name(_groups, name, communicator)


def init(group: Any = None, *, name: str = "world", **options: Any) -> Communicator:
    """Creates a communicator, and gives it a name as set_group() does. torch.ops.verbena's operators need no other setup. Collective.

    Args:
        group: a process group of torch.distributed. None for torch.distributed's world or, if torch.distributed is not
            initialised, for all ranks of the job, which the launcher's environment variables name.
        name: the name for torch.ops.verbena's operators.
        options: keyword arguments of Communicator().
    """
    if group is None:
        import torch.distributed as dist
        group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    communicator = Communicator.from_environment(**options) if group is None else Communicator.from_group(group, **options)
    set_group(name, communicator)
    return communicator


def get_group(name: str) -> Communicator:
    try:
        return _groups[name]
    except KeyError:
        raise KeyError(f"no communicator has the name {name!r}. Call verbena.ops.set_group({name!r}, communicator)") from None


def set_exchange(name: str, exchange: ExpertExchange | None) -> None:
    """Gives an exchange the name `name`, by which torch.ops.verbena.moe_dispatch and moe_combine find it. None removes the
    name. The first call registers the operators."""
    _name(_exchanges, name, exchange)


def get_exchange(name: str) -> ExpertExchange:
    try:
        return _exchanges[name]
    except KeyError:
        raise KeyError(f"no exchange has the name {name!r}. Call verbena.moe.set_exchange({name!r}, exchange)") from None


def _name(table: dict[str, Any], name: str, named: Any) -> None:
    if not _libraries:
        register_torch_ops()
    if named is None:
        table.pop(name, None)
    else:
        table[name] = named


def _encode(lossless: bool) -> Choice | None:
    return Choice(Algorithm.LOSSLESS) if lossless else None


def _all_reduce(x: Any, group: str, reduction: str = "sum", lossless: bool = False) -> Any:
    return get_group(group).all_reduce(x, reduction, choice=_encode(lossless))


def _all_reduce_in_place(x: Any, group: str, reduction: str = "sum", lossless: bool = False) -> None:
    get_group(group).all_reduce(x, reduction, out=x, choice=_encode(lossless))


def _all_gather(x: Any, dim: int, world_size: int, group: str, lossless: bool = False) -> Any:
    return get_group(group).all_gather(x, dim, choice=_encode(lossless))


def _reduce_scatter(x: Any, dim: int, world_size: int, group: str, reduction: str = "sum", lossless: bool = False) -> Any:
    return get_group(group).reduce_scatter(x, dim, reduction, choice=_encode(lossless))


def _broadcast(x: Any, root: int, group: str, lossless: bool = False) -> None:
    get_group(group).broadcast(x, root, choice=_encode(lossless))


def _all_to_all(x: Any, split_dim: int, concat_dim: int, world_size: int, group: str, lossless: bool = False) -> Any:
    return get_group(group).all_to_all(x, split_dim, concat_dim, choice=_encode(lossless))


def _all_gather_v(x: Any, counts: Any, rows: int, group: str) -> Any:
    return get_group(group).all_gather_v(x, counts, x.new_empty([rows, *x.shape[1:]]))


def _reduce_scatter_v(x: Any, counts: Any, rows: int, group: str, reduction: str = "sum") -> Any:
    return get_group(group).reduce_scatter_v(x, counts, x.new_empty([rows, *x.shape[1:]]), reduction)


def _all_to_all_v(x: Any, send_counts: Any, receive_counts: Any, rows: int, expected_rows: int, group: str) -> Any:
    out = x.new_empty([rows, *x.shape[1:]])
    return get_group(group).all_to_all_v(x, send_counts, receive_counts, out, expected_rows=expected_rows)


def _all_reduce_quantised(x: Any, group: str, codec: str, seed: int = 0) -> Any:
    return get_group(group).all_reduce_quantised(x, codec, seed=seed)


def _rms_norm(x: Any, residual: Any, weight: Any, epsilon: float, group: str, weight_offset: float = 0.0,
              rounds_sum: bool = False, rounds_normed: bool = False) -> tuple[Any, Any]:
    norm = Norm(weight, epsilon, weight_offset, rounds_sum, rounds_normed)
    return _as_pair(get_group(group).rms_norm(x, norm, residual))


def _all_reduce_rms_norm(x: Any, residual: Any, weight: Any, epsilon: float, group: str, weight_offset: float = 0.0,
                         rounds_sum: bool = False, rounds_normed: bool = False, codec: str = "") -> tuple[Any, Any]:
    norm = Norm(weight, epsilon, weight_offset, rounds_sum, rounds_normed)
    return _as_pair(get_group(group).all_reduce_rms_norm(x, norm, residual, codec=codec or None))


def _moe_finalize_all_reduce_rms_norm(rows: Any, indices: Any, weights: Any, shared: Any, residual: Any, weight: Any, epsilon: float,
                                      group: str, weight_offset: float = 0.0, rounds_sum: bool = False,
                                      rounds_normed: bool = False) -> tuple[Any, Any]:
    norm = Norm(weight, epsilon, weight_offset, rounds_sum, rounds_normed)
    return _as_pair(get_group(group).moe_finalize_all_reduce_rms_norm(rows, indices, weights, norm, residual, shared=shared))


def _fake_moe_finalize(rows: Any, indices: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    shape = [indices.shape[0], rows.shape[-1]]
    return rows.new_empty(shape), rows.new_empty(shape)


def _make_quantising(weight: Any, scale: Any, quantisation: str, scale_layout: str, epsilon: float, weight_offset: float,
                     rounds_sum: bool, rounds_normed: bool) -> Norm:
    return Norm(weight, epsilon, weight_offset, rounds_sum, rounds_normed, Quantisation[quantisation.upper()], scale, scale_layout)


def _rms_norm_quant(x: Any, residual: Any, weight: Any, scale: Any, quantisation: str, epsilon: float, group: str,
                    weight_offset: float = 0.0, rounds_sum: bool = False, rounds_normed: bool = False,
                    scale_layout: str = "rows") -> tuple[Any, Any, Any, Any]:
    norm = _make_quantising(weight, scale, quantisation, scale_layout, epsilon, weight_offset, rounds_sum, rounds_normed)
    return _as_four(get_group(group).rms_norm(x, norm, residual), scale)


def _all_reduce_rms_norm_quant(x: Any, residual: Any, weight: Any, scale: Any, quantisation: str, epsilon: float, group: str,
                               weight_offset: float = 0.0, rounds_sum: bool = False, rounds_normed: bool = False,
                               scale_layout: str = "rows", codec: str = "") -> tuple[Any, Any, Any, Any]:
    norm = _make_quantising(weight, scale, quantisation, scale_layout, epsilon, weight_offset, rounds_sum, rounds_normed)
    return _as_four(get_group(group).all_reduce_rms_norm(x, norm, residual, codec=codec or None), scale)


def _moe_dispatch(x: Any, ids: Any, weights: Any, scales: Any, exchange: str, cast: str = "", grouping: str = "rank", alignment: int = 1,
                  column_scales: bool = False) -> tuple[Any, ...]:
    return _as_five(x, get_exchange(exchange).dispatch(x, ids, weights, scales=scales, cast=cast or None, grouping=grouping,
                                                       alignment=alignment, column_scales=column_scales))


def _fake_moe_dispatch(x: Any, ids: Any, weights: Any, scales: Any, exchange: str, cast: str = "", grouping: str = "rank",
                       alignment: int = 1, column_scales: bool = False) -> tuple[Any, ...]:
    return _as_five(x, get_exchange(exchange).make_dispatched(x, scales, cast or None, Grouping[grouping.upper()], alignment, column_scales))


def _as_five(x: Any, sent: Dispatched) -> tuple[Any, ...]:
    return (sent.rows, *(x.new_empty([0]) if one is None else one for one in (sent.scales, sent.handle, sent.row_sources, sent.row_experts)))


def _moe_combine(rows: Any, handle: Any, tokens: int, exchange: str, order: str = "reduced", grouping: str = "rank") -> Any:
    found = get_exchange(exchange)
    # combine() reads only the length of row_sources, which equals the number of rows. So rows[..., 0] can replace row_sources.
    return found.combine(rows, found.view_handle(None, None, handle, tokens, Grouping[grouping.upper()], rows[..., 0]), order)


def _as_pair(normed: Normed) -> tuple[Any, Any]:
    return normed.output, normed.residual


def _as_four(normed: Normed, scale: Any) -> tuple[Any, Any, Any, Any]:
    # Results must not alias arguments, so a scale that the caller passed is not returned.
    scales = normed.scales if scale is None else normed.scales.new_empty(0)
    return normed.output, normed.residual, normed.quantised, scales


def _fake_norm(x: Any, residual: Any, weight: Any, epsilon: float, group: str, *_: Any, **__: Any) -> tuple[Any, Any]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _fake_norm_quant(x: Any, residual: Any, weight: Any, scale: Any, quantisation: str, epsilon: float, group: str,
                     weight_offset: float = 0.0, rounds_sum: bool = False, rounds_normed: bool = False,
                     scale_layout: str = "rows", codec: str = "") -> tuple[Any, Any, Any, Any]:
    norm = _make_quantising(weight, scale, quantisation, scale_layout, epsilon, weight_offset, rounds_sum, rounds_normed)
    return _as_four(make_normed(x, norm), scale)


def _resized(x: Any, dim: int, size: Any) -> Any:
    shape = list(x.shape)
    shape[dim] = size
    return x.new_empty(shape)


def _fake_all_to_all(x: Any, split_dim: int, concat_dim: int, world_size: int, group: str, lossless: bool = False) -> Any:
    shape = list(x.shape)
    shape[split_dim] //= world_size
    shape[concat_dim] *= world_size
    return x.new_empty(shape)


_LOSSLESS = "bool lossless=False"
_NORM = "float weight_offset=0.0, bool rounds_sum=False, bool rounds_normed=False"
_QUANTISED = ("Tensor x, Tensor? residual, Tensor? weight, Tensor? scale, str quantisation, float epsilon, str group, "
              f'{_NORM}, str scale_layout="rows"')
# For each operator: its schema, its implementation, and its fake kernel, which only returns tensors of the result's shape.
_OPERATORS: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
    (f'all_reduce(Tensor x, str group, str reduction="sum", {_LOSSLESS}) -> Tensor', _all_reduce,
     lambda x, group, reduction="sum", lossless=False: x.new_empty(x.shape)),
    (f'all_reduce_(Tensor(a!) x, str group, str reduction="sum", {_LOSSLESS}) -> ()', _all_reduce_in_place,
     lambda x, group, reduction="sum", lossless=False: None),
    (f"all_gather(Tensor x, int dim, int world_size, str group, {_LOSSLESS}) -> Tensor", _all_gather,
     lambda x, dim, world_size, group, lossless=False: _resized(x, dim, x.shape[dim] * world_size)),
    (f'reduce_scatter(Tensor x, int dim, int world_size, str group, str reduction="sum", {_LOSSLESS}) -> Tensor', _reduce_scatter,
     lambda x, dim, world_size, group, reduction="sum", lossless=False: _resized(x, dim, x.shape[dim] // world_size)),
    (f"broadcast_(Tensor(a!) x, int root, str group, {_LOSSLESS}) -> ()", _broadcast, lambda x, root, group, lossless=False: None),
    (f"all_to_all(Tensor x, int split_dim, int concat_dim, int world_size, str group, {_LOSSLESS}) -> Tensor", _all_to_all,
     _fake_all_to_all),
    ("all_gather_v(Tensor x, Tensor counts, SymInt rows, str group) -> Tensor", _all_gather_v,
     lambda x, counts, rows, group: _resized(x, 0, rows)),
    ('reduce_scatter_v(Tensor x, Tensor counts, SymInt rows, str group, str reduction="sum") -> Tensor', _reduce_scatter_v,
     lambda x, counts, rows, group, reduction="sum": _resized(x, 0, rows)),
    ("all_to_all_v(Tensor x, Tensor send_counts, Tensor receive_counts, SymInt rows, SymInt expected_rows, str group) -> Tensor",
     _all_to_all_v, lambda x, send_counts, receive_counts, rows, expected_rows, group: _resized(x, 0, rows)),
    ('moe_dispatch(Tensor x, Tensor ids, Tensor? weights, Tensor? scales, str exchange, str cast="", str grouping="rank", '
     'int alignment=1, bool column_scales=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor)', _moe_dispatch, _fake_moe_dispatch),
    ('moe_combine(Tensor rows, Tensor handle, SymInt tokens, str exchange, str order="reduced", str grouping="rank") -> Tensor',
     _moe_combine, lambda rows, handle, tokens, exchange, order="reduced", grouping="rank": rows.new_empty([tokens, rows.shape[-1]])),
    ("all_reduce_quantised(Tensor x, str group, str codec, int seed=0) -> Tensor", _all_reduce_quantised,
     lambda x, group, codec, seed=0: x.new_empty(x.shape)),
    (f"rms_norm(Tensor x, Tensor? residual, Tensor? weight, float epsilon, str group, {_NORM}) -> (Tensor, Tensor)", _rms_norm,
     _fake_norm),
    (f'all_reduce_rms_norm(Tensor x, Tensor? residual, Tensor? weight, float epsilon, str group, {_NORM}, str codec="") '
     "-> (Tensor, Tensor)", _all_reduce_rms_norm, _fake_norm),
    ("moe_finalize_all_reduce_rms_norm(Tensor rows, Tensor indices, Tensor? weights, Tensor? shared, Tensor? residual, Tensor? weight, "
     f"float epsilon, str group, {_NORM}) -> (Tensor, Tensor)", _moe_finalize_all_reduce_rms_norm, _fake_moe_finalize),
    (f"rms_norm_quant({_QUANTISED}) -> (Tensor, Tensor, Tensor, Tensor)", _rms_norm_quant, _fake_norm_quant),
    (f'all_reduce_rms_norm_quant({_QUANTISED}, str codec="") -> (Tensor, Tensor, Tensor, Tensor)', _all_reduce_rms_norm_quant,
     _fake_norm_quant),
]


def _refuse_gradients(name: str) -> Callable[..., Any]:
    """Returns a kernel that raises an error if an argument requires a gradient. Without this error, training would continue without
    gradients."""
    import torch
    call = getattr(torch.ops.verbena, name).default

    def run(*arguments: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in (*arguments, *named.values())):
            raise RuntimeError(f"torch.ops.verbena.{name} has no gradient. Call the operator under torch.no_grad() or "
                               f"torch.inference_mode(), or use "
                               "torch.distributed for training")
        below = torch._C._AutoDispatchBelowAutograd()  # not a context manager in PyTorch 1; has an effect as long as the object lives
        with below if hasattr(below, "__enter__") else contextlib.nullcontext():
            return call(*arguments, **named)
    return run


def register_torch_ops(device: str = "CUDA") -> None:
    """Registers the operators for one of PyTorch's device types. The first set_group() or set_exchange() registers them for CUDA if nothing
    is registered yet."""
    import torch
    with _lock:
        if any(name == device for name, _ in _libraries):
            return
        library = torch.library.Library("verbena", "FRAGMENT" if _libraries or hasattr(torch.library, "custom_op") else "DEF")
        for schema, does, says_shape in _OPERATORS:
            name = schema.split("(")[0]
            if not _libraries:
                library.define(schema)
                if hasattr(library, "_register_fake"):
                    library._register_fake(name, says_shape)
                else:
                    library.impl(name, says_shape, "Meta")
                library.impl(name, _refuse_gradients(name), "Autograd")
            library.impl(name, does, device)
        _libraries.append((device, library))
