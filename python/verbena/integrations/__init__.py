"""Verbena's collectives for inference engines: verbena.integrations.vllm and verbena.integrations.sglang have the classes and
hooks that the engine expects. Both can be imported without the engine."""
