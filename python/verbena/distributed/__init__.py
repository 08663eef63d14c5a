"""Groups of ranks, and a message queue from one rank to other ranks. Only calls with tensors need PyTorch."""
from verbena.distributed.coordinator import GraphCaptureContext, GroupCoordinator
from verbena.distributed.exchange import Exchange, Ranks, gather_objects, get_node_count, in_the_same_node_as
from verbena.distributed.layout import GroupLayout, check_custom, lay_out_engine, lay_out_megatron
from verbena.distributed.message_queue import ANY_READER, SPIN_ADAPTIVE, SPIN_FOREVER, Handle, MessageQueue, MessageView
from verbena.distributed.state import (destroy_dist_env, destroy_distributed_environment, destroy_model_parallel,
                                       enable_symmetric_memory, ensure_model_parallel_initialized, get_dcp_group, get_dp_group,
                                       get_ep_group, get_eplb_group, get_group, get_pcp_group, get_pp_group,
                                       get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size, get_tp_group,
                                       get_world_group, graph_capture, init_dist_env, init_distributed_environment,
                                       initialize_model_parallel, is_initialized, model_parallel_is_initialized,
                                       tensor_model_parallel_all_gather, tensor_model_parallel_all_reduce,
                                       tensor_model_parallel_fused_allreduce_rmsnorm, tensor_model_parallel_reduce_scatter)

__all__ = [
    "ANY_READER", "SPIN_ADAPTIVE", "SPIN_FOREVER", "Exchange", "GraphCaptureContext", "GroupCoordinator", "GroupLayout", "Handle",
    "MessageQueue", "MessageView", "Ranks", "check_custom", "destroy_dist_env", "destroy_distributed_environment",
    "destroy_model_parallel", "enable_symmetric_memory", "ensure_model_parallel_initialized", "gather_objects",
    "get_dcp_group", "get_dp_group", "get_ep_group", "get_eplb_group", "get_group", "get_node_count", "get_pcp_group",
    "get_pp_group", "get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size", "get_tp_group",
    "get_world_group", "graph_capture", "in_the_same_node_as", "init_dist_env", "init_distributed_environment",
    "initialize_model_parallel", "is_initialized", "lay_out_engine", "lay_out_megatron", "model_parallel_is_initialized",
    "tensor_model_parallel_all_gather", "tensor_model_parallel_all_reduce", "tensor_model_parallel_fused_allreduce_rmsnorm",
    "tensor_model_parallel_reduce_scatter",
]
