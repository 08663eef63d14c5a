"""Runs a layer of experts on several GPUs of one host. Each rank has some of the experts and its own tokens. A router chooses the experts
of each token, a dispatch sends the token to the ranks of its experts, grouped matrix products apply the experts, and a combine brings the
results back. The program compares the layer with a dense layer. On GPUs, the program also captures the layer in a CUDA graph and replays
the graph with other tokens.

    torchrun --nproc-per-node 2 experts.py [--tokens 128] [--hidden 1024] [--experts 16] [--top-k 4]
"""
import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

import verbena
import verbena.moe

ALIGNMENT = 8  # each expert's rows begin at a multiple of this number, as grouped matrix products require


class Experts:
    """The experts' weights. All ranks draw the weights from the same seed, so that each rank can compute any expert."""

    def __init__(self, hidden: int, intermediate: int, experts: int, top_k: int, device: str) -> None:
        self.hidden, self.experts, self.top_k, self.device = hidden, experts, top_k, device
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Any:
            return (torch.randn(*shape, generator=generator) / shape[-2] ** 0.5).to(device, torch.bfloat16)
        self.router = draw(hidden, experts)
        self.gate, self.up, self.down = (draw(experts, *shape) for shape in ((hidden, intermediate), (hidden, intermediate), (intermediate, hidden)))

    def route(self, x: Any) -> tuple[Any, Any]:
        """Returns the ids and the weights of the experts of each token, both [tokens, top_k]."""
        scores = (x @ self.router).float().softmax(1)
        weights, ids = scores.topk(self.top_k, 1)
        return ids, weights / weights.sum(1, keepdim=True)

    def apply(self, rows: Any, row_experts: Any, first: int, local: int) -> Any:
        """Applies experts `first` to `first + local - 1`, each to the rows of this expert. Rows whose expert is -1 become zeros."""
        out = torch.zeros_like(rows)
        for number in range(local):
            # Graphs need fixed shapes, so each product takes all rows. A kernel for grouped products would take only the expert's rows.
            mine = (row_experts == number).unsqueeze(1)
            given = torch.where(mine, rows, 0)
            hidden = functional.silu(given @ self.gate[first + number]) * (given @ self.up[first + number])
            out = torch.where(mine, hidden @ self.down[first + number], out)
        return out


def run_layer(layer: Experts, exchange: verbena.moe.ExpertExchange, rank: int, x: Any, wait: Callable[[], None]) -> Any:
    """Returns the layer's output for this rank's tokens."""
    ids, weights = layer.route(x)
    sent = exchange.dispatch(x, ids, weights, grouping="ragged", alignment=ALIGNMENT)
    wait()
    local = layer.experts // exchange.ranks
    rows = layer.apply(sent.rows, sent.row_experts, rank * local, local)
    y = exchange.combine(rows, sent, "reduced")
    wait()
    return y


def run_dense(layer: Experts, x: Any) -> Any:
    """Returns the output of a dense layer for `x`. Computes all experts, and adds their outputs in float32."""
    ids, weights = layer.route(x)
    out = torch.zeros(x.shape, device=layer.device)
    for expert in range(layer.experts):
        factor = torch.where(ids == expert, weights, 0).sum(1, keepdim=True)
        hidden = functional.silu(x @ layer.gate[expert]) * (x @ layer.up[expert])
        out += factor * (hidden @ layer.down[expert]).float()
    return out


def find_difference(y: Any, dense: Any) -> float:
    return float((y.float() - dense).norm() / dense.norm().clamp(min=1e-6))


def capture(layer: Experts, exchange: verbena.moe.ExpertExchange, rank: int, x: Any) -> tuple[Any, Any]:
    """Returns a CUDA graph of the layer, and the output tensor of the graph. The graph reads `x`."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run_layer(layer, exchange, rank, x, lambda: None)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run_layer(layer, exchange, rank, x, lambda: None)
    return graph, y


def run(options: argparse.Namespace, context: verbena.SymmetricContext, device: str = "cuda", wait: Callable[[], None] = lambda: None) -> list[float]:
    """Returns the relative differences between the outputs of the layer and of the dense layer: in eager mode and, on GPUs, after each
    replay of the graph. `wait` waits for kernels of emulated GPUs, for which PyTorch itself does not wait."""
    layer = Experts(options.hidden, options.intermediate, options.experts, options.top_k, device)
    generator = torch.Generator().manual_seed(1 + context.rank)
    with verbena.moe.ExpertExchange(context, experts=options.experts, max_tokens=options.tokens, top_k=options.top_k, hidden=options.hidden,
                                    blocks=options.blocks) as exchange:
        x = torch.randn(options.tokens, options.hidden, generator=generator).to(device, torch.bfloat16)
        differences = [find_difference(run_layer(layer, exchange, context.rank, x, wait), run_dense(layer, x))]
        if device == "cuda":
            graph, y = capture(layer, exchange, context.rank, x)
            for _ in range(3):
                x.copy_(torch.randn(x.shape, generator=generator))
                graph.replay()
                differences.append(find_difference(y, run_dense(layer, x)))
        exchange.check_error()
        if device == "cuda":
            torch.cuda.synchronize()  # before the exchange is freed
    return differences


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("tokens", 128), ("hidden", 1024), ("intermediate", 512), ("experts", 16), ("top-k", 4), ("blocks", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args(arguments)


def main() -> int:
    import os
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with verbena.SymmetricContext.from_environment() as context:
        differences = run(read_options(), context)
        print(f"rank {context.rank}: relative differences from the dense layer: {', '.join(f'{one:.5f}' for one in differences)}", flush=True)
        context.barrier()
    return 0 if max(differences) < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
