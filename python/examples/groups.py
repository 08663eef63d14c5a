import importlib.util

from verbena.distributed import destroy_dist_env, get_tp_group, get_world_group, init_dist_env

init_dist_env(tensor_model_parallel_size=2, timeout=60)  # creates all groups with one rendezvous
world, tp = get_world_group(), get_tp_group()
print(f"rank {world.rank} of {world.world_size}, tensor parallel with {tp.ranks}", flush=True)

for step in range(3):  # rank 0 of the group sends a decision; the other ranks sleep until the decision arrives
    decision = {"step": step, "requests": [10 * step, 10 * step + 1]} if tp.is_first_rank else None
    print(f"rank {world.rank}: {tp.broadcast_object(decision)}", flush=True)

if importlib.util.find_spec("torch"):
    import torch
    print(f"rank {world.rank}: the sum is {tp.all_reduce(torch.tensor([world.rank + 1.0])).item()}", flush=True)

destroy_dist_env()
