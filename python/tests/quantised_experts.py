"""A layer of SwiGLU experts, computed by PyTorch on the host. It processes all tokens densely, or only the rows that a rank has
received."""
import ctypes

import torch

import driver
from ranks import place_on_host

E4M3_MAX = 448.0


class DenseCase:
    """The same numbers in each process."""

    def __init__(self, tokens, hidden, intermediate, experts, top_k, seed=7):
        generator = torch.Generator().manual_seed(seed)
        self.hidden, self.intermediate, self.experts, self.top_k = hidden, intermediate, experts, top_k
        self.tokens = torch.randn(tokens, hidden, generator=generator).to(torch.bfloat16)
        scores = torch.randn(tokens, experts, generator=generator).softmax(1)
        self.weights, ids = scores.topk(top_k, 1)
        self.weights = self.weights / self.weights.sum(1, keepdim=True)
        self.ids = ids.to(torch.int32)
        self._first = torch.randn(hidden, 2 * intermediate, generator=generator) / hidden ** 0.5
        self._second = torch.randn(intermediate, hidden, generator=generator) / intermediate ** 0.5

    def share(self, rank, size):
        """The tokens, ids and weights of a rank."""
        return [one.chunk(size)[rank].contiguous() for one in (self.tokens, self.ids, self.weights)]

    def check(self, parts, quant_type):
        """Compares the ranks' outputs with the layer's."""
        got, want = torch.cat([torch.from_numpy(part) for part in parts]), self.compute(quant_type)
        difference = (got - want).norm() / want.norm()
        assert difference < 0.01, (quant_type, difference)

    def make_expert(self, expert):
        """Returns the two matrices of an expert. All experts have the same matrices, rotated by different numbers of rows."""
        return self._first.roll(7 * expert, 0), self._second.roll(11 * expert, 0)

    def apply_expert(self, expert, rows):
        first, second = self.make_expert(expert)
        gate, up = (rows @ first).chunk(2, 1)
        return (torch.nn.functional.silu(gate) * up) @ second

    @staticmethod
    def quantise(rows, quant_type):
        """Returns (e4m3 rows, float32 scales), with one scale per row or one scale per 128 elements."""
        length = rows.shape[1] if quant_type == "per_Token" else 128
        parts = rows.float().view(len(rows), rows.shape[1] // length, length)
        scales = (parts.abs().amax(2) / E4M3_MAX).clamp(min=1e-10)
        return (parts / scales.unsqueeze(2)).view(rows.shape).to(torch.float8_e4m3fn), scales

    @staticmethod
    def widen(rows, scales):
        return (rows.float().view(*scales.shape, rows.shape[-1] // scales.shape[-1]) * scales.unsqueeze(2)).view(rows.shape)

    def compute(self, quant_type):
        """The layer's output for all tokens, in float32."""
        rows = self.tokens.float() if quant_type is None else self.widen(*self.quantise(self.tokens, quant_type))
        return self.add_experts(rows, self.ids, self.weights, range(self.experts))

    def run_experts(self, came, rank, size, quant_type):
        """Returns the rows that a rank sends back, computed from the rows that the rank's dispatch has received."""
        rows, weights, scales, ids, count = came
        count = int(count[0])
        share = self.experts // size
        added = self.add_experts(self.widen(rows[:count], scales[:count]), ids[:count], weights[:count], range(rank * share, rank * share + share))
        out = torch.full([len(rows), self.hidden], float("nan"), dtype=torch.bfloat16)
        out[:count] = added.to(torch.bfloat16)
        return out

    def add_experts(self, rows, ids, weights, experts):
        added = torch.zeros(len(rows), self.hidden)
        for expert in experts:
            factors = torch.where(ids == expert, weights, torch.zeros(())).sum(1)
            chosen = (ids == expert).any(1).nonzero().flatten()
            added[chosen] += factors[chosen].unsqueeze(1) * self.apply_expert(expert, rows[chosen])
        return added


def begin_rank(rank, size, hosts, folder, small_tokens, window_tokens=2048):
    """Prepares a rank: sets its host and GPU, creates its process group, and loads the module of the exchanges. Exchanges for
    `window_tokens` tokens and more are in windows, as if NVLink connected the emulated GPUs."""
    place_on_host(rank, size, hosts)
    driver.use_gpu(rank)
    driver.wait_for_launches()
    import verbena.integrations.experts as exchanges
    exchanges.BLOCKS, exchanges.SIZES, exchanges.WORKSPACE_SIZES, exchanges.WINDOW_TOKENS = 2, small_tokens, small_tokens, window_tokens
    exchanges.are_all_linked = lambda ranks: True
    exchanges.view_window = lambda window: torch.frombuffer((ctypes.c_uint8 * len(window)).from_address(window.address), dtype=torch.uint8)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    return torch.distributed.group.WORLD, exchanges
